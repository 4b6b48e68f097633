"""The profiles that ship with firstbad: composed from what is known of upstream's history.

The facts stand in `catalogue/*.yaml`: eras, data, models, names over time. What is composed here is a
plain profile, to be copied into an installation's catalogue and changed there; nothing is looked up in
this package when a trial runs. None of the GPU profiles was run: each says so in its description.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from bisection.adapters.profiles import Profile
from workers.launching import filled

#: Ranks, and GPUs, of one host.
_GPUS_PER_HOST = 8
_DEFAULT_DATA = "local"
_UNTESTED = "Untested: no GPU was to be had."
_NOTES = (
    "The checkpoint gives the router its real imbalance, which memory follows. One interpreter serves the "
    "range: a change of upstream's base image needs another profile. These are library recipes; benchmark "
    "recipes (perf_recipes) start the process anew and lose the probe."
)
#: 80 GiB, what an H100 is sold with; an installation writes what its own devices hold.
_CAPACITY_BYTES = 80 * 2**30


class NotShipped(ValueError):
    """No profile of that name ships with firstbad."""


def names() -> tuple[str, ...]:
    """All of them: a model's name alone trains on local data, a suffix names other data."""
    table = _table()
    suffixes = ["", *(f"-{data}" for data in table["data"] if data != _DEFAULT_DATA)]
    of_bridge = [model + suffix for model in table["models"] for suffix in suffixes]
    return (*of_bridge, f"nemo-rl-{next(iter(table['models']))}", "torchrun")


def shipped(name: str) -> Profile:
    """Raises NotShipped."""
    if name not in names():
        raise NotShipped(f"no profile {name!r} ships with firstbad; there are: {', '.join(names())}")
    if name == "torchrun":
        return Profile.model_validate(_read("torchrun.yaml"))
    table = _table()
    repository = "nemo-rl" if name.startswith("nemo-rl-") else "megatron-bridge"
    rest = name.removeprefix("nemo-rl-")
    model = next(model for model in table["models"] if rest == model or rest.startswith(f"{model}-"))
    data = rest.removeprefix(model).removeprefix("-") or _DEFAULT_DATA
    return Profile.model_validate(_composed(name, table, repository, model, data))


def repositories_of(profile: Profile) -> dict[str, dict[str, Any]]:
    """The repositories that the profile needs to be registered: its own, and those that it pins."""
    table: dict[str, Any] = _table()["repositories"]
    found: dict[str, dict[str, Any]] = {}
    waiting = [profile.repository]
    while waiting:
        name = waiting.pop()
        if name in table and name not in found:
            found[name] = {"name": name, **table[name]}
            waiting += found[name].get("pins", {}).values()
    return found


def as_yaml(profile: Profile) -> str:
    """The profile as a file of the catalogue, with the repositories it needs in comments above it."""
    head = [
        f"# profiles/{profile.name}.yaml, as firstbad ships it. Change what stands under places and data."
    ]
    for name, entry in repositories_of(profile).items():
        head += [f"#\n# repositories/{name}.yaml:"]
        head += [f"#   {line}" for line in yaml.safe_dump(entry, sort_keys=False).splitlines()]
    row = profile.model_dump(mode="json", exclude_defaults=True)
    order = ["name", "description", "repository", "places", "data"]
    row = {name: row[name] for name in [*order, *(key for key in row if key not in order)] if name in row}
    return "\n".join(head) + "\n\n" + yaml.safe_dump(row, sort_keys=False, width=110, allow_unicode=True)


