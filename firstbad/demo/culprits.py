"""What makes training need more memory, and is not undone: the culprits of the demo.

A capacity lies half-way between the highest peak of a good commit and the peak
of the culprit. Both are figures of a measurement: live bytes at the peak of three
steps under the probe, on a CPU, with torch 2.13.0, megatron-core 0.16.1,
megatron-bridge 0.3.1 and transformers 4.57.6. They do not depend on how the
router spreads the tokens, since one rank holds all experts. In MiB:

=============================  =====  =============
start                          peak   highest decoy
=============================  =====  =============
as the templates are           356.9  371.3
experts not recomputed         404.2  418.6
projector frozen, three taps   337.6  351.6
whole photographs              423.1  437.5
=============================  =====  =============

========================  =====  ================  ===================
culprit                   peak   its component by  the next largest by
========================  =====  ================  ===================
experts-not-recomputed    404.2  47.8              0.0
wider-experts             404.9  48.0              0.0
more-experts-a-token      452.4  48.2              0.0
expert-log                424.9  68.0              0.0
more-pixels               423.1  60.8              5.4 (projector)
somewhat-more-pixels      407.6  46.5              4.1 (projector)
two-photographs           403.5  42.8              3.8 (projector)
mirrored-view             403.5  42.8              3.8 (projector)
three-taps                396.8  39.9              0.0
four-taps                 416.8  59.9              0.1 (decoder)
wide-projector            443.0  86.1              0.0
projector-trained         396.8  59.2              0.0
attention-not-recomputed  407.2  50.2              0.0
attention-log             420.9  64.0              0.0
larger-photographs        496.8  67.7              6.0 (projector)
========================  =====  ================  ===================
"""

from __future__ import annotations

from dataclasses import dataclass

from firstbad.demo.edits import Change, Edit, make_file
from memory_models.breakdown import MIB, Component


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """An edit that makes memory grow, where the bytes go, and what the history starts from."""

    edit: Edit
    component: Component
    capacity_bytes: int  #: above the peak of every good commit, below that of every bad one
    start: tuple[Edit, ...] = ()  #: applied to the templates before the first commit
    clipped: bool = True  #: whether `max_pixels` cuts the photographs down at the start


def _recipe(name: str, subject: str, why: str, old: str, new: str) -> Edit:
    return Edit(
        name=name, subject=subject, why=why, changes=(Change(path="recipes/nightly.py", old=old, new=new),)
    )


def _model(name: str, subject: str, why: str, old: str, new: str) -> Edit:
    return Edit(name=name, subject=subject, why=why, changes=(Change(path="vlm/model.py", old=old, new=new),))


def _hooked(name: str, subject: str, why: str, module: str, text: str) -> Edit:
    """A new module of `vlm/` whose `attach` is called on the model before it is wrapped."""
    hook = "    result.register_pre_wrap_hook(telemetry.attach)\n"
    return Edit(
        name=name,
        subject=subject,
        why=why,
        changes=(
            make_file(f"vlm/{module}.py", text),
            Change(
                path="vlm/model.py",
                old="from vlm import telemetry\n",
                new=f"from vlm import {', '.join(sorted([module, 'telemetry']))}\n",
            ),
            Change(
                path="vlm/model.py",
                old=hook,
                new=f"{hook}    result.register_pre_wrap_hook({module}.attach)\n",
            ),
        ),
    )


_RECOMPUTED = 'provider.recompute_modules = ["core_attn", "moe"]'
_TAPS = '"deepstack_visual_indexes": [1],'
_PHOTOGRAPHS = "max_pixels=288 * 288,"

_EXPERTS_NOT_RECOMPUTED = _recipe(
    "experts-not-recomputed",
    "Recompute attention only",
    "The experts' second forward pass costs a tenth of a step.",
    _RECOMPUTED,
    'provider.recompute_modules = ["core_attn"]',
)
_ATTENTION_NOT_RECOMPUTED = _recipe(
    "attention-not-recomputed",
    "Recompute the experts only",
    "The scores are small at this sequence length.",
    _RECOMPUTED,
    'provider.recompute_modules = ["moe"]',
)

