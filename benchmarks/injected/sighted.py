"""Regressions and slow-downs by somebody who knew the classifier: chosen to be hard for it.

The code of each is what developers do write: a log line that keeps a tensor, a wider dtype while
hunting a NaN, a renamed switch, a check of the first step. None is sized to flatter.
"""

from __future__ import annotations

from benchmarks.injected.injection import Edit, Injection
from bisection.regression import RegressionKind as Kind
from memory_models.breakdown import Activity, Component

_ATTENTION = "megatron/core/transformer/dot_product_attention.py"
_VISION = "transformers/models/qwen3_vl/modeling_qwen3_vl.py"
_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py"
_LOSS = "megatron/core/models/common/language_module/language_module.py"
_OPTIMIZER = "megatron/core/optimizer/optimizer.py"
_MLP = "megatron/core/transformer/mlp.py"
_ROUTER = "megatron/core/transformer/moe/router.py"
_MODEL = "train/vlm/model.py"
_DATA = "train/vlm/data.py"

_MERGER_FORWARD = "        x = self.linear_fc2(self.act_fn(self.linear_fc1(x)))\n        return x\n"
_VISION_ATTENTION = (
    "        value_states = value_states.transpose(0, 1).unsqueeze(0)\n\n"
    "        attention_interface: Callable = eager_attention_forward\n"
)
_EXPERT_GATE = (
    "                    intermediate_parallel = weighted_bias_swiglu_impl(\n"
    "                        intermediate_parallel,\n"
)
_SECOND_LAYER = "        output, output_bias = self.linear_fc2(intermediate_parallel)\n"
_SOFTMAX = (
    "        attention_probs: Tensor = self.scale_mask_softmax(\n"
    "            attention_scores, attention_mask, self.softmax_offset\n"
    "        )\n"
)
_DISPATCHED = (
    "        if self.shared_experts is not None:\n"
    "            self.shared_experts.linear_fc1_forward_and_act(global_input_tokens)\n\n"
    "        if self.tp_size > 1:\n"
    "            if self.output_splits_tp is None:\n"
)
_LOSS_START = (
    "        # [b s] => [s b]\n        labels = labels.transpose(0, 1).contiguous()\n"
    "        if self.config.cross_entropy_loss_fusion:\n"
)
_FP32_STEP = (
    "        # Update parameters.\n"
    "        if timers is not None:\n"
    "            timers('optimizer-inner-step', log_level=1).start(\n"
    "                barrier=self.config.barrier_with_L1_time\n"
    "            )\n"
    "        self.optimizer.step()\n"
    "        if timers is not None:\n"
    "            timers('optimizer-inner-step').stop()\n\n"
    "        return True\n\n"
    "    @torch.no_grad()\n"
    "    def step(self):\n"
    '        """Clip gradients (if needed) and step the base optimizer.\n'
    '        Always return successful since there is no overflow."""\n'
)
_UPDATE = "        self.optimizer.step()\n"
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
                path=_VISION,
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
                path=_VISION,
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
        name="vision-unfrozen",
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
                path=_VISION,
                old=_MERGER_FORWARD,
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
                path=_VISION,
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
                path=_VISION,
                old=_MERGER_FORWARD,
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
                path=_ATTENTION,
                old=_SOFTMAX,
                new=_SOFTMAX
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
                path=_ATTENTION,
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
                path=_LOSS,
                old=_LOSS_START,
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
                + _LOSS_START,
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
                path=_OPTIMIZER,
                old=_FP32_STEP,
                new=_FP32_STEP.replace(
                    _UPDATE,
                    "        history = self.__dict__.setdefault('history', [])\n"
                    "        history.append([p.main_grad.clone() for p in self.get_parameters()])\n"
                    + _UPDATE,
                ),
            ),
        ),
    ),
)

