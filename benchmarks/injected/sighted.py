"""Regressions by somebody who knew the classifier: chosen to be hard for it.

The code of each is what developers do write: a log line that keeps a tensor, a wider dtype while
hunting a NaN, a renamed switch, a check of the first step. None is sized to flatter. Those that cost time
alone are in `sighted_slow_downs`.
"""

from __future__ import annotations

from benchmarks.injected.injection import Edit, Injection
from benchmarks.injected.places import (
    ATTENTION,
    FP32_STEP,
    LANGUAGE_MODULE,
    LOSS_START,
    MERGER_CALL,
    OPTIMIZER,
    SOFTMAX,
    UPDATE,
    VISION,
)
from benchmarks.injected.sighted_slow_downs import SLOW_DOWNS
from bisection.regression import RegressionKind as Kind
from memory_models.breakdown import Component

_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py"
_MLP = "megatron/core/transformer/mlp.py"
_ROUTER = "megatron/core/transformer/moe/router.py"
_MODEL = "train/vlm/model.py"

_VISION_ATTENTION = (
    "        value_states = value_states.transpose(0, 1).unsqueeze(0)\n\n"
    "        attention_interface: Callable = eager_attention_forward\n"
)
_EXPERT_GATE = (
    "                    intermediate_parallel = weighted_bias_swiglu_impl(\n"
    "                        intermediate_parallel,\n"
)
_SECOND_LAYER = "        output, output_bias = self.linear_fc2(intermediate_parallel)\n"
_DISPATCHED = (
    "        if self.shared_experts is not None:\n"
    "            self.shared_experts.linear_fc1_forward_and_act(global_input_tokens)\n\n"
    "        if self.tp_size > 1:\n"
    "            if self.output_splits_tp is None:\n"
)
_GATING = "        logits = self.gating(input)\n"
_ALL_PHOTOGRAPHS = {"dataset.max_pixels": 448 * 448}

