"""Places in real training code that more than one blind injection edits.

Paths are below site-packages; the texts stand there exactly once.
"""

from __future__ import annotations

VISION = "transformers/models/qwen3_vl/modeling_qwen3_vl.py"
ROUTING = "megatron/core/transformer/moe/moe_utils.py"
LANGUAGE_MODULE = "megatron/core/models/common/language_module/language_module.py"

LOSS_CALL = (
    "                loss = fused_vocab_parallel_cross_entropy(logits, labels, self.pg_collection.tp)\n"
)
MERGER_CALL = "        x = self.linear_fc2(self.act_fn(self.linear_fc1(x)))\n        return x\n"
