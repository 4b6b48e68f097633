"""The probe against a real GPU's allocator, in a few minutes; prints JSON, with the card's name and the date.

usage: python tests/gpu/check_probe.py [--rehearse] [--output FILE]

Runs with any Python that has torch (2.6 or later), from a checkout of this project. Neither Megatron nor
Transformer Engine is needed: the model is a small one in plain torch, laid out as Qwen3-VL-MoE is, and the
answer says which of them were there. Without a GPU it ends with 3 and the words "no GPU". --rehearse runs
can run on the tensors of the host instead, to try the script itself; its answer says so and measures nothing.

Each check runs in a process of its own. Ends with 0 if all hold, 1 if one does not.
"""

import argparse
import datetime
import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "workers" / "probe"), str(ROOT / "benchmarks" / "probe_recipes"), str(ROOT)]
NO_GPU = 3
SECONDS = 150  #: of one check; most take ten
#: Of the peak, that may have been freed by another component than the one that made it.
MOST_MISPLACED = 0.02
SCALE = {"cuda": 4, "host": 1}


class Run:
    """Some steps of the small model under the probe."""

    def __init__(self, where, *, recompute=False, capacity_bytes=None, full=False, prepare=None):
        import torch
        from small_vlm import SmallVlm, batch, configuration

        from firstbad_probe.hooks import Hooks
        from firstbad_probe.observer import Observer
        from firstbad_probe.settings import Settings
        from firstbad_probe.simulated_device import SimulatedDevice

        self.where = where
        self.device = SimulatedDevice() if where == "host" else None
        settings = Settings(Path("nowhere"), "cuda", 1, 2, 1, capacity_bytes=capacity_bytes, full=full)
        self.observer = Observer(settings, self.device)
        Hooks(self.observer).watch_torch()
        if where == "cuda":
            torch.cuda.set_device(0)
        self.observer.choose_device()
        torch.manual_seed(0)
        self.config = configuration(SCALE[where])
        self.model = SmallVlm(self.config, recompute=recompute).to(place(where))
        self.observer.batches.image_token_id = self.config["image_token_id"]
        self.observer.take_model(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)
        self.batch = batch(self.config, place(where), samples=2, sequence=512)
        if prepare is not None:
            prepare(self)
        self.job_peaks, self.wall_seconds = [], []

    def steps(self, count):
        import torch

        for _ in range(count):
            if self.where == "cuda":
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()  # as a job does that logs its own peaks
            began = time.perf_counter()
            self.observer.start_step()
            self.model(**self.batch).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.observer.end_step()
            if self.where == "cuda":
                torch.cuda.synchronize()
                self.job_peaks.append(torch.cuda.max_memory_allocated())
            self.wall_seconds.append(time.perf_counter() - began)
        return self

    def end(self):
        self.observer.finish()
        if self.device is not None:
            self.device.stop()
        return self

    @property
    def peak(self):
        return self.observer.storages.live.peak

    def by_component(self, *categories):
        sums = {}
        for summit in self.observer.storages.live.summits.values():
            found = {}
            for (component, category), size in summit.cells.items():
                if category in categories:
                    found[component] = found.get(component, 0) + size
            for component, size in found.items():
                sums[component] = max(size, sums.get(component, 0))
        return sums


def place(where):
    return "cuda" if where == "cuda" else "cpu"


def probe_against_allocator(where):
    """The job reads the peak of each step from torch, which the probe sets back all the time."""
    run = Run(where).steps(4).end()
    probe = [step["peak_bytes"] for step in run.observer.steps]
    told = {"probe_bytes": probe, "job_bytes": run.job_peaks, "watch": run.observer.watch.to_json()}
    return told | {"passed": where == "host" or probe == run.job_peaks}


def component_sums(where):
    """Cells sum to the peak, and little is in a doubtful row; recompute takes activations away."""
    kept, recomputed = Run(where).steps(3).end(), Run(where, recompute=True).steps(3).end()
    share = kept.observer.watch.counted.misplaced_bytes / kept.peak.allocated_bytes
    activations = [run.by_component("activations").get("experts", 0) for run in (kept, recomputed)]
    return {
        "peak_bytes": kept.peak.allocated_bytes,
        "recomputed_peak_bytes": recomputed.peak.allocated_bytes,
        "instant": kept.peak.instant,
        "cells": {f"{one} {two}": size for (one, two), size in sorted(kept.peak.cells.items())},
        "misplaced_share": share,
        "experts_activations": activations,
        "unseen": recomputed.observer.unseen,
        "passed": sum(kept.peak.cells.values()) == kept.peak.allocated_bytes
        and share <= MOST_MISPLACED
        and recomputed.peak.allocated_bytes < kept.peak.allocated_bytes
        and activations[1] < activations[0],
    }


