"""Parameters, gradients and optimizer states in bytes: what lives through the whole step.

Bytes per parameter = w + g + o / shard, section 2 of the formulas page. Certainty A for
the distributed optimizer (checked against published allocator figures), B for Megatron FSDP.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from memory_models.breakdown import Category, Component
from memory_models.job import Sharding, TrainingJob
from memory_models.parameters import Weights
from memory_models.tensors import Part


@dataclass(frozen=True, kw_only=True)
class States:
    """The parts that a rank holds all the time, the moments apart: the first step lacks them."""

    parameters: tuple[Part, ...]
    gradients: tuple[Part, ...]
    masters: tuple[Part, ...]
    moments: tuple[Part, ...]

    @property
    def lasting(self) -> tuple[Part, ...]:
        """From the second step on."""
        return self.parameters + self.gradients + self.masters + self.moments

    @property
    def first(self) -> tuple[Part, ...]:
        """In forward and backward of the first step: Adam makes its moments at its first step."""
        return self.parameters + self.gradients + self.masters


def divide(elements: int, shards: int) -> int:
    """Elements on the fullest of ``shards`` ranks."""
    return -(-elements // shards)


def state_shard(job: TrainingJob, weights: Weights) -> int:
    """Over how many ranks the optimizer states of these weights are spread."""
    if job.sharding is Sharding.NONE and not job.optimizer.distributed:
        return 1
    ranks = job.layout.expert_data if weights.expert else job.layout.dense_shard
    if job.sharding is not Sharding.NONE:
        return ranks
    return max(1, ranks // job.optimizer.instances)


def weight_shard(job: TrainingJob, weights: Weights) -> int:
    """Over how many ranks FSDP spreads the weights themselves."""
    return _fsdp_ranks(job, weights) if job.sharding is Sharding.EVERYTHING else 1


def gradient_shard(job: TrainingJob, weights: Weights) -> int:
    """Over how many ranks FSDP spreads the gradients."""
    return (
        _fsdp_ranks(job, weights) if job.sharding in (Sharding.EVERYTHING, Sharding.STATES_GRADIENTS) else 1
    )


def _fsdp_ranks(job: TrainingJob, weights: Weights) -> int:
    return job.layout.expert_data if weights.expert else job.layout.dense_shard


def weight_bytes(job: TrainingJob, weights: Weights) -> int:
    """Bytes of one parameter as the model computes with it, its fp8 copies included."""
    width = job.precision.parameter_bytes
    if not job.precision.fp8 or weights.name not in _FP8_WEIGHTS:
        return width
    both = job.precision.fp8_recipe != "delayed"  # row-wise and column-wise copies are kept
    if job.precision.fp8_parameters:
        return 2 if both else 1
    return width


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


def states(job: TrainingJob, weights: Iterable[Weights]) -> States:
    """Parameters, gradients, masters and moments of these weights on one rank."""
    parameters: list[Part] = []
    gradients: list[Part] = []
    masters: list[Part] = []
    moments: list[Part] = []
    setup = job.optimizer
    for group in weights:

        def add(
            parts: list[Part],
            category: Category,
            width: float,
            shard: int,
            formula: str,
            group: Weights = group,
        ) -> None:
            count = round(width * divide(group.elements, shard))
            if count:
                parts.append(
                    Part(
                        component=group.component,
                        category=category,
                        tensor=group.name,
                        formula=formula,
                        bytes=count,
                    )
                )

        width = weight_bytes(job, group)
        add(parameters, Category.PARAMETERS, width, weight_shard(job, group), f"{width}*({group.formula})")
        if not group.trainable:
            continue
        shard = state_shard(job, group)
        gradient = job.precision.gradient_bytes
        add(
            gradients,
            Category.GRADIENTS,
            gradient,
            gradient_shard(job, group),
            f"{gradient}*({group.formula})",
        )
        add(
            masters,
            Category.OPTIMIZER_STATES,
            setup.master_bytes,
            shard,
            f"{setup.master_bytes}*({group.formula})/{shard}",
        )
        moment = (setup.first_moment_bytes + setup.second_moment_bytes) * (1 - setup.offload_fraction)
        add(moments, Category.OPTIMIZER_STATES, moment, shard, f"{moment:g}*({group.formula})/{shard}")
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