def _composed(
    name: str, table: Mapping[str, Any], repository: str, model_name: str, data_name: str
) -> dict[str, Any]:
    model, data = table["models"][model_name], table["data"][data_name]
    layouts = table["layouts"][repository]
    row: dict[str, Any] = {
        "name": name,
        "description": f"{_UNTESTED} {model['about']}; on {data['about']}. {_NOTES}",
        "repository": repository,
        "relevant_paths": table["relevant_paths"][repository],
        "environment": {"kind": "interpreter", "python": "/opt/venv/bin/python"},
        "launch": [a for layout in layouts for a in _adapters(table, layout, model, data)],
        "renamed": _renamed(table, layouts),
        "places": {
            "checkpoint": f"/srv/firstbad/checkpoints/{model_name}",
            "hf_home": "/srv/firstbad/huggingface",
        },
        "data": {"kind": "real", "path": data.get("path")},
        "steps": 5,
        "device": "cuda",
        "gpus": model["nodes"] * _GPUS_PER_HOST,
        "queue": "local",
        "capacity_bytes": _CAPACITY_BYTES,
        "limits": {"trial_seconds": 3600},
        "criterion": {"kind": "out_of_memory"},
        "expected_imports": table["expected_imports"][repository],
    }
    if model["nodes"] > 1:
        row["slurm"] = {"nodes": model["nodes"], "options": [f"--gres=gpu:{_GPUS_PER_HOST}", "--exclusive"]}
    return row


def _adapters(
    table: Mapping[str, Any], layout: Mapping[str, Any], model: Mapping[str, Any], data: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Oldest first, as a profile wants them. Eras from before the model's first recipe are left out."""
    recipes: list[str] = []
    inside = "first" not in layout
    for era in table["eras"]:
        recipes = model["recipes"].get(era["name"], recipes)
        inside = inside or era["name"] == layout.get("first")
        if inside:
            for recipe in recipes:
                for source in data["eras"][era["name"]]:
                    yield _adapter(table, layout, era, model, recipe, data, source)
        inside = inside and era["name"] != layout.get("last")


def _adapter(
    table: Mapping[str, Any],
    layout: Mapping[str, Any],
    era: Mapping[str, Any],
    model: Mapping[str, Any],
    recipe: str,
    data: Mapping[str, Any],
    source: Mapping[str, Any],
) -> dict[str, Any]:
    tree: str = layout["tree"]
    recipe_file = era.get("recipe_file", model["recipe_file"])
    has_recipe = {"file_contains": {recipe_file: recipe}}
    when = _joined(*(_moved(part, tree) for part in (era["when"], has_recipe, source.get("when", {}))))
    row: dict[str, Any] = {"name": era["name"], "when": _joined(when, layout.get("when", {}))}
    if "refused" in source:
        return {**row, "refused": source["refused"]}
    launcher = table["launchers"][era["launcher"]]
    words = {"{recipe}": recipe, "{processor}": model["processor"], "{batch}": str(model["batch"])}
    command = [
        *("{python}", "-m", "firstbad_probe", tree + era.get("script", "scripts/training/run_recipe.py")),
        *launcher["arguments"],
        *source.get("arguments", []),
        *(*launcher.get("overrides", []), *era.get("overrides", [])),
        *(*table["overrides"], "train.global_batch_size={batch}"),
        *model.get("overrides", []),
        *source.get("overrides", []),
    ]
    return {
        **row,
        "command": [filled(word, words) for word in command],
        "processes": _GPUS_PER_HOST,
        "python_path": [f"{tree}src", layout["core"].removesuffix("/")],
        "env": {**table["env"], **data.get("env", {})},
    }


def _renamed(table: Mapping[str, Any], layouts: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for setting in table["renamed"]:
        places = {
            file.replace("{tree}", layout["tree"]).replace("{core}", layout["core"]): None
            for layout in layouts
            for file in setting["files"]
        }
        rows.append({**setting, "files": list(places)})
    return rows


def _moved(when: Mapping[str, Any], tree: str) -> dict[str, Any]:
    """The same condition where the repository lies in a folder of another."""
    return {
        kind: {tree + path: text for path, text in wanted.items()}
        if isinstance(wanted, dict)
        else [tree + path for path in wanted]
        for kind, wanted in when.items()
    }


def _joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for part in parts:
        for kind, wanted in part.items():
            if isinstance(wanted, dict):
                result[kind] = {**result.get(kind, {}), **wanted}
            else:
                result[kind] = [*result.get(kind, []), *wanted]
    return result


@cache
def _table() -> dict[str, Any]:
    return _read("megatron_bridge.yaml")


def _read(name: str) -> dict[str, Any]:
    text = (files("firstbad") / "catalogue" / name).read_text(encoding="utf-8")
    row: dict[str, Any] = yaml.safe_load(text)
    return row