def seconds(where):
    """Parts sum to the step, and the step is what a clock says that waits for the device."""
    run = Run(where).steps(6).end()
    told = [step["seconds"] for step in run.observer.steps[2:]]
    ratio = statistics.median(one / other for one, other in zip(told, run.wall_seconds[2:], strict=True))
    parts = run.observer.watch.clock.steady_mean()
    return {
        "seconds": told,
        "wall_seconds": run.wall_seconds[2:],
        "median_ratio": ratio,
        "parts": {f"{one} {two}": value for (one, two), value in parts.items()},
        "passed": 0.9 <= ratio <= 1.05 and {"vision", "experts", "optimizer"} <= {one for one, _ in parts},
    }


def out_of_memory(where):
    """Four fifths of what a run needs are allowed to the next; the refusal has its place."""
    import torch

    need = Run(where).steps(2).end()
    needed = need.peak.allocated_bytes if where == "host" else need.observer.watch.counted.reserved_peak_bytes
    del need
    if where == "cuda":
        torch.cuda.empty_cache()
    capacity = int(needed * 0.8)
    raised = ""
    try:
        run = Run(where, capacity_bytes=capacity)
        run.steps(2)
    except torch.OutOfMemoryError as error:
        raised = str(error).split(". ")[0]
    run.end()
    events = run.observer.watch.refusals
    last = events[-1] if events else {}
    return {
        "needed_bytes": needed,
        "capacity_bytes": capacity,
        "raised": raised,
        "event": last,
        "passed": bool(raised and events)
        and last["requested_bytes"] > 0
        and last["phase"] in ("forward", "backward", "step")
        and last["reserved_bytes"] <= capacity + 2 * 2**20,
    }


def compiled_and_captured(where):
    """A compiled tower and, on a GPU, one replayed by a CUDA graph: steps run, and the unseen is told."""
    import torch

    def compile_tower(run):
        run.model.vision_model.compile(backend="aot_eager")

    def capture_tower(run):
        torch.backends.cuda.enable_flash_sdp(True)
        sample = run.batch["pixel_values"]
        run.model.vision_model.merger = torch.cuda.make_graphed_callables(
            run.model.vision_model.merger,
            (
                torch.rand(
                    1,
                    sample.shape[0],
                    run.config["vision_config"]["hidden_size"],
                    device="cuda",
                    requires_grad=True,
                ),
            ),
        )

    if where == "host":
        return {
            "passed": None,
            "note": "not rehearsed: the host's tensors are followed by what a compiler traces",
        }
    compiled = Run(where, prepare=compile_tower).steps(3).end()
    captured = Run(where, prepare=capture_tower).steps(3).end()
    return {
        "compiled": compiled.observer.unseen,
        "captured": captured.observer.unseen,
        "peak_bytes": [compiled.peak.allocated_bytes, captured.peak.allocated_bytes],
        "passed": any("never announced" in told or "fell silent" in told for told in compiled.observer.unseen)
        and len(captured.observer.steps) == 3,
    }


def allocation_history(where):
    """The full mode's rows sum to the peak that the counters saw, but for rounding."""
    if where == "host":
        return {"passed": None, "note": "not rehearsed: only a GPU's allocator keeps a history"}
    run = Run(where, full=True).steps(3)
    run.observer.finish()
    peak = run.peak.allocated_bytes
    told = run.observer.history.to_json(0, 0, peak, lambda file: Path(file).name)
    covered = sum(row["bytes"] for row in told["rows"]) + told["left_out_bytes"]
    known = sum(row["bytes"] for row in told["rows"] if row["path"] != "not known")
    return {
        "peak_bytes": peak,
        "covered_bytes": covered,
        "with_module": known / covered,
        "first_rows": told["rows"][:5],
        "notes": told["notes"],
        "passed": abs(covered - peak) <= 0.02 * peak and known > 0.9 * covered,
    }


