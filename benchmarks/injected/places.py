"""Places in real training code that more than one injection edits.

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

ATTENTION = "megatron/core/transformer/dot_product_attention.py"
OPTIMIZER = "megatron/core/optimizer/optimizer.py"

SOFTMAX = (
    "        attention_probs: Tensor = self.scale_mask_softmax(\n"
    "            attention_scores, attention_mask, self.softmax_offset\n"
    "        )\n"
)
LOSS_START = (
    "        # [b s] => [s b]\n        labels = labels.transpose(0, 1).contiguous()\n"
    "        if self.config.cross_entropy_loss_fusion:\n"
)
#: The update, and the beginning of the method after it, which makes the place the only one.
FP32_STEP = (
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
UPDATE = "        self.optimizer.step()\n"
