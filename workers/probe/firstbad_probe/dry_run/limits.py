"""What a dry run does not see, in the words of its record: part of every answer that it gives."""

from __future__ import annotations

from firstbad_probe.dry_run.orders import PRODUCTION

_ALWAYS = (
    "what one operation needs inside itself (workspaces of cuBLAS, flash attention and fused kernels)",
    "the CUDA context, NCCL's buffers and whatever else is outside of torch's allocator",
    "fragmentation: blocks are rounded to 512 bytes and never in each other's way",
    "seconds: nothing is computed",
    "DeepEP, HybridEP, Megatron FSDP, fp8 and CUDA graphs: refused, or not simulated",
)
_PRODUCTION = (
    "what Transformer Engine's layers and kernels really do: stand-ins keep the tensors that release 2.9 "
    "keeps, as read in its code",
)
_UNFUSED = (
    "Transformer Engine and every fused kernel: Megatron Core's own unfused layers ran, whose memory a GPU "
    "run with fused layers does not need",
)


def not_modelled(layers: str) -> list[str]:
    return [*_ALWAYS, *(_PRODUCTION if layers == PRODUCTION else _UNFUSED)]
