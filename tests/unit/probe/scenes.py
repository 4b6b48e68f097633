"""Small torch programs under the probe's accounting; run by the tests in a training environment.

Each function plays one scene and answers plain data. The sizes are powers of
two above 512 bytes, so that the expected bytes can be worked out by hand.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from firstbad_probe.allocations import of_blocks, rows_of
from firstbad_probe.batch import Batches, count_padding, is_noise, padding_id_of
from firstbad_probe.components import LOSS, Scope
from firstbad_probe.configuration import to_plain
from firstbad_probe.hooks import Hooks
from firstbad_probe.observer import Observer
from firstbad_probe.record import invalid_reasons
from firstbad_probe.scopes import FORWARD, STEP
from firstbad_probe.settings import Settings

TOKENS, WIDTH, INNER = 64, 16, 32
MATRIX = TOKENS * WIDTH * 4  #: bytes of [TOKENS, WIDTH] in single precision


class Square(torch.autograd.Function):
    """As fused kernels come: a function of its own, which saves its input."""

    @staticmethod
    def forward(ctx: Any, inner: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inner)
        return inner * inner

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (inner,) = ctx.saved_tensors
        return 2 * gradient * inner


class Expert(torch.nn.Module):
    """Saves for backward: its input, the inner matrix, and its square (of INNER columns each)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1 = torch.nn.Linear(WIDTH, INNER, bias=False)
        self.linear_fc2 = torch.nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = self.linear_fc1(hidden)
        return self.linear_fc2(inner * inner)


