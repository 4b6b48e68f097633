"""Which storages of the probe each term of the unfused model stands for: the table, and how it is matched.

A match sets the sum of some terms of one component against the sum of some storages of it. They are
single terms wherever module, operation and size tell them apart; terms whose tensors one module makes
alike (the norms' two products, residuals) share a match. Storages are rounded up to 512 bytes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memory_models.breakdown import Category, Component
from memory_models.tensors import Part

ROUNDING_BYTES = 512
V, J, D, E, L, R = Component
KEPT = (Category.ACTIVATIONS,)
#: A weight's own gradient is among the gradients until it is added to their buffer.
PASSING = (Category.TEMPORARY, Category.COMMUNICATION, Category.GRADIENTS)

ATTENTION = "layers.*.self_attention"
CORE = f"{ATTENTION}.core_attention"
SOFTMAX = f"{CORE}.scale_mask_softmax"
EXPERT = "layers.*.mlp.experts.local_experts.*"
TOWER, MERGERS = "vision_model.blocks.*", ("vision_model.merger", "vision_model.deepstack_merger_list.*")


@dataclass(frozen=True)
class Match:
    """Terms of one component, and the storages that they count.

    A storage is "PATH OPERATION"; with "largest" or "smallest" behind it, those of that size among
    them, where one operation of a module keeps tensors of two sizes.
    """

    component: Component
    categories: tuple[Category, ...]
    terms: tuple[str, ...]
    storages: tuple[str, ...]


def kept(component: Component, terms: str, *storages: str) -> Match:
    return Match(component, KEPT, tuple(terms.split(" + ")), storages)


def passing(component: Component, terms: str, *storages: str) -> Match:
    return Match(component, PASSING, tuple(terms.split(" + ")), storages)


DECODER = (
    kept(
        D,
        "mixer residual + feed-forward residual + final residual + checkpoint input"
        " + output of the group, made again",
        "layers.* add.Tensor",
        "language_model.decoder clone.default",  # a layer's output with deepstack features
        "messages between pipeline stages empty.memory_format",  # what the first layer of a stage reads
    ),
    kept(
        D,
        "mixer normalised stream + mixer norm output + mixer norm output, made again",
        "layers.*.input_layernorm mul.Tensor",
        f"{ATTENTION}.linear_proj resize",
    ),
    kept(D, "mixer norm statistics", "layers.*.input_layernorm rsqrt.default"),
    kept(
        D,
        "feed-forward normalised stream + feed-forward norm output + feed-forward norm output, made again",
        "layers.*.pre_mlp_layernorm mul.Tensor",
        "layers.*.mlp.linear_fc2 resize",
    ),
    kept(D, "feed-forward norm statistics", "layers.*.pre_mlp_layernorm rsqrt.default"),
    kept(D, "final normalised stream + final norm output", "final_layernorm mul.Tensor"),
    kept(D, "final norm statistics", "final_layernorm rsqrt.default"),
    kept(D, "joint query, key and value", f"{ATTENTION}.linear_qkv mm.default"),
    kept(D, "query before its norm, copied", f"{ATTENTION} clone.default"),
    kept(D, "normalised query", f"{ATTENTION}.q_layernorm mul.Tensor"),
    kept(D, "normalised key", f"{ATTENTION}.k_layernorm mul.Tensor"),
    kept(
        D,
        "query and key norm statistics",
        f"{ATTENTION}.q_layernorm rsqrt.default",
        f"{ATTENTION}.k_layernorm rsqrt.default",
    ),
    kept(D, "cosines and sines", f"{ATTENTION} mul.Tensor"),
    kept(D, "rotated query + rotated key", f"{ATTENTION} cat.default"),
    kept(
        D,
        "repeated key + repeated value + attention output + attention output, made again",
        f"{CORE} clone.default",
    ),
    kept(D, "attention probabilities", f"{SOFTMAX} _softmax.default"),
    kept(D, "attention mask", f"{SOFTMAX} _to_copy.default"),
    kept(D, "attention input buffer", f"{CORE} empty.memory_format"),
    kept(D, "rotary angles", "language_model.rotary_pos_emb clone.default"),
    kept(D, "feed-forward fc1 output", "layers.*.mlp.linear_fc1 mm.default"),
    kept(D, "feed-forward activation", "layers.*.mlp mul.Tensor"),
    passing(
        D,
        "gradients of scores, copied for the mask",
        f"{SOFTMAX} clone.default",
        f"{SOFTMAX} masked_fill.Scalar",
        f"{SOFTMAX} new_empty_strided.default",
        f"{SOFTMAX} new_zeros.default",
    ),
    passing(D, "gradient of the repeated value", f"{CORE} bmm.default", f"{CORE} clone.default"),
    passing(D, "gradient of the attention output", f"{ATTENTION}.linear_proj mm.default"),
    passing(
        D,
        "gradient of the residual + gradient of the layer's output + gradient sent last"
        " + gradients of recomputed inputs, held with the routing",
        "layers.*.pre_mlp_layernorm add.Tensor",
        "layers.*.input_layernorm add.Tensor",
        "layers.* add.Tensor",
        "final_layernorm add.Tensor",
    ),
    passing(
        D,
        "gradients within the dense part",
        "layers.*.mlp mul.Tensor",
        "layers.*.mlp cat.default",
        "layers.*.mlp.linear_fc2 mm.default",
    ),
)

EXPERTS = (
    kept(E, "scores of the auxiliary loss", "layers.*.mlp.router _softmax.default largest"),
    kept(E, "probabilities of the chosen", "layers.*.mlp.router _softmax.default smallest"),
    kept(E, "chosen experts", "layers.*.mlp.router topk.default"),
    kept(E, "router probabilities", "layers.*.mlp.router scatter.src"),
    kept(E, "routing map", "layers.*.mlp.router _to_copy.default"),
    kept(E, "probabilities and map by expert", "layers.*.mlp clone.default"),
    kept(E, "row indices", "layers.*.mlp masked_select.default"),
    kept(E, "routed input + routed probabilities", "layers.*.mlp cat.default"),
    kept(E, "expert fc1 output", f"{EXPERT}.linear_fc1 mm.default"),
    kept(E, "expert activation + expert product before its probability", f"{EXPERT} mul.Tensor"),
    kept(
        E,
        "expert gate and shifted linear part",
        f"{EXPERT} silu.default",
        f"{EXPERT} add.Tensor",
    ),
    kept(E, "shared expert fc1 output", "layers.*.mlp.shared_experts.linear_fc1 mm.default"),
    kept(E, "shared expert activation", "layers.*.mlp.shared_experts mul.Tensor"),
    kept(E, "experts' output, made again", "layers.*.mlp zeros.default"),
    passing(
        E,
        "gradients of recomputed inputs, held with the routing",
        "layers.*.mlp.router add.Tensor",
    ),
    passing(E, "gradient of the routed rows", "layers.*.mlp cat.default"),
    passing(
        E,
        "gradients within one expert",
        f"{EXPERT} mul.Tensor",
        f"{EXPERT} cat.default",
        f"{EXPERT}.linear_fc2 mm.default",
    ),
)

PICTURES = (
    kept(V, "patch input", "batch clone.default"),
    kept(V, "vision residuals + merger input", "vision_model add.Tensor", f"{TOWER} add.Tensor"),
    kept(
        V,
        "vision norm outputs",
        f"{TOWER}.norm1 native_layer_norm.default largest",
        f"{TOWER}.norm2 native_layer_norm.default largest",
    ),
    kept(
        V,
        "vision norm statistics",
        f"{TOWER}.norm1 native_layer_norm.default smallest",
        f"{TOWER}.norm2 native_layer_norm.default smallest",
    ),
    kept(V, "vision qkv", f"{TOWER}.attn.qkv addmm.default"),
    kept(V, "vision rotated query and key", f"{TOWER}.attn add.Tensor"),
    kept(
        V,
        "vision attention outputs of pictures",
        f"{TOWER}.attn _scaled_dot_product_flash_attention_for_cpu.default largest",
    ),
    kept(
        V,
        "vision log-sum-exp",
        f"{TOWER}.attn _scaled_dot_product_flash_attention_for_cpu.default smallest",
    ),
    kept(V, "vision attention output, joined", f"{TOWER}.attn cat.default"),
    kept(V, "vision fc1 output", f"{TOWER}.mlp.linear_fc1 addmm.default"),
    kept(V, "vision activation", f"{TOWER}.mlp.act_fn gelu.default"),
    kept(V, "vision cosines and sines", "vision_model cos.default", "vision_model sin.default"),
    kept(V, "positions and their weights", "vision_model lift_fresh.default"),
    kept(J, "merger norm output", *(f"{path}.norm native_layer_norm.default largest" for path in MERGERS)),
    kept(
        J, "merger norm statistics", *(f"{path}.norm native_layer_norm.default smallest" for path in MERGERS)
    ),
    kept(J, "merger fc1 output", *(f"{path}.linear_fc1 addmm.default" for path in MERGERS)),
    kept(J, "merger activation", *(f"{path}.act_fn gelu.default" for path in MERGERS)),
    passing(
        V,
        "gradient of a vision activation + gradient of a vision weight",
        f"{TOWER}.mlp.linear_fc2 mm.default",
        f"{TOWER}.mlp.linear_fc2 sum.dim_IntList",  # of its bias
    ),
    passing(
        J,
        "gradient of the last block's output",
        "vision_model.merger.norm native_layer_norm_backward.default",
    ),
    passing(D, "gradients of deepstack features", "language_model.decoder index.Tensor"),
)

LOSS = (
    kept(L, "embedded tokens", "model clone.default"),
    kept(
        L,
        "token ids + loss mask",
        "batch clone.default",
        "language_model.embedding.word_embeddings sub.Tensor",  # ids within a rank's part of the vocabulary
    ),
    kept(L, "words of other ranks", "language_model.embedding.word_embeddings bitwise_or.Tensor"),
    kept(L, "places of pictures", "model eq.Scalar"),
    kept(L, "exponentials of the logits", "language_model.output_layer mm.default"),
    kept(
        L,
        "targets and their mask",
        "language_model sub.Tensor",
        "language_model bitwise_or.Tensor",
    ),
    passing(L, "gradient of the logits", "language_model _to_copy.default"),
    passing(R, "gradient received", "messages between pipeline stages empty.memory_format"),
)

#: Where activations are narrower than floats, norms, softmax and loss work on float copies of their own.
NARROW = (
    *(
        match
        for part, norm in (
            ("mixer", "layers.*.input_layernorm"),
            ("feed-forward", "layers.*.pre_mlp_layernorm"),
            ("final", "final_layernorm"),
        )
        for match in (
            kept(D, f"{part} residual", f"{norm} _to_copy.default largest"),
            kept(D, f"{part} normalised stream", f"{norm} mul.Tensor"),
            kept(D, f"{part} norm output", f"{norm} _to_copy.default smallest"),
        )
    ),
    kept(
        D,
        "query and key in float",
        f"{ATTENTION}.q_layernorm _to_copy.default",
        f"{ATTENTION}.k_layernorm _to_copy.default",
    ),
    kept(D, "cosines and sines", f"{ATTENTION} _to_copy.default"),
    kept(D, "attention probabilities, narrow copy", f"{SOFTMAX} _to_copy.default largest"),
    kept(D, "attention mask", f"{SOFTMAX} _to_copy.default smallest"),
    kept(E, "expert activation", f"{EXPERT} _to_copy.default"),
    kept(V, "patch input", "vision_model.patch_embed _to_copy.default"),
    kept(V, "vision rotated query and key", f"{TOWER}.attn _to_copy.default largest"),
    kept(V, "vision cosines and sines", f"{TOWER}.attn _to_copy.default smallest"),
    kept(L, "exponentials of the logits", "language_model _to_copy.default"),
    # Within forward, where the peak of such a run lies.
    passing(D, "attention scores", f"{CORE} baddbmm.default", f"{SOFTMAX} _to_copy.default"),
    passing(
        D,
        "joint tensor, normalised query, keys",
        f"{ATTENTION}.linear_qkv mm.default",
        f"{ATTENTION}.q_layernorm _to_copy.default",
        f"{ATTENTION}.k_layernorm _to_copy.default",
        f"{ATTENTION} cat.default",
    ),
    passing(
        D,
        "gradient of the residual + residual that the norm copied",
        "layers.*.pre_mlp_layernorm add.Tensor",
        "layers.* add.Tensor",
    ),
    passing(D, "rotary angles", "language_model.rotary_pos_emb clone.default"),
    passing(V, "pixels", "batch clone.default"),
    passing(J, "image embeddings", *(f"{path}.linear_fc2 addmm.default" for path in MERGERS)),
    passing(L, "embedded tokens", "model clone.default"),
    passing(L, "batch and positions", "batch clone.default", "model ones.default"),
)

MATCHES: tuple[Match, ...] = (*DECODER, *EXPERTS, *PICTURES, *LOSS)


def matches_of(*, narrow: bool) -> tuple[Match, ...]:
    """The table for float activations, or for narrower ones."""
    if not narrow:
        return MATCHES
    replaced = {(match.component, match.categories, term) for match in NARROW for term in match.terms}
    others = (
        match
        for match in MATCHES
        if not any((match.component, match.categories, term) in replaced for term in match.terms)
    )
    return (*NARROW, *others)


#: Component, whether it is kept, path and operation.
_Kind = tuple[Component, bool, str, str]


def mismatches(
    parts: Iterable[Part], rows: Iterable[list[Any]], slack: float = 0.0, *, narrow: bool = False
) -> Iterator[str]:
    """Everything that does not fit: terms and storages that differ, terms and storages without the other.

    ``slack`` is the share by which terms may be off beside, where the load of experts is rounded to rows.
    """
    terms = _terms(parts)
    storages = _storages(rows)
    claimed: set[tuple[_Kind, int]] = set()
    matched: set[tuple[Component, bool, str]] = set()
    for match in matches_of(narrow=narrow):
        is_kept = match.categories is KEPT
        names = [(match.component, is_kept, name) for name in match.terms]
        matched.update(names)
        expected = sum(terms.get(name, 0) for name in names)
        found = list(_found(match, is_kept, storages, expected > 0))
        claimed.update((kind, size) for kind, size, _, _ in found)
        measured = sum(total for _, _, total, _ in found)
        count = sum(many for _, _, _, many in found)
        room = slack * expected
        if not -room <= measured - expected <= ROUNDING_BYTES * count + room:
            yield f"{match.component.value}: {' + '.join(match.terms)}: {expected} bytes, measured {measured}"
    for component, is_kept, name in terms:
        if (component, is_kept, name) not in matched:
            yield f"{component.value}: {name} stands for no storage"
    for kind, sizes in storages.items():
        for size, (total, count) in sizes.items():
            if (kind, size) not in claimed:
                component, is_kept, path, operation = kind
                what = f"{count} storages of {path} {operation}, {total} bytes"
                yield f"{component.value}: {what} {'kept' if is_kept else 'passing'}: no term"


def _terms(parts: Iterable[Part]) -> dict[tuple[Component, bool, str], int]:
    sums: dict[tuple[Component, bool, str], int] = defaultdict(int)
    for part in parts:
        if part.category in (Category.ACTIVATIONS, Category.TEMPORARY, Category.COMMUNICATION):
            sums[part.component, part.category in KEPT, part.tensor] += part.bytes
    return sums


def _storages(rows: Iterable[list[Any]]) -> Mapping[_Kind, dict[int, tuple[int, int]]]:
    """Kind to size of one storage (0 where they vary) to bytes and count of all."""
    found: dict[_Kind, dict[int, tuple[int, int]]] = defaultdict(dict)
    for component, category, _, path, operation, count, total in rows:
        if path == "small":
            continue
        kind = Component(component), Category(category) in KEPT, path, operation
        size = total // count
        bytes_before, count_before = found[kind].get(size, (0, 0))
        found[kind][size] = bytes_before + total, count_before + count
    return found


def _found(
    match: Match, is_kept: bool, storages: Mapping[_Kind, dict[int, tuple[int, int]]], some: bool
) -> Iterator[tuple[_Kind, int, int, int]]:
    """Kind, size, bytes and count of a match's storages; ``some`` where its terms have any bytes at all."""
    for storage in match.storages:
        which = ""
        if storage.endswith((" largest", " smallest")):
            storage, which = storage.rsplit(" ", 1)
        path, operation = storage.rsplit(" ", 1)
        kind = match.component, is_kept, path, operation
        sizes = storages.get(kind, {})
        for size, (total, count) in sizes.items():
            # Where only one of two tensors is kept, its size does not tell which: the terms do.
            wanted = some if len(sizes) == 1 else (size == max(sizes)) is (which == "largest")
            if not which or wanted:
                yield kind, size, total, count
