"""Regressions and slow-downs written by somebody who had not seen what judges them.

The author read the training code and the words of `bisection.regression` and
`memory_models.breakdown`, nothing of how attribution decides. The answers follow from the code
alone; the comments say why where it is not plain. Here are those that cost memory; those that
cost time alone are in `blind_slow_downs`.
"""

from __future__ import annotations

from benchmarks.injected.blind_slow_downs import SLOW_DOWNS
from benchmarks.injected.injection import Edit, Injection
from benchmarks.injected.places import LANGUAGE_MODULE, LOSS_CALL, MERGER_CALL, ROUTING, VISION
from bisection.regression import RegressionKind as Kind
from memory_models.breakdown import Component

_ATTENTION = "megatron/core/transformer/dot_product_attention.py"
_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py"
_VLM_STEP = "megatron/bridge/training/vlm_step.py"

_LARGE_IMAGES = {"dataset.max_pixels": 448 * 448}
_LARGE_VOCABULARY = {"model.vocab_size": 8192}

MEMORY = (
    Injection(
        name="vision-mask-per-head",
        what="Attends over all images at once, with a block-diagonal mask copied out for every head.",
        component=Component.VISION,
        kind=Kind.ACTIVATIONS,
        edits=(
            Edit(
                path=VISION,
                old="            splits = [\n"
                "                torch.split(tensor, lengths.tolist(), dim=2)"
                " for tensor in (query_states, key_states, value_states)\n"
                "            ]\n",
                new="            image = torch.repeat_interleave(torch.arange(lengths.numel()), lengths)\n"
                "            same_image = image[:, None] == image[None, :]\n"
                "            mask = torch.zeros(same_image.shape).masked_fill(~same_image, float('-inf'))\n"
                "            mask = mask.expand(1, self.num_heads, -1, -1).contiguous()\n"
                "            splits = [[query_states], [key_states], [value_states]]\n",
            ),
            Edit(
                path=VISION,
                old="                    v,\n                    attention_mask=None,\n",
                new="                    v,\n                    attention_mask=mask,\n",
            ),
        ),
    ),
    Injection(
        name="frozen-vision-input-requires-grad",
        what="Makes the patch embedding's output require gradients, as adapters need it, for all runs.",
        component=Component.VISION,
        kind=Kind.ACTIVATIONS,  # nothing more is trained; the frozen blocks keep their inputs
        base={"model.freeze_vision_model": True, **_LARGE_IMAGES},
        edits=(
            Edit(
                path=VISION,
                old="        hidden_states = self.patch_embed(hidden_states)\n",
                new="        hidden_states = self.patch_embed(hidden_states)\n"
                "        hidden_states.requires_grad_(True)\n",
            ),
        ),
    ),
    Injection(
        name="vision-unfrozen",
        what="Trains the vision tower too: the recipe's freeze flag is left behind in a copied recipe.",
        component=Component.VISION,
        kind=Kind.STATES,
        # Small images: what is trained decides, not what forward keeps.
        base={"model.freeze_vision_model": True, "dataset.max_pixels": 128 * 128},
        overrides={"model.freeze_vision_model": False},
    ),
    Injection(
        name="more-images-per-sample",
        what="Gives every sample three photographs instead of one.",
        component=Component.VISION,
        kind=Kind.IMAGE_LOAD,
        overrides={"dataset.images_per_sample": 3},
    ),
    Injection(
        name="deepstack-after-every-block",
        what="Feeds the outputs of three vision blocks into the language model instead of one.",
        component=Component.PROJECTOR,
        kind=Kind.LAYOUT,
        edits=(
            Edit(
                path="train/vlm/model.py",
                old='    "deepstack_visual_indexes": [1],\n',
                new='    "deepstack_visual_indexes": [0, 1, 2],\n',
            ),
        ),
    ),
    Injection(
        name="merger-outputs-kept",
        what="Collects what each layer of the mergers puts out, to count dead units, and never empties it.",
        component=Component.PROJECTOR,
        kind=Kind.RETENTION,
        base={**_LARGE_IMAGES, "dataset.images_per_sample": 2},
        edits=(
            Edit(
                path=VISION,
                old="        self.linear_fc2 = nn.Linear(self.hidden_size, config.out_hidden_size)\n",
                new="        self.linear_fc2 = nn.Linear(self.hidden_size, config.out_hidden_size)\n"
                "        self.seen = []\n",
            ),
            Edit(
                path=VISION,
                old=MERGER_CALL,
                new="        hidden = self.linear_fc1(x)\n"
                "        active = self.act_fn(hidden)\n"
                "        self.seen.extend(tensor.detach() for tensor in (x, hidden, active))\n"
                "        return self.linear_fc2(active)\n",
            ),
        ),
    ),
    Injection(
        name="merger-in-float64",
        what="Computes the mergers in double precision, to rule out rounding as the cause of a loss spike.",
        component=Component.PROJECTOR,
        kind=Kind.ACTIVATIONS,
        base={**_LARGE_IMAGES, "dataset.images_per_sample": 2},
        edits=(
            Edit(
                path=VISION,
                old=MERGER_CALL,
                new="        first, second = self.linear_fc1, self.linear_fc2\n"
                "        x = F.linear(x.double(), first.weight.double(), first.bias.double())\n"
                "        x = F.linear(self.act_fn(x), second.weight.double(), second.bias.double())\n"
                "        return x.to(second.weight.dtype)\n",
            ),
        ),
    ),
    Injection(
        name="core-attention-not-recomputed",
        what="Drops core attention from the list of what is recomputed, since flash attention needs it not.",
        component=Component.DECODER,
        kind=Kind.ACTIVATIONS,
        overrides={"model.recompute_modules": ["moe"]},
    ),
    Injection(
        name="attention-map-of-one-head-kept",
        what="Keeps one head's attention map a step for a picture; it is a view of all heads' scores.",
        component=Component.DECODER,
        kind=Kind.RETENTION,
        edits=(
            Edit(
                path=_ATTENTION,
                old="        # Dropout. Note that for a single iteration, this layer will generate\n",
                new="        self.maps = []\n"
                "        # Dropout. Note that for a single iteration, this layer will generate\n",
            ),
            Edit(
                path=_ATTENTION,
                old="        # change view [b * np, sq, sk]\n",
                new="        if self.layer_number == 1 and torch.is_grad_enabled():\n"
                "            self.maps.append(attention_probs[0, 0].detach())\n"
                "        # change view [b * np, sq, sk]\n",
            ),
        ),
    ),
    Injection(
        name="attention-calibrated-at-first-step",
        what="Gathers every layer's scores in double precision in the first forward, for a clipping limit.",
        component=Component.DECODER,
        kind=Kind.FIRST_STEP,
        edits=(
            Edit(
                path=_ATTENTION,
                old="class DotProductAttention(MegatronModule):\n",
                new="calibration = []\n\n\nclass DotProductAttention(MegatronModule):\n",
            ),
            Edit(
                path=_ATTENTION,
                old="        # Dropout. Note that for a single iteration, this layer will generate\n",
                new="        self.calibrated = False\n"
                "        # Dropout. Note that for a single iteration, this layer will generate\n",
            ),
            Edit(
                path=_ATTENTION,
                old="        # change view [b * np, sq, sk]\n",
                new="        if not self.calibrated:\n"
                "            self.calibrated = True\n"
                "            calibration.append((attention_scores.double(), attention_probs.double()))\n"
                "            if self.layer_number == self.config.num_layers:\n"
                "                self.limit = max(probs.max().item() for _, probs in calibration)\n"
                "                calibration.clear()\n"
                "        # change view [b * np, sq, sk]\n",
            ),
        ),
    ),
    Injection(
        name="dispatched-tokens-kept",
        what="Lists the tokens of every dispatch to plot expert load, and forgets to detach and to empty.",
        component=Component.EXPERTS,
        kind=Kind.RETENTION,
        edits=(
            Edit(
                path=_DISPATCHER,
                old="        # Token drop and padding.\n",
                new="        self.dispatched = []\n        # Token drop and padding.\n",
            ),
            Edit(
                path=_DISPATCHER,
                old="        return permutated_local_input_tokens, permuted_probs\n",
                new="        self.dispatched.append(permutated_local_input_tokens)\n"
                "        return permutated_local_input_tokens, permuted_probs\n",
            ),
        ),
    ),
    Injection(
        name="experts-padded-to-capacity",
        what="Pads every expert's input to four times its even share, for shapes that do not change.",
        component=Component.EXPERTS,
        kind=Kind.ACTIVATIONS,
        overrides={
            "model.moe_expert_capacity_factor": 4.0,
            "model.moe_pad_expert_input_to_capacity": True,
        },
    ),
    Injection(
        name="balanced-by-one-draw-for-all-tokens",
        what="Draws the random logits of forced balancing once a layer instead of once a token.",
        component=Component.EXPERTS,
        kind=Kind.IMBALANCE,
        # Two expert ranks; short sequences, small images and wide experts: they decide the peak.
        base={
            "model.expert_model_parallel_size": 2,
            "model.moe_router_force_load_balancing": True,
            "model.seq_length": 128,
            "dataset.seq_length": 128,
            "dataset.max_pixels": 128 * 128,
            "model.moe_ffn_hidden_size": 1280,
            "train.micro_batch_size": 8,
            "train.global_batch_size": 16,
        },
        edits=(
            Edit(
                path=ROUTING,
                old="            random_logits = logits.clone().normal_()\n",
                new="            drawn = logits.new_empty(logits.shape[-1]).normal_()\n"
                "            random_logits = drawn.expand_as(logits).clone()\n",
            ),
        ),
    ),
    Injection(
        name="gradients-in-float32",
        what="Turns on reduction of gradients in float32 for a model in bfloat16.",
        component=Component.EXPERTS,  # most of the weights are theirs
        kind=Kind.STATES,
        base={
            "model.bf16": True,
            "model.params_dtype": "torch.bfloat16",
            "model.pipeline_dtype": "torch.bfloat16",
            "optimizer.bf16": True,
            "optimizer.params_dtype": "torch.bfloat16",
            "ddp.grad_reduce_in_fp32": False,
        },
        overrides={"ddp.grad_reduce_in_fp32": True},
    ),
    Injection(
        name="expert-parallelism-lost",
        what="Drops the expert-parallel size from the recipe: every rank holds all experts.",
        component=Component.EXPERTS,
        kind=Kind.LAYOUT,
        base={"model.expert_model_parallel_size": 2, "train.global_batch_size": 4},
        overrides={"model.expert_model_parallel_size": 1},
    ),
    Injection(
        name="embeddings-untied",
        what="Loses the tie between token embedding and output layer.",
        component=Component.EMBEDDING_AND_LOSS,
        kind=Kind.LAYOUT,
        base={"model.vocab_size": 16384, "model.share_embeddings_and_output_weights": True},
        overrides={"model.share_embeddings_and_output_weights": False},
    ),
    Injection(
        name="z-loss-on-a-copy-of-the-logits",
        what="Adds a z-loss on the logits; cross-entropy overwrites them, so it takes a copy.",
        component=Component.EMBEDDING_AND_LOSS,
        kind=Kind.LOSS,
        base=_LARGE_VOCABULARY,
        edits=(
            Edit(
                path=LANGUAGE_MODULE,
                old=LOSS_CALL,
                new="                z_loss = torch.logsumexp(logits.float().clone(), dim=-1) ** 2\n"
                + LOSS_CALL
                + "                loss = loss + 1e-4 * z_loss\n",
            ),
        ),
    ),
    Injection(
        name="cross-entropy-in-float64",
        what="Upcasts the logits to double instead of float before the cross-entropy.",
        component=Component.EMBEDDING_AND_LOSS,
        kind=Kind.LOSS,
        base=_LARGE_VOCABULARY,
        edits=(
            Edit(
                path="megatron/core/tensor_parallel/cross_entropy.py",
                old="        vocab_parallel_logits = vocab_parallel_logits.float()\n",
                new="        vocab_parallel_logits = vocab_parallel_logits.double()\n",
            ),
        ),
    ),
    Injection(
        name="recent-batches-kept",
        what="Keeps the last hundred batches on the device, to replay them when the loss is not finite.",
        component=Component.RUNTIME,  # copied to the device outside of any module
        kind=Kind.RETENTION,
        base=_LARGE_IMAGES,
        edits=(
            Edit(
                path=_VLM_STEP,
                old="logger = logging.getLogger(__name__)\n",
                new="logger = logging.getLogger(__name__)\n_recent_batches = []\n",
            ),
            Edit(
                path=_VLM_STEP,
                old="    return _batch_required_keys\n",
                new="    _recent_batches.append(_batch_required_keys)\n"
                "    del _recent_batches[:-100]\n"
                "    return _batch_required_keys\n",
            ),
        ),
    ),
    Injection(
        name="gradient-norm-of-one-flat-copy",
        what="Takes the gradient norm of one flat double-precision copy of all gradients.",
        component=Component.RUNTIME,
        kind=Kind.ENVIRONMENT,  # a workspace of the optimizer step, in no module, by a moved pin
        edits=(
            Edit(
                path="megatron/core/optimizer/clip_grads.py",
                old="    grads_for_norm = [to_local_if_dtensor(grad) for grad in grads_for_norm]\n",
                new="    grads_for_norm = [to_local_if_dtensor(grad) for grad in grads_for_norm]\n"
                "    if grads_for_norm:\n"
                "        copies = [grad.double().flatten() for grad in grads_for_norm]\n"
                "        grads_for_norm = [torch.cat(copies).norm().float().view(1)]\n",
            ),
        ),
    ),
)

INJECTIONS = (*MEMORY, *SLOW_DOWNS)
