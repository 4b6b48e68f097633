"""Transformer Engine's fused Adam: its states, and no temporary copies.

Source: transformer_engine/pytorch/optimizers/fused_adam.py of release 2.9; certainty B.
"""

from __future__ import annotations

from typing import Any

import torch


class FusedAdam(torch.optim.Optimizer):
    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        master_weights: Any = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        store_param_remainders: bool = False,
        betas: Any = (0.9, 0.999),
        eps: float = 1e-8,
        **others: Any,
    ) -> None:
        self.master_weights = bool(master_weights)
        self._dtypes = {"exp_avg": exp_avg_dtype, "exp_avg_sq": exp_avg_sq_dtype}
        self._master_dtype = torch.int16 if store_param_remainders else master_weight_dtype
        super().__init__(
            params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps, **others}
        )

    @torch.no_grad()
    def step(self, closure: Any = None, **_: Any) -> None:
        """Makes the states where there are none yet; updates nothing."""
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for weight in group["params"]:
                if weight.grad is None and getattr(weight, "decoupled_grad", None) is None:
                    continue
                self._make_states(weight)

    def _make_states(self, weight: torch.Tensor) -> None:
        state = self.state[weight]
        for name, dtype in self._dtypes.items():
            if name not in state:
                state[name] = torch.zeros_like(weight, dtype=dtype)
        if self.master_weights and "master_param" not in state:
            state["master_param"] = torch.zeros_like(weight, dtype=self._master_dtype)


class FusedSGD(torch.optim.SGD):
    pass


def multi_tensor_applier(operation: Any, overflow: Any, tensors: Any, *others: Any) -> Any:
    return operation(1, overflow, tensors, *others)


def multi_tensor_l2norm(_chunk: int, _overflow: Any, _tensors: Any, per_tensor: bool = False, *_: Any) -> Any:
    norm = torch.zeros(1, dtype=torch.float32)
    return norm, norm


def multi_tensor_scale(*_: Any) -> None: ...
