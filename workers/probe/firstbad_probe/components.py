"""Which component a module belongs to, and which activity its time counts as.

The words are those of the memory breakdown that everyone downstream reads; the
rules go by the names in a module's path (or the class names of modules under
construction). Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

VISION = "vision"
PROJECTOR = "projector"
DECODER = "decoder"
EXPERTS = "experts"
EMBEDDING_AND_LOSS = "embedding_and_loss"
RUNTIME = "runtime"
COMPONENTS = (VISION, PROJECTOR, DECODER, EXPERTS, EMBEDDING_AND_LOSS, RUNTIME)

DISPATCH = "dispatch"
OPTIMIZER = "optimizer"
DATA = "data"
IDLE = "idle"

_PROJECTOR_NAMES = (
    "merger",
    "deepstack_merger",
    "multi_modal_proj",
    "mm_proj",
    "vision_proj",
    "encoder_proj",
    "projector",
)
_VISION_NAMES = ("vision", "visual", "vit", "image_encoder", "clip")
_LOSS_NAMES = ("embedding", "word_embeddings", "output_layer", "lm_head", "embed_tokens")
_DECODER_NAMES = ("decoder", "layers", "rotary_pos_emb", "mtp")


@dataclass(frozen=True)
class Scope:
    """A place in the model (or around it) that bytes and seconds are written to."""

    component: str
    activity: str
    path: str  #: e.g. language_model.decoder.layers.1.mlp.experts


#: Outside of everything that is known.
OUTSIDE = Scope(RUNTIME, IDLE, "outside the model")
BATCH = Scope(RUNTIME, DATA, "batch")
LOSS = Scope(EMBEDDING_AND_LOSS, EMBEDDING_AND_LOSS, "loss function")
GRADIENT_SYNC = Scope(RUNTIME, OPTIMIZER, "gradient synchronisation")
OPTIMIZER_STEP = Scope(RUNTIME, OPTIMIZER, "optimizer")
MESSAGES = Scope(RUNTIME, IDLE, "messages between pipeline stages")


def scope_of_path(path: str, *, routed: Iterable[str] = ()) -> Scope:
    """The scope of a module by its dotted path inside the unwrapped model.

    `routed` holds the paths of the mixture-of-experts layers: what such a layer
    does outside its router and experts is dispatch. The own operations of the
    model's root and of the language model's root (scattering image embeddings,
    handling logits) belong to the embedding and the loss.
    """
    names = path.split(".") if path else []
    component = activity = EMBEDDING_AND_LOSS
    if any(name.startswith(_PROJECTOR_NAMES) for name in names):
        component = activity = PROJECTOR
    elif any(name.startswith(_VISION_NAMES) for name in names):
        component = activity = VISION
    elif "experts" in names or "shared_experts" in names:
        component = activity = EXPERTS
    elif "router" in names or any(path == layer or path.startswith(f"{layer}.") for layer in routed):
        component, activity = EXPERTS, DISPATCH
    elif any(name in _LOSS_NAMES for name in names):
        pass
    elif any(name in _DECODER_NAMES for name in names):
        component = activity = DECODER
    return Scope(component, activity, path or "model")


def component_of_classes(class_names: Iterable[str]) -> str:
    """The component under construction, from the classes of the modules whose `__init__` runs.

    Outermost first. It serves only until the model is complete and paths exist.
    """
    component = RUNTIME
    for name in class_names:
        lower = name.lower()
        if "merger" in lower or "projector" in lower:
            return PROJECTOR
        if "vision" in lower or "vit" in lower or "clip" in lower:
            component = VISION
        elif component == VISION:
            continue
        elif "expert" in lower or ("moe" in lower and "layer" in lower) or "router" in lower:
            return EXPERTS
        elif "transformerlayer" in lower or "transformerblock" in lower or "rotary" in lower:
            component = DECODER
        elif component == RUNTIME:
            component = EMBEDDING_AND_LOSS
    return component