class Routed(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.router = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.experts = Expert()
        self.how = how

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.how == "kept":
            return self.experts(hidden)
        return checkpoint(self.experts, hidden, use_reentrant=self.how == "reentrant")


class Layer(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.self_attention = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = Routed(how)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.mlp(self.self_attention(hidden))


class Language(torch.nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.embedding = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.decoder = torch.nn.ModuleList([Layer(how), Layer(how)])
        self.output_layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(hidden)
        for layer in self.decoder:
            hidden = layer(hidden)
        return self.output_layer(hidden)


class Tower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.merger = torch.nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.merger(torch.tanh(self.block(pixels)))


class Model(torch.nn.Module):
    def __init__(self, how: str = "kept") -> None:
        super().__init__()
        self.vision_model = Tower()
        self.language_model = Language(how)

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return self.language_model(self.vision_model(pixel_values))


def observer(capacity_bytes: int | None = None, *, lists: bool = False) -> Observer:
    settings = Settings(
        directory=Path("/nonexistent"),
        device="cpu",
        rank=1,
        world_size=2,
        local_world_size=2,
        capacity_bytes=capacity_bytes,
        lists_storages=lists,
    )
    return Observer(settings)


@contextmanager
def observed(capacity_bytes: int | None = None, *, lists: bool = False) -> Any:
    watch = observer(capacity_bytes, lists=lists)
    Hooks(watch).watch_torch()
    watch.storages.start()
    try:
        yield watch
    finally:
        watch.storages.stop()


def cells(watch: Observer, *, peak: bool = False, summit: str = "") -> dict[str, int]:
    watch.storages.settle()
    live = watch.storages.live
    held = live.summits[summit].cells if summit else (live.peak.cells if peak else live.cells)
    return {f"{component} {category}": size for (component, category), size in held.items() if size}


def train(model: torch.nn.Module, watch: Observer, pixels: torch.Tensor) -> None:
    watch.start_step()
    model(pixel_values=pixels).square().mean().backward()
    watch.storages.begin_phase(STEP, LOSS)


def views_and_frees() -> dict[str, Any]:
    with observed() as watch:
        live = watch.storages.live
        totals = []
        for size in (1, 128, 129):
            tensor = torch.zeros(size)
            totals.append(live.total_bytes)
            del tensor
            watch.storages.settle()
        whole = torch.zeros(TOKENS, WIDTH)
        view = whole.view(-1)[:8]
        with_view = live.total_bytes
        del whole
        watch.storages.settle()
        view_alone = live.total_bytes
        del view
        watch.storages.settle()
        return {"rounded": totals, "with_view": with_view, "view_alone": view_alone, "end": live.total_bytes}


def resized_storages() -> list[int]:
    with observed() as watch:
        tensor = torch.zeros(TOKENS, WIDTH)
        totals = [watch.storages.live.total_bytes]
        tensor.untyped_storage().resize_(0)
        totals.append(watch.storages.live.total_bytes)
        tensor.untyped_storage().resize_(2 * MATRIX)
        totals.append(watch.storages.live.total_bytes)
        tensor.resize_(4 * TOKENS, WIDTH)
        totals.append(watch.storages.live.total_bytes)
        tensor.data = torch.zeros(TOKENS, WIDTH)
        watch.storages.settle()
        totals.append(watch.storages.live.total_bytes)
        return totals


def frees_on_another_thread() -> int:
    with observed() as watch:
        held = [torch.zeros(TOKENS, WIDTH) for _ in range(100)]
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        watch.storages.settle()
        return watch.storages.live.total_bytes


def host_memory() -> list[int]:
    with observed() as watch:
        with watch.scopes.on_host(LOSS):
            batch = torch.ones(TOKENS, WIDTH)
        totals = [watch.storages.live.total_bytes]
        moved = watch.storages.to_device(batch)
        totals.append(watch.storages.live.total_bytes)
        same = watch.storages.to_device(moved)
        totals += [watch.storages.live.total_bytes, int(same is moved)]
        return totals


def activations_by_component(how: str) -> dict[str, Any]:
    """The cells at the end of forward, and at the peak of the whole step."""
    torch.manual_seed(0)
    with observed() as watch:
        model = Model(how)
        watch.take_model(model)
        watch.start_step()
        output = model(pixel_values=torch.randn(TOKENS, WIDTH))
        forward = cells(watch)
        output.square().mean().backward()
        del output
        watch.storages.begin_phase(STEP, LOSS)
        summit = watch.storages.live.peak
        return {
            "forward": forward,
            "backward": cells(watch),
            "peak": cells(watch, peak=True),
            "peak_bytes": summit.allocated_bytes,
            "instant": summit.instant,
        }


def listed_storages() -> dict[str, Any]:
    torch.manual_seed(0)
    with observed(lists=True) as watch:
        model = Model()
        watch.take_model(model)
        watch.start_step()
        output = model(pixel_values=torch.randn(TOKENS, WIDTH)).square().mean()
        forward = cells(watch)
        output.backward()
        del output
        watch.storages.begin_phase(STEP, LOSS)
        return {
            **watch.storages.listed(),
            "forward_cells": forward,
            "peak_cells": cells(watch, peak=True),
            "forward_summit": cells(watch, summit=FORWARD),
            "unasked": observer().storages.listed(),
        }


def located_storages() -> dict[str, Any]:
    """What the full mode tells of a CPU."""
    torch.manual_seed(0)
    settings = replace(observer().settings, full=True)
    watch = Observer(settings)
    Hooks(watch).watch_torch()
    watch.storages.start()
    model = Model()
    watch.take_model(model)
    watch.start_step()
    model(pixel_values=torch.randn(TOKENS, WIDTH)).square().mean().backward()
    watch.storages.begin_phase(STEP, LOSS)
    behind = watch.storages.behind_peak() or []
    watch.storages.stop()
    told = rows_of(of_blocks(behind, lambda file: Path(file).name))
    return {**told, "peak_bytes": watch.storages.live.peak.allocated_bytes}


def kept_batches() -> dict[str, Any]:
    """Two steps; whoever feeds the model keeps the first step's batch, and lets go of the second's."""
    torch.manual_seed(0)
    with observed() as watch:
        model = Model()
        watch.take_model(model)
        kept = torch.randn(TOKENS, WIDTH)
        watch.start_step()
        model(pixel_values=kept).square().mean().backward()
        watch.end_step()
        watch.start_step()
        model(pixel_values=torch.randn(TOKENS, WIDTH)).square().mean().backward()
        watch.end_step()
        return {"after": cells(watch), "retained": len(watch.retained), "kept": kept.nbytes}


def temporaries() -> dict[str, int]:
    """A peak inside forward, from a matrix that nothing keeps."""

    class Wasteful(torch.nn.Module):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                scores = hidden.repeat(64, 1)
                return hidden + scores.mean()

    model = torch.nn.Module()
    model.vision_model = Wasteful()
    with observed() as watch:
        watch.take_model(model)
        watch.storages.begin_phase(FORWARD, LOSS)
        hidden = model.vision_model(torch.zeros(TOKENS, WIDTH))
        watch.storages.settle()
        answer = cells(watch, peak=True)
        del hidden
        return answer


def replayed_group() -> dict[str, int]:
    """Two blocks recomputed as one; each keeps what its own function saves and makes."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return Square.apply(self.linear(hidden))

    model = torch.nn.Module()
    model.vision_model = torch.nn.Sequential(Block(), Block())
    with observed() as watch:
        watch.take_model(model)
        watch.start_step()
        watch.storages.begin_phase(FORWARD, LOSS)
        hidden = torch.zeros(TOKENS, WIDTH, requires_grad=True)
        checkpoint(model.vision_model, hidden, use_reentrant=True).sum().backward()
        watch.storages.begin_phase(STEP, LOSS)
        return cells(watch, peak=True)


def replayed_outside_of_modules() -> dict[str, int]:
    """A recomputed function goes on after its module has ended; that part has a backward too."""

    class Around(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return checkpoint(
                lambda inner: self.linear(inner.sin()).repeat(8, 1).sin(), hidden, use_reentrant=True
            )

    model = torch.nn.Module()
    model.vision_model = Around()
    with observed() as watch:
        watch.take_model(model)
        watch.start_step()
        watch.storages.begin_phase(FORWARD, LOSS)
        model.vision_model(torch.zeros(TOKENS, WIDTH, requires_grad=True)).sum().backward()
        watch.storages.begin_phase(STEP, LOSS)
        return cells(watch, peak=True)


def optimizer_states() -> dict[str, Any]:
    torch.manual_seed(0)
    with observed() as watch:
        model = Model()
        watch.take_model(model)
        optimizer = torch.optim.Adam(model.parameters())
        train(model, watch, torch.randn(TOKENS, WIDTH))
        gradients = cells(watch)
        optimizer.step()
        states = cells(watch)
        optimizer.zero_grad(set_to_none=True)
        return {"gradients": gradients, "states": states, "cleared": cells(watch)}


def refusal(capacity_bytes: int) -> dict[str, Any]:
    torch.manual_seed(0)
    with observed(capacity_bytes) as watch:
        try:
            model = Model()
            watch.take_model(model)
            train(model, watch, torch.randn(TOKENS, WIDTH))
        except torch.OutOfMemoryError as error:
            return {**vars(watch.storages.refusal), "message": str(error)}
    return {"peak": watch.storages.live.peak.allocated_bytes}


def an_interrupted_module() -> str:
    class Failing(torch.nn.Module):
        def forward(self, _: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    model = torch.nn.Module()
    model.vision_model = torch.nn.Sequential(torch.nn.Sequential(Failing()))
    with observed() as watch:
        watch.take_model(model)
        watch.storages.begin_phase(FORWARD, LOSS)
        try:
            model.vision_model(torch.zeros(1))
        except RuntimeError:
            return watch.scopes.here().path
    return "nothing failed"


def seconds() -> dict[str, Any]:
    torch.manual_seed(0)
    with observed() as watch:
        model = Model()
        watch.take_model(model)
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            watch.start_step()
            model(pixel_values=torch.randn(TOKENS, WIDTH)).square().mean().backward()
            optimizer.step()
            watch.end_step()
    parts = {f"{activity} {phase}": value for (activity, phase), value in watch.clock.steady_mean().items()}
    return {"parts": parts, "steps": [step["seconds"] for step in watch.steps]}


def between_synchronisation_and_update() -> dict[str, float]:
    """A job that pauses between the two, and once more after the update."""
    schedules = SimpleNamespace(finalize_model_grads=lambda: None)
    optimizers = SimpleNamespace(
        get_megatron_optimizer=lambda: SimpleNamespace(step=lambda: time.sleep(0.01))
    )
    with observed() as watch:
        Hooks(watch)._hook_gradient_sync(schedules)
        Hooks(watch)._hook_optimizer(optimizers)
        optimizer = optimizers.get_megatron_optimizer()
        watch.start_step()
        schedules.finalize_model_grads()
        time.sleep(0.05)
        optimizer.step()
        time.sleep(0.05)
        watch.end_step()
    return {activity: value for (activity, _), value in watch.clock.steps[0].items()}


def batches() -> dict[str, Any]:
    tokens = torch.tensor([[5, 0, 9, 9, 7, 0, 0, 0], [5, 6, 7, 8, 9, 9, 9, 3]])
    seen = Batches(image_token_id=9)
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(64, 1536, generator=generator)
    gradient = noise + torch.linspace(0, 1, 64)[:, None]
    seen.see(
        {
            "input_ids": tokens,
            "loss_mask": torch.tensor([[0, 0, 0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1, 1]]),
            "image_grid_thw": torch.tensor([[1, 2, 4], [1, 4, 4]]),
            "pixel_values": gradient,
        },
        counted=True,
    )
    answer: dict[str, Any] = {
        **seen.take_counts()(),
        "images": seen.images,
        "real": seen.real,
        "padding": int(count_padding(tokens, frozenset({0}))),
        "noise": is_noise(noise),
        "gradient": is_noise(gradient),
    }
    whole = torch.rand(2, 3, 64, 64, generator=generator)
    shaded = whole + torch.linspace(0, 1, 64)[:, None]
    for name, images in (("whole_noise", whole), ("whole_shaded", shaded)):
        of_images = Batches()
        of_images.see({"input_ids": tokens, "images": images}, counted=True)
        answer[name] = [of_images.images, of_images.real]
    constant = Batches()
    constant.see({"input_ids": tokens, "pixel_values": torch.ones(4, 1536)}, counted=True)
    text = Batches()
    text.see({"input_ids": tokens}, counted=True)
    unseen = Batches()
    unseen.see({"tokens_of_another_name": tokens}, counted=True)
    answer["constant"] = constant.reasons()
    answer["text"] = text.reasons()
    answer["unseen"] = sorted(unseen.notes)
    tokenizer = SimpleNamespace(pad_token_id=7)
    conversations = SimpleNamespace(_processor=SimpleNamespace(tokenizer=tokenizer))
    answer["padding_ids"] = [
        padding_id_of(SimpleNamespace(_dataset=conversations)),
        padding_id_of(SimpleNamespace(dataset=SimpleNamespace(tokenizer=tokenizer))),
        padding_id_of(iter([])),
    ]
    return answer


def doubtful_configuration() -> dict[str, Any]:
    """Mock data by class, and routing that is forced."""
    mock = type("MockVLMConversationProvider", (), {})()
    watch = observer()
    model = SimpleNamespace(image_token_id=9, moe_router_force_load_balancing=True)
    for _ in range(2):
        watch.see_configuration(SimpleNamespace(model=model, dataset=mock))
    settings = replace(watch.settings, require_real_data=True, minimum_steps=0)
    return {"notes": watch.notes, "invalid": invalid_reasons(settings, watch, {}, None)}


def plain_configuration() -> Any:
    settings = Settings(directory=Path("there"), device="cpu", rank=0, world_size=1, local_world_size=1)
    return to_plain(
        {
            "settings": settings,
            "dtype": torch.bfloat16,
            "scope": Scope,
            "function": torch.nn.functional.silu,
            "infinite": float("inf"),
            "set": {2, 1},
            "object": object(),
        }
    )


SCENES: dict[str, Callable[[], Any]] = {
    "views": views_and_frees,
    "resized": resized_storages,
    "threads": frees_on_another_thread,
    "host": host_memory,
    "kept": lambda: activations_by_component("kept"),
    "reentrant": lambda: activations_by_component("reentrant"),
    "not reentrant": lambda: activations_by_component("not reentrant"),
    "listed": listed_storages,
    "located": located_storages,
    "kept batches": kept_batches,
    "temporaries": temporaries,
    "replayed group": replayed_group,
    "replayed outside": replayed_outside_of_modules,
    "optimizer": optimizer_states,
    "refused in build": lambda: refusal(4 * 1024),
    "refused in forward": lambda: refusal(64 * 1024),
    "refused in backward": lambda: refusal(100 * 1024),
    "not refused": lambda: refusal(2**30),
    "interrupted": an_interrupted_module,
    "seconds": seconds,
    "pauses": between_synchronisation_and_update,
    "batches": batches,
    "doubtful": doubtful_configuration,
    "configuration": plain_configuration,
}


def play(name: str) -> Any:
    return SCENES[name]()


if __name__ == "__main__":
    # A process for each scene: hooks on torch itself stay for the life of a process.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = dict(zip(SCENES, pool.map(play, SCENES, chunksize=1), strict=True))
    json.dump(answers, sys.stdout)
