"""Orders that cannot be followed are refused by name, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstbad_probe.settings import read_settings


def test_a_single_process_needs_no_more_than_a_folder_and_a_device() -> None:
    settings = read_settings({"FIRSTBAD_PROBE_DIRECTORY": "/there", "FIRSTBAD_DEVICE": "cpu"})
    assert (settings.directory, settings.rank, settings.world_size) == (Path("/there"), 0, 1)
    assert (settings.capacity_bytes, settings.minimum_steps, settings.require_real_data) == (None, 3, False)
    assert not settings.lists_storages


def test_every_order_is_read() -> None:
    settings = read_settings(
        {
            "FIRSTBAD_PROBE_DIRECTORY": "/there",
            "FIRSTBAD_DEVICE": "cuda",
            "RANK": "3",
            "WORLD_SIZE": "8",
            "LOCAL_WORLD_SIZE": "4",
            "FIRSTBAD_CAPACITY_BYTES": "123",
            "FIRSTBAD_REQUIRE_REAL_DATA": "1",
            "FIRSTBAD_MINIMUM_STEPS": "5",
            "FIRSTBAD_EXPECTED_IMPORTS": '{"megatron.core": "/its/place"}',
            "FIRSTBAD_LIST_STORAGES": "1",
        }
    )
    assert (settings.rank, settings.world_size, settings.local_world_size) == (3, 8, 4)
    assert (settings.capacity_bytes, settings.minimum_steps) == (123, 5)
    assert settings.require_real_data
    assert settings.lists_storages
    assert settings.expected_imports == {"megatron.core": "/its/place"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FIRSTBAD_PROBE_DIRECTORY", ""),
        ("FIRSTBAD_DEVICE", "tpu"),
        ("RANK", "first"),
        ("FIRSTBAD_CAPACITY_BYTES", "80 GiB"),
        ("FIRSTBAD_EXPECTED_IMPORTS", "{"),
        ("FIRSTBAD_EXPECTED_IMPORTS", '["megatron.core"]'),
    ],
)
def test_a_wrong_order_is_refused_by_its_name(name: str, value: str) -> None:
    environment = {"FIRSTBAD_PROBE_DIRECTORY": "/there", "FIRSTBAD_DEVICE": "cpu", name: value}
    with pytest.raises(ValueError, match=name):
        read_settings(environment)
