"""Parameters, gradients and optimizer states in bytes: what lives through the whole step.

Bytes per parameter = w + g + o / shard, section 2 of the formulas page. Certainty A for
the distributed optimizer (checked against published allocator figures), B for Megatron FSDP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from memory_models.breakdown import Category, Component
from memory_models.choices import HasStates
from memory_models.job import Card, Sharding
from memory_models.parameters import Weights
from memory_models.tensors import Part


class Share(NamedTuple):
    """What one rank holds of one kind of state of some weights."""

    weights: Weights
    category: Category
    width: float  #: bytes of an element
    shard: int  #: ranks that it is spread over
    bytes: int

    def part(self) -> Part:
        formula = f"{self.width:g}*({self.weights.formula})"
        return Part(
            component=self.weights.component,
            category=self.category,
            tensor=self.weights.name,
            formula=formula if self.shard == 1 else f"{formula}/{self.shard}",
            bytes=self.bytes,
        )


def share_of(weights: Weights, category: Category, width: float, shard: int) -> Share:
    return Share(weights, category, width, shard, round(width * divide(weights.elements, shard)))


@dataclass(frozen=True, kw_only=True)
class States:
    """The shares that a rank holds all the time, the moments apart: the first step lacks them."""

    parameters: tuple[Share, ...]
    gradients: tuple[Share, ...]
    masters: tuple[Share, ...]
    moments: tuple[Share, ...]

    @property
    def lasting(self) -> tuple[Share, ...]:
        """From the second step on."""
        return self.parameters + self.gradients + self.masters + self.moments


def divide(elements: int, shards: int) -> int:
    """Elements on the fullest of ``shards`` ranks."""
    return -(-elements // shards)


def state_shard(job: HasStates, weights: Weights) -> int:
    """Over how many ranks the optimizer states of these weights are spread."""
    if job.sharding is Sharding.NONE and not job.optimizer.distributed:
        return 1
    ranks = job.layout.expert_data if weights.expert else job.layout.dense_shard
    if job.sharding is not Sharding.NONE:
        return ranks
    return max(1, ranks // job.optimizer.instances)


def weight_shard(job: HasStates, weights: Weights) -> int:
    """Over how many ranks FSDP spreads the weights themselves."""
    return _fsdp_ranks(job, weights) if job.sharding is Sharding.EVERYTHING else 1


def gradient_shard(job: HasStates, weights: Weights) -> int:
    """Over how many ranks FSDP spreads the gradients."""
    return (
        _fsdp_ranks(job, weights) if job.sharding in (Sharding.EVERYTHING, Sharding.STATES_GRADIENTS) else 1
    )


def _fsdp_ranks(job: HasStates, weights: Weights) -> int:
    return job.layout.expert_data if weights.expert else job.layout.dense_shard


def weight_bytes(job: HasStates, weights: Weights) -> int:
    """Bytes of one parameter as the model computes with it, its fp8 copies included.

    Products with the weight and with its transpose read a copy each, where the card or the recipe needs
    them laid out apart. The parameters are these copies (fp8_param), or have them beside: Transformer Engine
    makes them in the first micro-batch of a step and keeps them for good. Certainty B: of 0.85 GiB that
    measured runs hold after a step beyond all else, they are 0.63.
    """
    precision = job.precision
    # Of nvfp4 no copy outlives its product: two measured runs that differ in it hold 2 bytes either way.
    if not precision.fp8 or precision.fp8_recipe == "nvfp4" or weights.name not in _FP8_WEIGHTS:
        return precision.parameter_bytes
    copies = _fp8_copies(job)
    return copies if precision.fp8_parameters else precision.parameter_bytes + copies


def _fp8_copies(job: HasStates) -> int:
    """Bytes of a parameter's quantised copies."""
    # From Blackwell on one layout serves both products, but where scales run along blocks.
    one_layout = job.card is Card.BLACKWELL and job.precision.fp8_recipe in ("delayed", "tensorwise")
    return 1 if one_layout else 2


#: The matrices that Transformer Engine runs in fp8: linear layers, never embeddings, router or norms.
_FP8_WEIGHTS = frozenset(
    {
        "query",
        "key and value",
        "attention output",
        "feed-forward",
        "routed experts",
        "shared expert",
        "query down",
        "query up",
        "key and value down",
        "key and value up",
    }
)


def states(job: HasStates, weights: Iterable[Weights]) -> States:
    """Parameters, gradients, masters and moments of these weights on one rank."""
    parameters: list[Share] = []
    gradients: list[Share] = []
    masters: list[Share] = []
    moments: list[Share] = []
    setup, gradient = job.optimizer, job.precision.gradient_bytes
    moment = (setup.first_moment_bytes + setup.second_moment_bytes) * (1 - setup.offload_fraction)
    for group in weights:
        width = weight_bytes(job, group)
        parameters.append(share_of(group, Category.PARAMETERS, width, weight_shard(job, group)))
        if group.trainable:
            shard = state_shard(job, group)
            gradients.append(share_of(group, Category.GRADIENTS, gradient, gradient_shard(job, group)))
            masters.append(share_of(group, Category.OPTIMIZER_STATES, setup.master_bytes, shard))
            moments.append(share_of(group, Category.OPTIMIZER_STATES, moment, shard))
    return States(
        parameters=tuple(parameters),
        gradients=tuple(gradients),
        masters=tuple(masters),
        moments=tuple(moments),
    )


def trainable_elements(weights: Iterable[Weights], component: Component | None = None) -> int:
    """Elements on the rank that get a gradient."""
    return sum(
        group.elements for group in weights if group.trainable and component in (None, group.component)
    )
