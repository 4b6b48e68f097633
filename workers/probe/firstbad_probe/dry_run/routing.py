"""Which experts the tokens go to, where no router can know: balanced, skewed, or as somebody recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Routing:
    """The answer to a router's choice of ``chosen`` among ``experts`` for each token.

    ``skew`` is the exponent of a Zipf distribution over the experts (0: all alike);
    ``weights`` are the shares of a recorded run, one for each expert, and win over it.
    """

    experts: int = 0
    chosen: int = 0
    skew: float = 0.0
    weights: tuple[float, ...] = ()

    def answers(self, scores: torch.Tensor, chosen: int) -> bool:
        """Whether this top-k is the router's: scores [tokens, experts]."""
        return (
            self.experts > 0
            and scores.dim() == 2
            and scores.shape[-1] == self.experts
            and chosen == self.chosen
        )

    def choose(self, tokens: int) -> torch.Tensor:
        """Expert numbers, [tokens, chosen], distinct in a row. The same for equal arguments."""
        return _choice(self, tokens)


@lru_cache(maxsize=8)
def _choice(routing: Routing, tokens: int) -> torch.Tensor:
    if not routing.skew and not routing.weights:
        # Round robin: every expert gets the same number of tokens, give or take one.
        numbers = torch.arange(tokens * routing.chosen, dtype=torch.int64) % routing.experts
        return numbers.view(tokens, routing.chosen)
    shares = torch.tensor(
        routing.weights or [1.0 / (place + 1) ** routing.skew for place in range(routing.experts)],
        dtype=torch.float64,
    )
    generator = torch.Generator().manual_seed(0)
    return torch.multinomial(shares.expand(tokens, -1), routing.chosen, generator=generator)
