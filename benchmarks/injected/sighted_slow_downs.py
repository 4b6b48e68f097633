"""Slow-downs by somebody who knew what judges them: see `sighted`."""

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
from bisection.regression import RegressionKind as Kind
from memory_models.breakdown import Activity

SLOW_DOWNS = (
    Injection(
        name="vision-checked-twice",
        what="Every block of the vision tower runs a second time, to compare the two results.",
        component=None,
        kind=Kind.THROUGHPUT,
        activity=Activity.VISION,
        edits=(
            Edit(
                path=VISION,
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
                path=VISION,
                old=MERGER_CALL,
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
                path=ATTENTION,
                old=SOFTMAX,
                new="        attention_scores = attention_scores.double()\n"
                + SOFTMAX
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
                path=ATTENTION,
                old=SOFTMAX,
                new="        for head in range(output_size[1]):\n"
                "            rows = [torch.arange(output_size[3]) > row for row in range(output_size[2])]\n"
                "            banned = torch.stack(rows)\n"
                "        attention_scores = attention_scores.masked_fill(banned, -10000.0)\n" + SOFTMAX,
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
                path=LANGUAGE_MODULE,
                old=LOSS_START,
                new="        for sequence in logits.detach():\n"
                "            for row in sequence:\n"
                "                assert bool(torch.isfinite(row.sort().values).all())\n"
                "                assert float(row.softmax(-1).sum()) < 1.5\n"
                "                assert float(row.double().log_softmax(-1).max()) < 0.5\n" + LOSS_START,
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
                path=OPTIMIZER,
                old=FP32_STEP,
                new=FP32_STEP.replace(
                    UPDATE,
                    "        for parameter in self.get_parameters():\n"
                    "            parameter.main_grad.double().abs().sort().values.sum().item()\n" + UPDATE,
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
                path="train/vlm/data.py",
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
