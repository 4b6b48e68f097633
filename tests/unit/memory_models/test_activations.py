"""What micro-batches keep: how each size and each switch of a configuration changes it, by its formula."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memory_models import decoder, experts, loss, vision
from memory_models.breakdown import MIB, Category, Component
from memory_models.calibration import DEFAULT
from memory_models.choices import holding
from memory_models.estimation import RankEstimate, estimate
from memory_models.job import (
    Backend,
    Card,
    CrossEntropy,
    Dispatcher,
    Granularity,
    Recompute,
    Routing,
    TrainingJob,
)
from memory_models.remedies import find_remedies
from memory_models.runtime import dummy_gradients, workspace_bytes
from memory_models.shapes import ExpertsShape, GatedDeltaShape, LatentAttentionShape, Mixer, uniform_layers
from memory_models.tensors import Kept, Part
from tests.unit.memory_models.jobs import qwen_30b

TOKENS, HIDDEN, TOP_K, WIDTH, HEADS = 4096, 2048, 8, 768, 32


def sizes(tensors: tuple[Kept, ...]) -> dict[str, int]:
    return {tensor.tensor: tensor.bytes for tensor in tensors}


def attention(job: TrainingJob) -> dict[str, int]:
    return sizes(decoder.mixer_tensors(job, job.text.layers[0]))


def alive(rank: RankEstimate, instant: str = "layer forward") -> tuple[Part, ...]:
    (found,) = [i for i in rank.instants if i.name == instant and not i.first_step]
    return found.parts


def kept(job: TrainingJob, component: Component | None = None) -> int:
    """Activations when the last forward has ended, on the worst rank."""
    parts = alive(estimate(job).worst)
    chosen = [part for part in parts if component in (None, part.component)]
    return sum(part.bytes for part in chosen if part.category is Category.ACTIVATIONS)


def recomputing(*modules: str, **fields: Any) -> TrainingJob:
    chosen = Recompute(granularity=Granularity.SELECTIVE, modules=frozenset(modules))
    return replace(qwen_30b(), recompute=chosen, **fields)


# ---- parallel sizes


def test_tensor_ranks_split_heads_and_with_sequence_parallelism_the_stream() -> None:
    whole, split = qwen_30b(), qwen_30b(tensor=4)
    loose = replace(split, layout=replace(split.layout, sequence_parallel=False))
    for name in ("query, key and value", "attention log-sum-exp", "attention output"):
        assert attention(whole)[name] == 4 * attention(split)[name] == 4 * attention(loose)[name]
    assert attention(whole)["mixer residual"] == 4 * attention(split)["mixer residual"]
    assert attention(whole)["mixer residual"] == attention(loose)["mixer residual"] == 2 * TOKENS * HIDDEN


def test_fewer_key_heads_than_tensor_ranks_are_replicated() -> None:
    job = qwen_30b(tensor=8)  # 4 key heads
    assert attention(job)["query, key and value"] == 2 * TOKENS * (HEADS // 8 + 2) * 128


def test_context_ranks_split_tokens_and_keep_the_output_as_the_kernel_lays_it_out() -> None:
    whole, split = qwen_30b(), qwen_30b(context=2)
    assert attention(whole)["mixer residual"] == 2 * attention(split)["mixer residual"]
    extra = "attention output, as the kernel lays it out"
    assert extra not in attention(whole)
    assert attention(split)[extra] == attention(split)["attention output"]


def test_the_tower_runs_whole_on_every_context_rank_unless_they_share_the_pictures() -> None:
    job = qwen_30b(context=2)
    assert job.vision is not None
    shared = replace(job, tower_split=True)
    of = {name: sizes(vision.tower_tensors(some, job.vision)) for name, some in
          (("alone", qwen_30b()), ("whole", job), ("shared", shared))}  # fmt: skip
    assert of["alone"] == of["whole"]
    assert of["whole"] == {name: 2 * count for name, count in of["shared"].items()}


def test_expert_ranks_do_not_change_the_rows_of_an_expert_layer_and_split_experts_gather_them() -> None:
    rows = experts.routed_rows(qwen_30b(expert=8))
    assert rows == experts.routed_rows(qwen_30b(expert=64)) == TOKENS * TOP_K
    split = qwen_30b(tensor=2, expert=8, expert_tensor=2)
    assert experts.routed_rows(split) == 2 * experts.routed_rows(qwen_30b(tensor=2, expert=8))
    assert sizes(experts.expert_tensors(split))["expert fc1 output"] == 2 * rows * 2 * WIDTH // 2


def in_flight(rank: RankEstimate) -> list[int]:
    """Micro-batches of each chunk when the last forward has ended."""
    formulas = [part.formula for part in alive(rank) if part.tensor == "routed input"]
    return [int(f.split(" in flight")[0]) if "in flight" in f else 1 for f in formulas]


def test_stages_hold_fewer_micro_batches_towards_the_end_and_chunks_more_of_them() -> None:
    plain, chunked = qwen_30b(pipeline=4), qwen_30b(pipeline=4, virtual_pipeline=2)
    assert [in_flight(rank) for rank in estimate(plain).ranks] == [[4], [3], [2], [1]]  # p - r
    many = replace(chunked, batch=replace(chunked.batch, total=64 * 64))
    assert sum(in_flight(estimate(many).ranks[0])) == 11  # 2(p-r-1) + (v-1)p + 1 chunk passes


def test_a_lighter_first_stage_moves_its_layers_on() -> None:
    even, uneven = qwen_30b(pipeline=2), qwen_30b(pipeline=2, first_stage_layers=16)
    layers = [[sum(len(c.layers) for c in rank) for rank in job.chunks] for job in (even, uneven)]
    assert layers == [[24, 24], [16, 32]]
    before, after = (estimate(job).ranks for job in (even, uneven))
    assert after[0].allocated_bytes < before[0].allocated_bytes
    assert after[1].allocated_bytes > before[1].allocated_bytes


# ---- recompute


@pytest.mark.parametrize(
    ("modules", "dropped"),
    [
        (("moe_act",), 48 * 2 * TOKENS * TOP_K * WIDTH),
        # The norm before the experts is a module of its own; the one before attention is fused.
        (("layernorm",), 48 * 2 * TOKENS * HIDDEN),
        (("core_attn",), 48 * 4 * TOKENS * HEADS),  # a fused kernel's log-sum-exp
        (("mlp",), 0),  # there is no dense layer
        (("mla_up_proj",), 0),
        (("shared_experts",), 0),
    ],
)
def test_a_selective_module_drops_its_tensors(modules: tuple[str, ...], dropped: int) -> None:
    assert kept(qwen_30b()) - kept(recomputing(*modules)) == dropped


def test_recompute_of_moe_keeps_what_enters_the_experts() -> None:
    job = recomputing("moe")
    left = {p.tensor for p in alive(estimate(job).worst) if p.category is Category.ACTIVATIONS}
    assert "feed-forward norm output" in left
    assert not left & {tensor.tensor for tensor in experts.expert_tensors(job)}


def test_dense_layers_and_shared_experts_have_modules_of_their_own() -> None:
    text = replace(qwen_30b().text, layers=uniform_layers(48))
    dense, recomputed = (replace(job, text=text) for job in (qwen_30b(), recomputing("mlp")))
    assert kept(dense) - kept(recomputed) == 48 * 2 * TOKENS * 3 * 6144
    shape = ExpertsShape(count=128, top_k=8, size=WIDTH, shared_size=512)
    text = replace(qwen_30b().text, experts=shape)
    shared, recomputed = (replace(job, text=text) for job in (qwen_30b(), recomputing("shared_experts")))
    assert kept(shared) - kept(recomputed) == 48 * 2 * TOKENS * 3 * 512


def test_latent_attention_recomputes_what_it_expands() -> None:
    shape = LatentAttentionShape(
        heads=16, query_rank=None, key_value_rank=512, head_size=128, rotary_size=64, value_size=128
    )
    text = replace(qwen_30b().text, attention=shape)
    latent, recomputed = (replace(job, text=text) for job in (qwen_30b(), recomputing("mla_up_proj")))
    assert kept(latent) - kept(recomputed) == 48 * 2 * TOKENS * 16 * (2 * 192 + 256)


def test_the_delta_rule_recomputes_its_gated_norm() -> None:
    text = replace(
        qwen_30b().text,
        layers=tuple(replace(layer, mixer=Mixer.GATED_DELTA) for layer in qwen_30b().text.layers),
        gated_delta=GatedDeltaShape(key_heads=16, value_heads=32, key_size=128, value_size=128),
    )
    whole, recomputed = (replace(job, text=text) for job in (qwen_30b(), recomputing("gdn_norm_out")))
    assert kept(whole) - kept(recomputed) == 48 * 2 * TOKENS * 32 * 128
    offered = {tuple(r.change.get("model.recompute_modules", ())) for r in find_remedies(whole, 60 * 2**30)}
    assert ("gdn_norm_out",) in offered


def test_full_recompute_keeps_an_input_a_layer_or_a_group_and_replays_it() -> None:
    def inputs(layers: int) -> tuple[int, int]:
        recompute = Recompute(granularity=Granularity.FULL, layers=layers)
        rank = estimate(replace(qwen_30b(), recompute=recompute)).worst
        held = sum(p.bytes for p in alive(rank) if p.tensor == "checkpoint input")
        again = [p.bytes for p in alive(rank, "feed-forward backward") if p.tensor == "expert fc1 output"]
        return held, sum(again)

    one, group = inputs(1), inputs(4)
    assert one[0] == 48 * 2 * TOKENS * HIDDEN == 4 * group[0]
    assert group[1] == 4 * one[1] == 4 * 2 * TOKENS * TOP_K * 2 * WIDTH


def test_block_recompute_leaves_the_later_layers_as_they_are() -> None:
    block = Recompute(granularity=Granularity.FULL, method="block", layers=10)
    rank = estimate(replace(qwen_30b(), recompute=block)).worst
    held = {p.tensor: p.bytes for p in alive(rank) if p.category is Category.ACTIVATIONS}
    assert held["checkpoint input"] == 10 * 2 * TOKENS * HIDDEN
    assert held["routed input"] == 38 * 2 * TOKENS * TOP_K * HIDDEN


# ---- experts


def test_a_capacity_factor_bounds_the_rows_and_padding_makes_them_exact() -> None:
    def rows(**fields: Any) -> int:
        return experts.routed_rows(replace(qwen_30b(), routing=Routing(**fields)))

    balanced = TOKENS * TOP_K
    assert rows(imbalance=1.5) == 1.5 * balanced
    assert rows(imbalance=1.5, capacity_factor=1.25) == 1.25 * balanced
    assert rows(imbalance=1.1, capacity_factor=1.25) == pytest.approx(1.1 * balanced, abs=1)
    assert rows(imbalance=1.1, capacity_factor=1.25, pad_to_capacity=True) == 1.25 * balanced
    assert rows(imbalance=1.5, force_balance=True) == balanced


def test_a_ranks_own_capacity_sizes_every_tensor_whatever_comes() -> None:
    routing = Routing(imbalance=1.1, rank_capacity=1.5, dispatcher=Dispatcher.FLEX, backend="hybridep")
    job = replace(qwen_30b(), routing=routing)
    tensors = sizes(experts.expert_tensors(job))
    assert experts.routed_rows(job) == 1.5 * TOKENS * TOP_K
    assert tensors["routed input"] == 2 * 1.5 * TOKENS * TOP_K * HIDDEN


def test_a_paged_stash_keeps_its_pages_and_one_layer_at_full_size() -> None:
    static = replace(qwen_30b(), routing=Routing(rank_capacity=1.5))
    stashed = replace(static, routing=replace(static.routing, stash=1.1))
    full, pages = (sizes(experts.expert_tensors(job)) for job in (static, stashed))
    assert pages["routed input"] * 1.5 == pytest.approx(full["routed input"] * 1.1, rel=1e-4)
    layer = 2 * int(1.5 * TOKENS * TOP_K) * (HIDDEN + 3 * WIDTH)
    assert experts.exchange_bytes(stashed) - experts.exchange_bytes(static) == layer
    assert kept(stashed) < kept(static)


def test_allgather_passes_the_tokens_of_all_expert_ranks() -> None:
    gathered = replace(qwen_30b(), routing=Routing(dispatcher=Dispatcher.ALLGATHER))
    passing = experts.exchange_bytes(gathered) - 2 * TOKENS * TOP_K * HIDDEN
    assert passing == TOKENS * 8 * (2 * HIDDEN + 5 * 128)  # float probabilities and a map of each expert


# ---- loss and kernels


@pytest.mark.parametrize(
    ("kernel", "bytes_of_a_logit"),
    [
        (CrossEntropy.UNFUSED, 6),
        (CrossEntropy.NATIVE, 10),
        (CrossEntropy.TRANSFORMER_ENGINE, 2),
        (CrossEntropy.LINEAR, 0),
    ],
)
def test_each_loss_kernel_makes_its_copies_of_the_logits(kernel: CrossEntropy, bytes_of_a_logit: int) -> None:
    job = replace(qwen_30b(tensor=2), cross_entropy=kernel)
    assert loss.loss_bytes(job)[1] == bytes_of_a_logit * TOKENS * 151_936 // 2


def test_multi_token_prediction_keeps_one_more_set_of_logits_a_depth() -> None:
    job = replace(qwen_30b(), cross_entropy=CrossEntropy.UNFUSED)
    deep = replace(job, text=replace(job.text, extra_prediction_layers=2))

    def logits(some: TrainingJob) -> int:
        return next(p.bytes for p in alive(estimate(some).worst, "loss") if p.tensor.startswith("logits"))

    assert logits(deep) - logits(job) == 2 * 4 * TOKENS * 151_936


def test_unfused_attention_keeps_a_number_for_every_pair_of_tokens() -> None:
    job = replace(qwen_30b(), attention=Backend.UNFUSED)
    assert attention(job)["attention probabilities"] == 2 * HEADS * TOKENS**2
    dropped = attention(replace(job, attention_dropout=0.1))
    assert dropped["attention dropout output and mask"] == 3 * HEADS * TOKENS**2
    assert "attention probabilities" not in attention(qwen_30b())


def test_dropout_keeps_a_byte_for_every_element_of_the_stream() -> None:
    assert attention(replace(qwen_30b(), hidden_dropout=0.1))["mixer dropout mask"] == TOKENS * HIDDEN


# ---- the runtime


@pytest.mark.parametrize(
    ("card", "deterministic", "mib"),
    [
        (Card.AMPERE, False, 2 * 8 + 5 * 4),
        (Card.HOPPER, False, 2 * 32 + 5 * 32),
        (Card.BLACKWELL, False, 2 * 8 + 5 * 32),
        (Card.BLACKWELL, True, 2 * 32 + 5 * 32),
    ],
)
def test_workspaces_are_those_of_the_card(card: Card, deterministic: bool, mib: int) -> None:
    assert workspace_bytes(replace(qwen_30b(), card=card, deterministic=deterministic)) == mib * MIB


def test_placeholder_gradients_are_one_tensor_a_weight_shape() -> None:
    job = qwen_30b(expert=8)
    (cache,) = dummy_gradients(holding(job), job.text.kinds)
    attention_shapes = HIDDEN * 4096 + HIDDEN * 1024 + 4096 * HIDDEN
    assert cache.bytes == 2 * (attention_shapes + 3 * HIDDEN * WIDTH)
    unfused = replace(job, gradient_accumulation_fusion=False)
    assert dummy_gradients(holding(unfused), job.text.kinds) == ()


def test_pipeline_messages_are_for_neighbours_only() -> None:
    def messages(job: TrainingJob) -> list[int]:
        ranks = estimate(job).ranks
        return [sum(p.bytes for p in alive(r) if p.tensor == "pipeline messages") for r in ranks]

    message = 2 * TOKENS * HIDDEN
    assert messages(qwen_30b()) == [0]
    assert messages(qwen_30b(pipeline=4)) == [message, 2 * message, 2 * message, message]


def test_outside_the_allocator_are_the_context_a_communicator_a_group_and_fragmentation() -> None:
    alone, grouped = (estimate(job).worst for job in (qwen_30b(world_size=64, expert=1), qwen_30b(tensor=2)))
    assert alone.context_bytes == DEFAULT.context_bytes + DEFAULT.communicator_bytes  # data
    assert grouped.context_bytes == DEFAULT.context_bytes + 3 * DEFAULT.communicator_bytes  # and tp, ep
    assert alone.fragmentation_bytes == round(0.10 * alone.allocated_bytes)
    growing = estimate(replace(qwen_30b(), expandable_segments=True)).worst
    assert growing.fragmentation_bytes == round(0.04 * growing.allocated_bytes)
    assert alone.device_bytes == alone.allocated_bytes + alone.context_bytes + alone.fragmentation_bytes