MEMORY = (
    Injection(
        name="vision-attention-eager",
        what="Vision attention is always computed with explicit scores, to look at them in a debugger.",
        component=Component.VISION,
        kind=Kind.ACTIVATIONS,
        edits=(
            Edit(
                path=VISION,
                old=_VISION_ATTENTION + '        if self.config._attn_implementation != "eager":\n',
                new=_VISION_ATTENTION + '        if self.config._attn_implementation == "sdpa_debug":\n',
            ),
        ),
    ),
    Injection(
        name="vision-mlp-in-double",
        what="The activation of the vision tower's MLP runs in float64 while somebody hunts a NaN.",
        component=Component.VISION,
        kind=Kind.ACTIVATIONS,
        edits=(
            Edit(
                path=VISION,
                old="        return self.linear_fc2(self.act_fn(self.linear_fc1(hidden_state)))\n",
                new="        hidden = self.linear_fc1(hidden_state)\n"
                "        return self.linear_fc2(self.act_fn(hidden.double()).to(hidden.dtype))\n",
            ),
        ),
    ),
    Injection(
        name="vision-deeper",
        what="The vision tower gets twice as many blocks.",
        component=Component.VISION,
        kind=Kind.LAYOUT,
        edits=(Edit(path=_MODEL, old='    "depth": 4,\n', new='    "depth": 8,\n'),),
    ),
    Injection(
        name="vision-trained",
        what="The vision tower, frozen until now, is trained.",
        component=Component.VISION,
        kind=Kind.STATES,
        base={"model.freeze_vision_model": True},
        overrides={"model.freeze_vision_model": False},
    ),
    Injection(
        name="larger-photographs",
        what="Photographs are scaled down less before they are cut into patches.",
        component=Component.VISION,
        kind=Kind.IMAGE_LOAD,
        overrides={"dataset.max_pixels": 400 * 400},
    ),
    Injection(
        name="merger-log",
        what="A list in the patch merger remembers what goes in and out, for a plot that nobody draws.",
        component=Component.PROJECTOR,
        kind=Kind.RETENTION,
        base=_ALL_PHOTOGRAPHS,
        edits=(
            Edit(
                path=VISION,
                old=MERGER_CALL,
                new="        hidden = self.act_fn(self.linear_fc1(x))\n"
                "        self.__dict__.setdefault('seen', []).append((x.detach(), hidden.detach()))\n"
                "        return self.linear_fc2(hidden)\n",
            ),
        ),
    ),
    Injection(
        name="merger-wider",
        what="The mergers' hidden layer becomes twice as wide.",
        component=Component.PROJECTOR,
        kind=Kind.LAYOUT,
        edits=(
            Edit(
                path=VISION,
                old="        self.linear_fc1 = nn.Linear(self.hidden_size, self.hidden_size)\n"
                "        self.act_fn = nn.GELU()\n"
                "        self.linear_fc2 = nn.Linear(self.hidden_size, config.out_hidden_size)\n",
                new="        self.linear_fc1 = nn.Linear(self.hidden_size, 2 * self.hidden_size)\n"
                "        self.act_fn = nn.GELU()\n"
                "        self.linear_fc2 = nn.Linear(2 * self.hidden_size, config.out_hidden_size)\n",
            ),
        ),
    ),
    Injection(
        name="merger-in-double",
        what="The mergers compute in float64, since two runs differed in the last digits.",
        component=Component.PROJECTOR,
        kind=Kind.ACTIVATIONS,
        base=_ALL_PHOTOGRAPHS,
        edits=(
            Edit(
                path=VISION,
                old=MERGER_CALL,
                new="        hidden = nn.functional.linear(\n"
                "            x.double(), self.linear_fc1.weight.double(), self.linear_fc1.bias.double()\n"
                "        )\n"
                "        inner = 0.79788456 * (hidden + 0.044715 * hidden**3)\n"
                "        hidden = 0.5 * hidden * (1 + torch.tanh(inner))\n"
                "        return self.linear_fc2(hidden.to(x.dtype))\n",
            ),
        ),
    ),
    Injection(
        name="attention-maps-collected",
        what="Every attention map is collected in half precision, for a picture after the run.",
        component=Component.DECODER,
        kind=Kind.RETENTION,
        edits=(
            Edit(
                path=ATTENTION,
                old=SOFTMAX,
                new=SOFTMAX
                + "        self.__dict__.setdefault('maps', []).append(attention_probs.detach().half())\n",
            ),
        ),
    ),
    Injection(
        name="longer-sequences",
        what="Conversations are padded to twice the length.",
        component=Component.DECODER,
        kind=Kind.ACTIVATIONS,
        overrides={
            "dataset.seq_length": 768,
            "model.seq_length": 768,
            "model.language_max_sequence_length": 768,
        },
    ),
    Injection(
        name="core-attention-renamed",
        what="The switch of attention's recomputation is looked up under a new name.",
        component=Component.DECODER,
        kind=Kind.ACTIVATIONS,
        edits=(
            Edit(
                path="megatron/core/transformer/attention.py",
                old='            and "core_attn" in self.config.recompute_modules\n',
                new='            and "core_attention" in self.config.recompute_modules\n',
            ),
        ),
    ),
    Injection(
        name="wider-heads",
        what="Every attention head of the language model gets eight times as many dimensions.",
        component=Component.DECODER,
        kind=Kind.LAYOUT,
        edits=(
            Edit(path=_MODEL, old='    "head_dim": 16,\n', new='    "head_dim": 128,\n'),
            Edit(path=_MODEL, old='"mrope_section": [4, 2, 2]', new='"mrope_section": [32, 16, 16]'),
        ),
    ),
    Injection(
        name="tilings-tried-once",
        what="Attention tries a dozen ways to multiply at its first call, and keeps the scores to compare.",
        component=Component.DECODER,
        kind=Kind.FIRST_STEP,
        edits=(
            Edit(
                path=ATTENTION,
                old="        # change view to [b, np, sq, sk]\n"
                "        attention_scores = matmul_result.view(*output_size)\n",
                new="        if not DotProductAttention.__dict__.get('tried'):\n"
                "            DotProductAttention.tried = True\n"
                "            candidates = [matmul_result.detach() * 1.0 for _ in range(20)]\n"
                "            assert all(torch.allclose(candidates[0], other) for other in candidates)\n"
                "            del candidates\n"
                "        # change view to [b, np, sq, sk]\n"
                "        attention_scores = matmul_result.view(*output_size)\n",
            ),
        ),
    ),
    Injection(
        name="two-more-layers",
        what="The language model gets two more layers, each with its experts.",
        component=Component.EXPERTS,
        kind=Kind.LAYOUT,
        edits=(Edit(path=_MODEL, old='    "num_hidden_layers": 4,\n', new='    "num_hidden_layers": 6,\n'),),
    ),
    Injection(
        name="amsgrad",
        what="Adam keeps the largest second moment too.",
        component=Component.EXPERTS,
        kind=Kind.STATES,
        edits=(
            Edit(
                path="megatron/core/optimizer/__init__.py",
                old="            if USING_PYTORCH_OPTIMIZER:\n                adam_cls = torch",
                new="            if USING_PYTORCH_OPTIMIZER:\n"
                "                kwargs['amsgrad'] = True\n"
                "                adam_cls = torch",
            ),
        ),
    ),
    Injection(
        name="expert-glu-in-double",
        what="The experts' gate is computed in float64.",
        component=Component.EXPERTS,
        kind=Kind.ACTIVATIONS,
        base={"model.recompute_modules": ["core_attn"]},
        edits=(
            Edit(
                path=_MLP,
                old=_EXPERT_GATE,
                new=_EXPERT_GATE.replace("intermediate_parallel,", "intermediate_parallel.double(),"),
            ),
            Edit(
                path=_MLP,
                old=_SECOND_LAYER,
                new="        intermediate_parallel = intermediate_parallel.to(hidden_states.dtype)\n"
                + _SECOND_LAYER,
            ),
        ),
    ),
    Injection(
        name="one-sided-router",
        what="A ramp left in the router sends every token to the experts of the first rank.",
        component=Component.EXPERTS,
        kind=Kind.IMBALANCE,
        base={
            "model.expert_model_parallel_size": 2,
            "train.micro_batch_size": 1,
            "model.recompute_modules": ["core_attn"],
        },
        edits=(
            Edit(
                path=_ROUTER,
                old=_GATING,
                new=_GATING + "        logits = logits - 0.5 * torch.arange(logits.shape[-1])\n",
            ),
        ),
    ),
    Injection(
        name="dispatched-tokens-hoarded",
        what="The dispatcher remembers the tokens that it dispatched, step after step.",
        component=Component.EXPERTS,
        kind=Kind.RETENTION,
        edits=(
            Edit(
                path=_DISPATCHER,
                old=_DISPATCHED,
                new="        self.__dict__.setdefault('dispatched', []).append(global_input_tokens)\n"
                + _DISPATCHED,
            ),
        ),
    ),
    Injection(
        name="entropy-of-the-answers",
        what="The loss computes the entropy over the vocabulary from one-hot targets in float64.",
        component=Component.EMBEDDING_AND_LOSS,
        kind=Kind.LOSS,
        edits=(
            Edit(
                path=LANGUAGE_MODULE,
                old=LOSS_START,
                new="        wide = logits.detach().double()\n"
                "        probabilities = torch.softmax(wide, dim=-1)\n"
                "        log_probabilities = torch.log_softmax(wide, dim=-1)\n"
                "        targets = labels.transpose(0, 1).clamp(min=0)\n"
                "        hot = torch.nn.functional.one_hot(targets, wide.shape[-1])\n"
                "        surprise = -(hot * log_probabilities)\n"
                "        entropy = -(probabilities * log_probabilities)\n"
                "        ranked = wide.sort(dim=-1)\n"
                "        margins = wide - wide.max(dim=-1, keepdim=True).values\n"
                "        assert bool(torch.isfinite(surprise.sum() + entropy.sum() + margins.sum()))\n"
                + LOSS_START,
            ),
        ),
    ),
    Injection(
        name="gradients-remembered",
        what="The optimizer keeps the gradients of every step, to average them one day.",
        component=Component.RUNTIME,
        kind=Kind.RETENTION,
        edits=(
            Edit(
                path=OPTIMIZER,
                old=FP32_STEP,
                new=FP32_STEP.replace(
                    UPDATE,
                    "        history = self.__dict__.setdefault('history', [])\n"
                    "        history.append([p.main_grad.clone() for p in self.get_parameters()])\n" + UPDATE,
                ),
            ),
        ),
    ),
)

INJECTIONS = (*MEMORY, *SLOW_DOWNS)