_DEAD_EXPERTS = '''"""What the experts compute, kept for the log line after a step: some seem to have died."""

import torch

#: Module path of an expert's layer to its input and output in the latest forward pass.
seen: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}


def attach(chunks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    for chunk in chunks:
        for path, module in chunk.named_modules():
            if ".experts." in path and path.endswith((".linear_fc1", ".linear_fc2")):
                module.register_forward_hook(_keep(path))
    return chunks


def _keep(path: str):
    def hook(_module, inputs, output):
        seen[path] = (inputs[0].detach(), output[0].detach())

    return hook
'''

_ATTENTION_ENTROPY = '''"""How sharp the attention is, head by head: kept for the log line after a step."""

import torch

#: Module path of an attention's softmax to its probabilities in the latest forward pass.
probabilities: dict[str, torch.Tensor] = {}


def attach(chunks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    for chunk in chunks:
        for path, module in chunk.named_modules():
            if path.endswith(".core_attention.scale_mask_softmax"):
                module.register_forward_hook(_keep(path))
    return chunks


def _keep(path: str):
    def hook(_module, _inputs, output):
        probabilities[path] = output.detach()

    return hook
'''

_WIDE_PROJECTOR = '''"""A projector with a hidden layer that is wider than the four patches it merges."""

import torch

WIDENING = 3  #: times the width of four patches


def attach(chunks: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Give every merger of the vision tower, the deepstack ones too, new and wider layers."""
    for chunk in chunks:
        for module in chunk.modules():
            if type(module).__name__.endswith("VisionPatchMerger"):
                merged, out = module.linear_fc1.in_features, module.linear_fc2.out_features
                module.linear_fc1 = torch.nn.Linear(merged, WIDENING * merged)
                module.linear_fc2 = torch.nn.Linear(WIDENING * merged, out)
    return chunks
'''

_FROZEN_PROJECTOR = (
    _recipe(
        "start-with-a-frozen-projector",
        "",
        "",
        "provider.freeze_vision_projection = False",
        "provider.freeze_vision_projection = True",
    ),
    _model("start-with-three-taps", "", "", _TAPS, '"deepstack_visual_indexes": [0, 1, 2],'),
)

EXPERTS = (
    Culprit(
        edit=_EXPERTS_NOT_RECOMPUTED,
        component=Component.EXPERTS,
        capacity_bytes=388 * MIB,
    ),
    Culprit(
        edit=_model(
            "wider-experts",
            "Widen the experts",
            "The loss is still falling when the night ends: the experts are too narrow.",
            '"moe_intermediate_size": 640,',
            '"moe_intermediate_size": 896,',
        ),
        component=Component.EXPERTS,
        capacity_bytes=388 * MIB,
    ),
    Culprit(
        edit=_model(
            "more-experts-a-token",
            "Send every token to four experts",
            "",
            '"num_experts_per_tok": 2,',
            '"num_experts_per_tok": 4,',
        ),
        component=Component.EXPERTS,
        capacity_bytes=436 * MIB,
        start=(_EXPERTS_NOT_RECOMPUTED,),
    ),
    Culprit(
        edit=_hooked(
            "expert-log",
            "Log what the experts compute",
            "Two experts of the second layer seem to have died.",
            "dead_experts",
            _DEAD_EXPERTS,
        ),
        component=Component.EXPERTS,
        capacity_bytes=398 * MIB,
    ),
)

