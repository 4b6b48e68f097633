"""Stand-ins for Transformer Engine's Linear, LayerNormLinear and GroupedLinear."""

from __future__ import annotations

from typing import Any

import torch

from firstbad_probe.dry_run.fused.bases import Module, parameter, split
from firstbad_probe.dry_run.fused.matrices import GroupedProduct, Product
from firstbad_probe.dry_run.fused.norms import Norm


class Linear(Module):
    """weight [out, in] of this rank: column splits ``out`` over ranks, row splits ``in``."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.tp_group, self.tp_size = tp_group, tp_size
        self.parallel_mode = parallel_mode
        self.sequence_parallel = tp_size > 1 and sequence_parallel
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.return_bias, self.use_bias = return_bias, bias
        self.save_original_input = False
        self.in_features = in_features // (tp_size if parallel_mode == "row" else 1)
        self.out_features = out_features // (tp_size if parallel_mode == "column" else 1)
        self.weight = parameter((self.out_features, self.in_features), params_dtype)
        self.bias = parameter((self.out_features,), params_dtype) if bias else None
        if parallel_mode in ("column", "row") and tp_size > 1:
            split(self.weight, 0 if parallel_mode == "column" else 1)
        if self.bias is not None:
            if parallel_mode == "column" and tp_size > 1:
                split(self.bias, 0)
            elif parallel_mode == "row":
                self.bias.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def product(self, tensor: torch.Tensor) -> torch.Tensor:
        spread = self.tp_size if self.sequence_parallel else 1
        added = None if self.return_bias else self.bias
        result: torch.Tensor = Product.apply(
            tensor,
            self.weight,
            added,
            spread if self.parallel_mode == "column" else 1,
            spread if self.parallel_mode == "row" else 1,
            self.fuse_wgrad_accumulation,
        )
        return result

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        result = self.product(inp)
        return (result, self.bias) if self.return_bias else result

    def backward_dw(self) -> None: ...


class LayerNormLinear(Linear):
    """A norm and the product after it, as one layer; the norm's output is kept like the product's input."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        normalization: str = "LayerNorm",
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        zero_centered_gamma: bool = False,
        params_dtype: torch.dtype | None = None,
        **others: Any,
    ) -> None:
        super().__init__(in_features, out_features, params_dtype=params_dtype, **others)
        self.normalization = normalization
        self.zero_centered_gamma = zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        self.layer_norm_weight = parameter((in_features,), params_dtype)
        self.layer_norm_bias = (
            parameter((in_features,), params_dtype) if normalization == "LayerNorm" else None
        )
        for norm in (self.layer_norm_weight, self.layer_norm_bias):
            if norm is not None:
                norm.sequence_parallel = self.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None, **_: Any) -> Any:
        normed = Norm.apply(inp, self.layer_norm_weight, self.layer_norm_bias)
        result: tuple[Any, ...] = (self.product(normed),)
        if self.return_bias:
            result += (self.bias,)
        if self.return_layernorm_output:
            if self.return_layernorm_output_gathered and self.sequence_parallel:
                normed = normed.new_empty((normed.shape[0] * self.tp_size, *normed.shape[1:]))
            result += (normed,)
        return result if len(result) > 1 else result[0]


class GroupedLinear(Module):
    """One weight for each of ``num_gemms`` experts of this rank: weight0, weight1, ..."""

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        self.num_gemms, self.tp_group, self.tp_size = num_gemms, tp_group, tp_size
        self.parallel_mode, self.sequence_parallel = parallel_mode, sequence_parallel
        self.fuse_wgrad_accumulation = fuse_wgrad_accumulation
        self.return_bias, self.use_bias = return_bias, bias
        self.in_features = in_features // (tp_size if parallel_mode == "row" else 1)
        self.out_features = out_features // (tp_size if parallel_mode == "column" else 1)
        for number in range(num_gemms):
            weight = parameter((self.out_features, self.in_features), params_dtype)
            if parallel_mode in ("column", "row"):
                split(weight, 0 if parallel_mode == "column" else 1)
            self.register_parameter(f"weight{number}", weight)
            if bias:
                self.register_parameter(f"bias{number}", parameter((self.out_features,), params_dtype))

    def forward(
        self, inp: torch.Tensor, m_splits: list[int], is_first_microbatch: bool | None = None, **_: Any
    ) -> Any:
        names = range(self.num_gemms)
        weights = [getattr(self, f"weight{number}") for number in names]
        biases = [getattr(self, f"bias{number}") for number in names] if self.use_bias else []
        added = [] if self.return_bias else biases
        rows = inp.reshape(-1, inp.shape[-1])
        result = GroupedProduct.apply(
            rows,
            sum(int(count) for count in m_splits),
            self.fuse_wgrad_accumulation,
            len(added),
            *weights,
            *added,
        )
        return (result, biases) if self.return_bias else result

    def backward_dw(self) -> None: ...
