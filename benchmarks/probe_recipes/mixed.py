"""The nightly recipe with dense layers beside those with experts.

Bridge's Qwen3-VL providers build one kind of layer whatever moe_layer_freq says; megatron-core's own
specification of a block honours it.
"""

from megatron.bridge.models.qwen_vl import qwen3_vl_provider
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from recipes import measured


class MixedProvider(qwen3_vl_provider.Qwen3VLMoEModelProvider):
    """Reads moe_layer_freq."""

    def provide(self, *args, **keywords):
        qwen3_vl_provider.get_gpt_layer_with_transformer_engine_spec = lambda **_: get_gpt_decoder_block_spec(
            self, use_transformer_engine=False, normalization="RMSNorm"
        )
        return super().provide(*args, **keywords)


def config():
    result = measured.config()
    result.model.__class__ = MixedProvider
    result.model.moe_grouped_gemm = False
    result.model.moe_layer_freq = [0, 1, 0, 1]
    return result