VISION = (
    Culprit(
        edit=_recipe(
            "more-pixels",
            "Leave the photographs their size",
            "Captions name things that nobody can see at 288 pixels.",
            _PHOTOGRAPHS,
            "max_pixels=448 * 448,",
        ),
        component=Component.VISION,
        capacity_bytes=397 * MIB,
    ),
    Culprit(
        edit=_recipe(
            "somewhat-more-pixels",
            "Scale the photographs down less",
            "",
            _PHOTOGRAPHS,
            "max_pixels=416 * 416,",
        ),
        component=Component.VISION,
        capacity_bytes=389 * MIB,
    ),
    Culprit(
        edit=_recipe(
            "two-photographs",
            "Show two photographs a sample",
            "",
            "images_per_sample=1,",
            "images_per_sample=2,",
        ),
        component=Component.VISION,
        capacity_bytes=387 * MIB,
    ),
    Culprit(
        edit=Edit(
            name="mirrored-view",
            subject="Show each photograph mirrored as well",
            why="The left and the right of a scene were mixed up in the answers.",
            changes=(
                Change(
                    path="vlm/data.py",
                    old="        images = [photograph.image for photograph in chosen]\n",
                    new="        images = [photograph.image for photograph in chosen]\n"
                    "        images += [ImageOps.mirror(image) for image in images]\n",
                ),
                Change(
                    path="vlm/data.py",
                    old="from megatron.bridge.training.utils.visual_inputs import Qwen2_5_VLVisualInputs\n",
                    new="from megatron.bridge.training.utils.visual_inputs import Qwen2_5_VLVisualInputs\n"
                    "from PIL import ImageOps\n",
                ),
            ),
        ),
        component=Component.VISION,
        capacity_bytes=387 * MIB,
    ),
)

PROJECTOR = (
    Culprit(
        edit=_model(
            "three-taps",
            "Feed three layers of the vision tower into the decoder",
            "As the published model does.",
            _TAPS,
            '"deepstack_visual_indexes": [0, 1, 2],',
        ),
        component=Component.PROJECTOR,
        capacity_bytes=384 * MIB,
    ),
    Culprit(
        edit=_model(
            "four-taps",
            "Feed every layer of the vision tower into the decoder",
            "",
            _TAPS,
            '"deepstack_visual_indexes": [0, 1, 2, 3],',
        ),
        component=Component.PROJECTOR,
        capacity_bytes=394 * MIB,
    ),
    Culprit(
        edit=_hooked(
            "wide-projector",
            "Widen the projector's hidden layer",
            "",
            "wide_projector",
            _WIDE_PROJECTOR,
        ),
        component=Component.PROJECTOR,
        capacity_bytes=407 * MIB,
    ),
    Culprit(
        edit=_recipe(
            "projector-trained",
            "Train the projector too",
            "",
            "provider.freeze_vision_projection = True",
            "provider.freeze_vision_projection = False",
        ),
        component=Component.PROJECTOR,
        capacity_bytes=374 * MIB,
        start=_FROZEN_PROJECTOR,
    ),
)

DECODER = (
    Culprit(
        edit=_ATTENTION_NOT_RECOMPUTED,
        component=Component.DECODER,
        capacity_bytes=389 * MIB,
    ),
    Culprit(
        edit=_hooked(
            "attention-log",
            "Log how sharp the attention is",
            "",
            "attention_entropy",
            _ATTENTION_ENTROPY,
        ),
        component=Component.DECODER,
        capacity_bytes=396 * MIB,
    ),
)

PIN = (
    Culprit(
        edit=Edit(
            name="larger-photographs",
            subject="Move nightly-photos to 1.1",
            changes=(
                Change(path="requirements.lock", old="nightly-photos==1.0\n", new="nightly-photos==1.1\n"),
            ),
        ),
        component=Component.VISION,
        capacity_bytes=467 * MIB,
        start=(_recipe("start-with-whole-photographs", "", "", _PHOTOGRAPHS, "max_pixels=1280 * 28 * 28,"),),
        clipped=False,
    ),
)
#: Where nothing regressed: above the peak of every commit, decoys included.
NOTHING_REGRESSED_CAPACITY_BYTES = 392 * MIB
