"""What a lock may say, and how the line that may not is named."""

from __future__ import annotations

import pytest

from workers.requirement_lock import Pin, Unbuildable, as_overrides, read_lock, with_overrides


def test_pins_comments_extras_markers_and_hashes_are_read() -> None:
    text = (
        "# made by hand\n\nTorch==2.13.0+cpu  # the CPU's\nruamel.yaml == 0.18.6\n"
        "s3fs[boto3, x]==2024.1.0\n"
        "tomli==2.0.1 ; python_version < '3.11'\n"
        "six==1.17.0 \\\n    --hash=sha256:00ff \\\n    --hash=sha256:11\n"
    )
    assert [pin.requirement for pin in read_lock(text, "lock")] == [
        "torch==2.13.0+cpu",
        "ruamel-yaml==0.18.6",
        "s3fs[boto3,x]==2024.1.0",
        "tomli==2.0.1 ; python_version < '3.11'",
        "six==1.17.0",
    ]


@pytest.mark.parametrize(
    "line",
    [
        "six",
        "six>=1",
        "six==1.*",
        "--index-url https://evil.example/simple",
        "-e git+https://evil.example/x",
        "six @ https://evil.example/six.whl",
        "./six.whl",
        "six==1.0 --index-url=https://evil.example",
        "-r other.txt",
        "==1.0",
        "six==1.0; python_version<'4' --find-links x\\",
    ],
)
def test_a_line_that_is_no_pin_is_named_with_the_repair(line: str) -> None:
    with pytest.raises(Unbuildable, match=r"lock, line 2: .*pin the package to one version") as refusal:
        read_lock(f"idna==3.10\n{line}\n", "lock")
    assert refusal.value.step == "reading the lock"


def test_a_package_pinned_twice_is_refused() -> None:
    with pytest.raises(Unbuildable, match=r"line 2: my-pkg is pinned to 2, and above to 1"):
        read_lock("my.pkg==1\nMy_Pkg==2\n", "lock")


def test_an_override_moves_one_pin_adds_one_or_takes_one_away() -> None:
    pins = read_lock("a==1\nb[x]==1\nc==1\n", "lock")
    assert with_overrides(pins, {"B": "2", "c": "", "d": "3"}, "lock") == (
        Pin(name="a", version="1"),
        Pin(name="b", version="2", extras="[x]"),
        Pin(name="d", version="3"),
    )


def test_what_one_lock_says_can_be_laid_over_another() -> None:
    old = read_lock("a==1\nb[x]==1\nc==1\nd==1 ; python_version < '3.12'\n", "lock")
    new = read_lock(
        "a==2\nb[x,y]==1\nd==1 ; python_version < '3.12'\nd==2 ; python_version >= '3.12'\n", "lock"
    )
    before, after = as_overrides(old), as_overrides(new)
    moved = {name: after.get(name, "") for name in {*before, *after} if before.get(name) != after.get(name)}
    assert set(with_overrides(old, moved, "lock")) == set(new)
    back = {name: before.get(name, "") for name in moved}
    assert set(with_overrides(new, back, "lock")) == set(old)


def test_an_override_cannot_smuggle_in_what_a_lock_may_not_say() -> None:
    with pytest.raises(Unbuildable, match="is not `name==version`"):
        with_overrides(read_lock("a==1\n", "lock"), {"a": "a==1 --index-url=https://evil.example"}, "lock")
