"""What a remedy costs in step time: estimates from floating-point work and bytes on the wire.

Section 9 of the formulas page. They rank remedies; they are no measurement, and every remedy
names its source. Certainty C unless the source says measured.
"""

from __future__ import annotations

from memory_models.job import TrainingJob
from memory_models.shapes import AttentionShape, FeedForward, Mixer

#: Share of a step that all-to-all of the experts takes where nothing overlaps it (literature: 20-60 %).
EXCHANGE_SHARE = 0.25


#: Share of a step lost to tensor-parallel ranks, by their number. Measured for a dense 70B: 4 to 8, -28 %.
_TENSOR_COST = {1: 0.0, 2: 0.08, 4: 0.18}
_WIDEST_TENSOR_COST = 0.4


def tensor_cost(ranks: int) -> float:
    """Share of a step that smaller products and their exchange cost."""
    return _TENSOR_COST.get(ranks, _WIDEST_TENSOR_COST)


def bubble(job: TrainingJob) -> float:
    """Share of a step that pipeline stages wait: (p-1)/(v*m)."""
    layout = job.layout
    return (layout.pipeline - 1) / (layout.virtual_pipeline * job.microbatches)


def layer_work(job: TrainingJob) -> dict[str, float]:
    """Forward multiply-adds per token of the whole model, by part of it."""
    text, hidden = job.text, job.text.hidden_size
    work = dict.fromkeys(("attention", "scores", "dense", "experts", "output", "vision"), 0.0)
    shape = text.attention
    for layer in text.layers:
        if layer.mixer is Mixer.ATTENTION:
            if isinstance(shape, AttentionShape):
                work["attention"] += hidden * (2 * shape.query_size + 2 * shape.key_size)
                work["scores"] += job.batch.sequence_length * shape.query_size
            else:
                work["attention"] += hidden * (shape.query_size + shape.output_size)
                work["scores"] += job.batch.sequence_length * (shape.query_size + shape.output_size) / 2
        if layer.feed_forward is FeedForward.DENSE:
            work["dense"] += (2 + text.activation.gated) * hidden * text.feed_forward_size
        elif layer.feed_forward is FeedForward.EXPERTS and text.experts is not None:
            active = text.experts.top_k * text.experts.size + text.experts.shared_size
            work["experts"] += (2 + text.activation.gated) * hidden * active + hidden * text.experts.count
    work["output"] = hidden * text.vocabulary
    if job.vision is not None and job.batch.images.patches:
        block = 4 * job.vision.hidden_size**2 + 2 * job.vision.hidden_size * job.vision.feed_forward_size
        patches_per_token = job.batch.images.patches / job.batch.sequence_length
        work["vision"] = job.vision.depth * block * patches_per_token
    return work


def share_of_work(job: TrainingJob, *parts: str) -> float:
    """Share of a step's forward work that these parts take."""
    work = layer_work(job)
    return sum(work[part] for part in parts) / sum(work.values())


def recompute_slowdown(job: TrainingJob, *parts: str) -> float:
    """One more forward pass of these parts, of three: forward 1, backward 2."""
    return share_of_work(job, *parts) / 3
