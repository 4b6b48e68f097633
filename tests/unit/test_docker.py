"""The files of docker/: the real checkers accept them, and what they name is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click import Command
from prometheus_client import CollectorRegistry
from typer.main import get_command

from bisection.adapters.storage.database import Database
from bisection.measurement import Outcome
from firstbad.command_line import app
from firstbad.settings import Settings, read_settings
from service.metrics import Meter

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
TOOLS = Path(sys.executable).parent
PROFILES = ("h100", "a100")


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """As the real Compose understands them, with every pool."""
    chosen = [word for name in PROFILES for word in ("--profile", name)]
    shown = run(
        TOOLS / "docker-compose", "-f", DOCKER / "compose.yaml", *chosen, "config", "--format", "json"
    )
    services: dict[str, dict[str, Any]] = json.loads(shown)["services"]
    return services


def command_of(words: list[str]) -> None:
    """Raises unless the words are a command of ours with options that it has."""
    group = get_command(app)
    command: Command | None = group.get_command(None, words[0])  # type: ignore[attr-defined]
    assert command is not None, f"firstbad {words[0]}"
    command.make_context(words[0], list(words[1:]))


def known_variables() -> set[str]:
    return set(re.findall(r"FIRSTBAD_[A-Z_]+[A-Z]", Settings.__doc__ or ""))


@pytest.mark.parametrize("name", ["service", "worker"])
def test_a_real_linter_accepts_the_dockerfile(name: str) -> None:
    run(TOOLS / "hadolint", DOCKER / f"{name}.Dockerfile")


def test_every_service_is_held_to_what_it_needs(services: dict[str, dict[str, Any]]) -> None:
    workers = {"h100-0", "h100-1", "a100-0"}
    assert set(services) == {"database", "broker", "api", "control"} | workers
    for name, service in services.items():
        assert service["read_only"], name
        assert int(service["user"].split(":")[0]) > 0, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["healthcheck"]["test"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
        assert "privileged" not in service, name
        assert not re.search("password|secret", json.dumps(service.get("environment", {})).replace(
            "/run/secrets/", ""), re.IGNORECASE) or name == "database", name  # fmt: skip
        published = {port["host_ip"] for port in service.get("ports", [])}
        assert published == ({"127.0.0.1"} if name == "api" else set()), name
        if name in workers:
            [device] = service["deploy"]["resources"]["reservations"]["devices"]
            assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert not {"outside"} & (set(services["database"]["networks"]) | set(services["broker"]["networks"]))


def test_compose_starts_commands_that_exist_with_variables_that_are_read(
    services: dict[str, dict[str, Any]],
) -> None:
    ours = {name: service for name, service in services.items() if service["image"].startswith("firstbad-")}
    assert len(ours) == 5
    for name, service in ours.items():
        command_of(service["command"])
        assert set(service["environment"]) <= known_variables(), name
        check = service["healthcheck"]["test"]
        if check[1] == "firstbad":
            command_of(check[2:])
            assert check[-1] == service["command"][-1], "it asks for its own worker"
    # A pool is served by the workers of its Compose profile.
    for name in ("h100-0", "a100-0"):
        command = services[name]["command"]
        assert command[command.index("--queue") + 1] == services[name]["profiles"][0]


def test_compose_refuses_a_file_that_is_wrong(tmp_path: Path) -> None:
    """So that the test above means something."""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DOCKER / "compose.yaml").read_text().replace("healthcheck:", "heathcheck:", 1))
    done = subprocess.run(
        [TOOLS / "docker-compose", "-f", wrong, "config", "-q"], capture_output=True, check=False
    )
    assert done.returncode != 0


def test_the_secrets_that_compose_mounts_are_those_that_the_script_makes(tmp_path: Path) -> None:
    run(DOCKER / "make-secrets.sh", tmp_path)
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    files = {Path(entry["file"]).name for entry in compose["secrets"].values()}
    assert files <= {path.name for path in tmp_path.iterdir()}
    settings = read_settings(
        {
            "FIRSTBAD_HOME": str(tmp_path / "home"),
            "FIRSTBAD_DATABASE_URL_FILE": str(tmp_path / "database_url"),
            "FIRSTBAD_BROKER_URL_FILE": str(tmp_path / "broker_url"),
            "FIRSTBAD_BROKER_CA": str(tmp_path / "broker_ca.pem"),
        }
    )
    # The hosts are names of services, the database is the one that the image makes.
    environment = compose["services"]["database"]["environment"]
    assert settings.database_url.host == "database"
    assert settings.database_url.database == environment["POSTGRES_DB"]
    assert settings.database_url.username == environment["POSTGRES_USER"]
    assert settings.database_url.password == (tmp_path / "database_password").read_text().strip()
    assert settings.broker_url.endswith("@broker:6379/0")
    mounted = re.findall(r"/run/secrets/(\w+)", (DOCKER / "valkey.conf").read_text())
    assert set(mounted) <= set(compose["services"]["broker"]["secrets"])


@pytest.mark.parametrize("name", ["service", "worker"])
def test_the_image_gets_all_that_the_wheel_is_made_of_and_nothing_else(name: str) -> None:
    kept = {
        line[1:]
        for line in (DOCKER / f"{name}.Dockerfile.dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert all((ROOT / path).exists() for path in kept)
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {path.split("/")[0] for path in wheel["packages"]} <= kept
    assert set(wheel.get("force-include", {})) <= kept
    text = (DOCKER / f"{name}.Dockerfile").read_text()
    assert set(re.findall(r"docker/\w+\.lock", text)) <= kept
    assert set(re.findall(r"\bFIRSTBAD_[A-Z_]+", text)) <= known_variables()
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[a-z,]+\])?==([^\s;]+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["service", "worker"])
def test_an_image_installs_what_the_tests_ran_with(name: str) -> None:
    tested, installed = pins(ROOT / "requirements.lock"), pins(DOCKER / f"{name}.lock")
    assert installed.items() <= tested.items()
    assert {"torch", "pytest"}.isdisjoint(installed)
    assert {"celery", "psycopg", "prometheus-client"} <= set(installed)


@pytest.mark.parametrize("path", sorted(DOCKER.glob("systemd/*.service")), ids=lambda path: path.name)
def test_a_unit_starts_a_command_that_exists(path: Path, tmp_path: Path) -> None:
    text = path.read_text()
    [started] = re.findall(r"^ExecStart=/opt/firstbad/bin/firstbad (.*)$", text, re.MULTILINE)
    command_of(started.split())
    named = set(re.findall(r"\bFIRSTBAD_[A-Z_]+(?==)", re.sub(r"(?m)^#.*", "", text)))
    assert named <= known_variables()
    if shutil.which("systemd-analyze"):
        # The program is not installed here, and a template is looked at as an instance.
        unit = tmp_path / path.name.replace("@.", "@gpu0.")
        unit.write_text(text.replace("/opt/firstbad/bin/firstbad", "/bin/true"))
        run("systemd-analyze", "verify", "--man=no", unit)


def test_the_slurm_script_starts_a_command_that_exists() -> None:
    path = DOCKER / "slurm/worker.sbatch"
    run("bash", "-n", path)
    text = path.read_text().replace("\\\n", " ")
    [started] = re.findall(r"firstbad (worker .*)$", text, re.MULTILINE)
    command_of(re.sub(r'"[^"]*"', "word", started).split())
    assert set(re.findall(r"export (FIRSTBAD_\w+)", text)) <= known_variables()


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_are_told(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/firstbad.sqlite")
    database.migrate()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Meter(database))
    told = {family.name for family in registry.collect()}
    told |= {f"{name}_{suffix}" for name in told for suffix in ("total", "bucket")}
    database.close()
    for name in ("dashboard.json", "alerts.yaml"):
        text = (DOCKER / "monitoring" / name).read_text()
        read = json.loads(text) if name.endswith("json") else yaml.safe_load(text)
        assert read, name
        asked = set(re.findall(r"\bfirstbad_[a-z_]+", text))
        assert len(asked) > 5, name
        assert asked <= told, name
    [group] = yaml.safe_load((DOCKER / "monitoring/alerts.yaml").read_text())["groups"]
    assert all(set(rule["annotations"]) == {"summary"} for rule in group["rules"])
    outcomes = re.findall(r'outcome=~?"([\w|]+)"', (DOCKER / "monitoring/alerts.yaml").read_text())
    outcomes = [name for words in outcomes for name in words.split("|")]
    assert set(outcomes) <= set(Outcome)