def estimate_against_measurement(where):
    """Parameters, gradients and optimizer states by component; activations are shown, not judged.

    The estimate is of Megatron's job: parameters of two bytes and twelve of optimizer states. This one has
    single precision: parameters of four, no master copy, so eight. Activations are those of plain torch's
    kernels here, and of Megatron's there.
    """
    try:
        from memory_models.configurations import read_configuration
        from memory_models.estimation import estimate
        from memory_models.shapes import ImageLoad
    except ImportError as missing:
        return {"passed": None, "note": f"not compared: {missing}"}
    run = Run(where).steps(3).end()
    reading = read_configuration(
        run.config,
        world_size=1,
        images=ImageLoad(patches=128, images=1),
        overrides={"train.micro_batch_size": 2, "train.global_batch_size": 2, "model.seq_length": 512},
    )
    cells = estimate(reading.job).worst.breakdown.to_json()
    rows, worst = [], 0.0
    for category, factor in (("parameters", 2.0), ("gradients", 1.0), ("optimizer_states", 8 / 12)):
        measured = run.by_component(category)
        for cell in (cell for cell in cells if cell["category"] == category):
            expected, found = cell["bytes"] * factor, measured.get(cell["component"], 0)
            error = found / expected - 1
            worst = max(worst, abs(error))
            rows.append([cell["component"], category, int(expected), found, round(error, 4)])
    return {
        "rows": rows,
        "largest_error": worst,
        "activations": {
            "estimated": {c["component"]: c["bytes"] for c in cells if c["category"] == "activations"},
            "measured": run.by_component("activations"),
        },
        "passed": worst <= 0.02,  # each tensor is rounded up to 512 bytes
    }


def counts(where):
    """Tokens that are counted on the device are those of the batch, and nobody waited for them."""
    run = Run(where).steps(2).end()
    step = run.observer.steps[-1]
    images = int((run.batch["input_ids"] == run.config["image_token_id"]).sum())
    loss = int((run.batch["loss_mask"] > 0).sum())
    layers = run.config["text_config"]["num_hidden_layers"]
    routed = run.batch["input_ids"].numel() * run.config["text_config"]["num_experts_per_tok"] * layers
    expected = {"image_tokens": images, "loss_tokens": loss, "expert_tokens": routed}
    found = {name: step[name] for name in expected}
    watch = run.observer.watch
    return {
        "expected": expected,
        "found": found,
        "most_expert_tokens": step["most_expert_tokens"],
        "outside_bytes": watch.outside_bytes,
        "outside_source": watch.outside_source,
        "passed": found == expected and step["most_expert_tokens"] > 0,
    }


def overhead(where):
    """Step time and bytes with the probe, against none, turn about."""
    from overhead_job import measure

    measured = measure(place(where), 5, SCALE[where])
    cheap = measured["modes"]["cheap"]
    passed = None if where == "host" else cheap["ratio"] <= 1.02 and cheap["device_bytes"] <= 2**20
    return measured | {"passed": passed}


CHECKS = {
    check.__name__: check
    for check in (
        probe_against_allocator,
        component_sums,
        seconds,
        counts,
        out_of_memory,
        estimate_against_measurement,
        compiled_and_captured,
        allocation_history,
        overhead,
    )
}


def answer_of(name, where):
    """One check in a process of its own."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--check", name, "--where", where],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        text = done.stdout.strip().rpartition("\n")[2]
        found = json.loads(text) if done.returncode == 0 else {"passed": False, "error": done.stderr[-2000:]}
    except subprocess.TimeoutExpired:
        found = {"passed": False, "error": f"it took longer than {SECONDS} s"}
    return {"check": name, "took_seconds": round(time.perf_counter() - began, 1), **found}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--check", choices=sorted(CHECKS), help=argparse.SUPPRESS)
    parser.add_argument("--where", choices=("cuda", "host"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        print(json.dumps(CHECKS[options.check](options.where)))
        return 0
    try:
        import torch
    except ImportError:
        print("no torch in this Python: run it with the one of the training environment", file=sys.stderr)
        return NO_GPU
    if not options.rehearse and not torch.cuda.is_available():
        print("no GPU: nothing was checked (--rehearse tries the script itself)", file=sys.stderr)
        return NO_GPU
    where = "host" if options.rehearse else "cuda"
    checks = [answer_of(name, where) for name in CHECKS]
    answer = {
        "card": torch.cuda.get_device_name() if where == "cuda" else "none: a rehearsal, no measurement",
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "transformer_engine": importlib.util.find_spec("transformer_engine") is not None,
        "megatron_core": importlib.util.find_spec("megatron") is not None,
        "rehearsal": options.rehearse,
        "passed": all(check["passed"] is not False for check in checks),
        "checks": checks,
    }
    text = json.dumps(answer, indent=1)
    print(text)
    if options.output:
        options.output.write_text(text + "\n", encoding="utf-8")
    return 0 if answer["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