SLOW_DOWNS = (
    Injection(
        name="vision-checked-twice",
        what="Every block of the vision tower runs a second time, to compare the two results.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.VISION,
        edits=(
            Edit(
                path=_VISION,
                old="        hidden_states = hidden_states + self.mlp(self.norm2(hidden_states))\n"
                "        return hidden_states\n",
                new="        branch = self.mlp(self.norm2(hidden_states))\n"
                "        for _ in range(16):\n"
                "            assert torch.allclose(branch, self.mlp(self.norm2(hidden_states)), atol=1e-3)\n"
                "        return hidden_states + branch\n",
            ),
        ),
    ),
    Injection(
        name="merger-token-by-token",
        what="The merger's layers are applied token by token.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.PROJECTOR,
        edits=(
            Edit(
                path=_VISION,
                old=_MERGER_FORWARD,
                new="        rows = [self.linear_fc2(self.act_fn(self.linear_fc1(row))) for row in x]\n"
                "        return torch.stack(rows)\n",
            ),
        ),
    ),
    Injection(
        name="softmax-in-double",
        what="The softmax of attention runs in float64 and twice, for reproducible losses.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DECODER,
        edits=(
            Edit(
                path=_ATTENTION,
                old=_SOFTMAX,
                new="        attention_scores = attention_scores.double()\n"
                + _SOFTMAX
                + "        attention_probs = torch.softmax(attention_scores, -1).float() * 0 + "
                "attention_probs.float()\n",
            ),
        ),
    ),
    Injection(
        name="mask-row-by-row",
        what="The causal mask is built anew, row by row, for each layer and head.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DECODER,
        edits=(
            Edit(
                path=_ATTENTION,
                old=_SOFTMAX,
                new="        for head in range(output_size[1]):\n"
                "            rows = [torch.arange(output_size[3]) > row for row in range(output_size[2])]\n"
                "            banned = torch.stack(rows)\n"
                "        attention_scores = attention_scores.masked_fill(banned, -10000.0)\n" + _SOFTMAX,
            ),
        ),
    ),
    Injection(
        name="experts-in-double",
        what="The experts' first layer multiplies in float64.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.EXPERTS,
        edits=(
            Edit(
                path="megatron/core/transformer/moe/experts.py",
                old="                    output, output_bias = expert(tokens, probs)\n"
                "                output_local_list.append(output)\n",
                new="                    for _ in range(2):\n"
                "                        wide = tokens.double() @ expert.linear_fc1.weight.double().t()\n"
                "                    output, output_bias = expert(tokens + 0 * wide.mean().float(), probs)\n"
                "                output_local_list.append(output)\n",
            ),
        ),
    ),
    Injection(
        name="experts-one-token-at-a-time",
        what="Each expert is handed sixteen tokens at a time, as a serving engine would.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.EXPERTS,
        edits=(
            Edit(
                path="megatron/core/transformer/moe/experts.py",
                old="                    output, output_bias = expert(tokens, probs)\n"
                "                output_local_list.append(output)\n",
                new="                    parts = [\n"
                "                        expert(some, weights)[0]\n"
                "                        for some, weights in zip(tokens.split(16), probs.split(16))\n"
                "                    ]\n"
                "                    output = torch.cat(parts) if parts else tokens\n"
                "                output_local_list.append(output)\n",
            ),
        ),
    ),
    Injection(
        name="permutation-in-a-loop",
        what="Tokens are gathered for the experts one by one.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DISPATCH,
        edits=(
            Edit(
                path="megatron/core/transformer/moe/moe_utils.py",
                old="    # use the mapping to permute the tokens\n"
                "    permuted_input = tokens.index_select(0, sorted_indices)\n",
                new="    # use the mapping to permute the tokens\n"
                "    permuted_input = torch.stack([tokens[index] for index in sorted_indices.tolist()])\n",
            ),
        ),
    ),
    Injection(
        name="loss-row-by-row",
        what="The loss checks the logits of every position for numbers that are none, one by one.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.EMBEDDING_AND_LOSS,
        edits=(
            Edit(
                path=_LOSS,
                old=_LOSS_START,
                new="        for sequence in logits.detach():\n"
                "            for row in sequence:\n"
                "                assert bool(torch.isfinite(row.sort().values).all())\n" + _LOSS_START,
            ),
        ),
    ),
    Injection(
        name="norm-in-double",
        what="The gradients are checked in float64, parameter by parameter, before every update.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.OPTIMIZER,
        edits=(
            Edit(
                path=_OPTIMIZER,
                old=_FP32_STEP,
                new=_FP32_STEP.replace(
                    _UPDATE,
                    "        for parameter in self.get_parameters():\n"
                    "            parameter.main_grad.double().abs().sort().values.sum().item()\n" + _UPDATE,
                ),
            ),
        ),
    ),
    Injection(
        name="photographs-resized-again",
        what="Every photograph is enlarged eightfold and scaled back at each look, to smooth it.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DATA,
        edits=(
            Edit(
                path=_DATA,
                old="    images = [image for example in batch for image in images_of(example)]\n",
                new="    images = [\n"
                "        image.resize((image.width * 8, image.height * 8)).resize(image.size)\n"
                "        for example in batch\n"
                "        for image in images_of(example)\n"
                "    ]\n",
            ),
        ),
    ),
)

INJECTIONS = (*MEMORY, *SLOW_DOWNS)
