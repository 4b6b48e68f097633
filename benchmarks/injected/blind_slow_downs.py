"""Slow-downs written by somebody who had not seen what judges them: see `blind`.

Each makes a step of the nightly at least a fifth longer, and moves its peak by less than one percent.
"""

from __future__ import annotations

from benchmarks.injected.injection import Edit, Injection
from benchmarks.injected.places import LANGUAGE_MODULE, LOSS_CALL, MERGER_CALL, ROUTING, VISION
from bisection.regression import RegressionKind as Kind
from memory_models.breakdown import Activity

SLOW_DOWNS = (
    Injection(
        name="vision-attention-row-by-row",
        what="Attends for one patch after the other, copied from a memory-poor inference server.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.VISION,
        edits=(
            Edit(
                path=VISION,
                old="                for q, k, v in zip(*splits)\n",
                new="                for queries, k, v in zip(*splits)\n"
                "                for q in queries.split(1, dim=2)\n",
            ),
        ),
    ),
    Injection(
        name="merger-spectral-norm-by-svd",
        what="Divides the mergers' hidden layer by its largest singular value, decomposed at every forward.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.PROJECTOR,
        edits=(
            Edit(
                path=VISION,
                old=MERGER_CALL,
                new="        norm = torch.linalg.matrix_norm(self.linear_fc1.weight.detach(), 2)\n"
                "        x = self.act_fn(self.linear_fc1(x) / norm.clamp(min=1.0))\n"
                "        return self.linear_fc2(x)\n",
            ),
        ),
    ),
    Injection(
        name="causal-mask-built-in-python",
        what="Builds the causal mask anew for each of the heads, from lists of Python booleans.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DECODER,
        edits=(
            Edit(
                path="megatron/core/transformer/utils.py",
                old='    return torch.triu(torch.ones(sq, sq, device="cuda"), diagonal=1).bool()\n',
                new="    rows = [[column > row for column in range(sq)] for row in range(sq)]\n"
                '    return torch.tensor(rows, device="cuda")\n',
            ),
            Edit(
                path="megatron/core/fusions/fused_softmax.py",
                old="            mask = get_default_causal_mask(sq)\n",
                new="            mask = get_default_causal_mask(sq)\n"
                "            for _ in range(1, input.size(1)):\n"
                "                mask = mask & get_default_causal_mask(sq)\n",
            ),
        ),
    ),
    Injection(
        name="residual-checked-block-by-block",
        what="Leaves a debugging check in: seeks what is not finite in the residual, block by block.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DECODER,
        edits=(
            Edit(
                path="megatron/core/transformer/transformer_layer.py",
                old="        output = self._forward_mlp(\n            hidden_states,\n",
                new="        for block in hidden_states.detach().reshape(-1, 64):\n"
                "            if block.isnan().any() or block.isinf().any():\n"
                "                raise ValueError(f'not finite in layer {self.layer_number}')\n"
                "        output = self._forward_mlp(\n            hidden_states,\n",
            ),
        ),
    ),
    Injection(
        name="experts-in-small-slices",
        what="Feeds every expert its tokens sixteen at a time.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.EXPERTS,
        edits=(
            Edit(
                path="megatron/core/transformer/moe/experts.py",
                old="                    output, output_bias = expert(tokens, probs)\n",
                new="                    slices = zip(tokens.split(16), probs.split(16))\n"
                "                    output = torch.cat([expert(*some)[0] for some in slices])\n"
                "                    output_bias = None\n",
            ),
        ),
    ),
    Injection(
        name="permutation-token-by-token",
        what="Looks up each pair of token and expert in a Python loop when permuting.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DISPATCH,
        edits=(
            Edit(
                path=ROUTING,
                old="        sorted_indices = token_indices.masked_select(routing_map)\n",
                new="        pairs = [(row, at) for row in range(num_experts) for at in range(num_tokens)]\n"
                "        order = [at for row, at in pairs if routing_map[row, at]]\n"
                "        sorted_indices = torch.tensor(order, device=tokens.device)\n",
            ),
        ),
    ),
    Injection(
        name="cross-entropy-position-by-position",
        what="Takes the cross-entropy of one position after the other.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.EMBEDDING_AND_LOSS,
        edits=(
            Edit(
                path=LANGUAGE_MODULE,
                old=LOSS_CALL,
                new="                group = self.pg_collection.tp\n"
                "                positions = [position.clone() for position in logits.split(1)]\n"
                "                pairs = zip(positions, labels.split(1))\n"
                "                loss = torch.cat(\n"
                "                    [fused_vocab_parallel_cross_entropy(*pair, group) for pair in pairs]\n"
                "                )\n",
            ),
        ),
    ),
    Injection(
        name="gradients-sorted-to-clip",
        what="Clips every gradient at its largest thousandth, found by sorting all of it.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.OPTIMIZER,
        edits=(
            Edit(
                path="megatron/core/optimizer/optimizer.py",
                old="                if hasattr(param, 'main_grad'):\n"
                "                    param.grad = param.main_grad\n",
                new="                if hasattr(param, 'main_grad'):\n"
                "                    param.grad = param.main_grad\n"
                "                    ordered = param.grad.abs().flatten().sort().values\n"
                "                    limit = ordered[-1 - ordered.numel() // 1000]\n"
                "                    param.grad.clamp_(-limit, limit)\n",
            ),
        ),
    ),
    Injection(
        name="photographs-inspected-pixel-by-pixel",
        what="Looks at every pixel in Python before it takes a photograph, to skip empty ones.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.DATA,
        edits=(
            Edit(
                path="train/vlm/data.py",
                old="def collate(batch",
                new="def contrast(image) -> float:\n"
                "    pixels = [(x, y) for x in range(image.width) for y in range(image.height)]\n"
                "    mean = sum(sum(image.getpixel(pixel)) for pixel in pixels) / len(pixels)\n"
                "    return max(abs(sum(image.getpixel(pixel)) - mean) for pixel in pixels)\n\n\n"
                "def collate(batch",
            ),
            Edit(
                path="train/vlm/data.py",
                old="    images = [image for example in batch for image in images_of(example)]\n",
                new="    images = [image for example in batch for image in images_of(example)]\n"
                "    images = [image for image in images if contrast(image) > 0]\n",
            ),
        ),
    ),
    Injection(
        name="garbage-collected-every-step",
        what="Runs Python's garbage collector before forward and between backward and optimizer.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.IDLE,
        edits=(
            Edit(
                path="megatron/bridge/training/train.py",
                old="        # Set grad to zero.\n",
                new="        gc.collect()\n        # Set grad to zero.\n",
            ),
            Edit(
                path="megatron/bridge/training/train.py",
                old="    should_checkpoint, should_exit, exit_code ="
                " rerun_state_machine.should_checkpoint_and_exit()\n",
                new="    gc.collect()\n"
                "    should_checkpoint, should_exit, exit_code ="
                " rerun_state_machine.should_checkpoint_and_exit()\n",
            ),
        ),
    ),
)
