"""A module's path says whose its bytes and its seconds are."""

from __future__ import annotations

import pytest

from firstbad_probe.components import component_of_classes, scope_of_path

ROUTED = ("language_model.decoder.layers.0.mlp",)


@pytest.mark.parametrize(
    ("path", "component", "activity"),
    [
        ("vision_model.blocks.3.attn.qkv", "vision", "vision"),
        ("vision_model.patch_embed.proj", "vision", "vision"),
        ("visual.blocks.0.mlp.linear_fc1", "vision", "vision"),
        ("vision_model.merger.linear_fc1", "projector", "projector"),
        ("vision_model.deepstack_merger_list.0.norm", "projector", "projector"),
        ("vision_projection.encoder.linear_fc1", "projector", "projector"),
        ("multi_modal_projector", "projector", "projector"),
        ("language_model.decoder.layers.0.self_attention.linear_qkv", "decoder", "decoder"),
        ("language_model.decoder.layers.0", "decoder", "decoder"),
        ("decoder.layers.0.self_attention.q_projection", "decoder", "decoder"),
        ("language_model.decoder.layers.1.mlp.linear_fc1", "decoder", "decoder"),
        ("language_model.decoder.final_layernorm", "decoder", "decoder"),
        ("language_model.rotary_pos_emb", "decoder", "decoder"),
        ("language_model.decoder.layers.0.mlp", "experts", "dispatch"),
        ("language_model.decoder.layers.0.mlp.router", "experts", "dispatch"),
        ("language_model.decoder.layers.0.mlp.experts.local_experts.7.linear_fc2", "experts", "experts"),
        ("language_model.decoder.layers.0.mlp.shared_experts.linear_fc1", "experts", "experts"),
        ("language_model.embedding.word_embeddings", "embedding_and_loss", "embedding_and_loss"),
        ("language_model.output_layer", "embedding_and_loss", "embedding_and_loss"),
        ("language_model", "embedding_and_loss", "embedding_and_loss"),
        ("", "embedding_and_loss", "embedding_and_loss"),
    ],
)
def test_a_path_belongs_to_one_component_and_one_activity(path: str, component: str, activity: str) -> None:
    scope = scope_of_path(path, routed=ROUTED)
    assert (scope.component, scope.activity) == (component, activity)
    assert scope.path == (path or "model")


@pytest.mark.parametrize(
    ("classes", "component"),
    [
        (["Qwen3VLModel", "Qwen3VLMoeVisionModel", "Qwen3VLMoeVisionBlock", "Linear"], "vision"),
        (["Qwen3VLModel", "Qwen3VLMoeVisionModel", "Qwen3VLMoeVisionPatchMerger", "Linear"], "projector"),
        (["Qwen3VLModel", "GPTModel", "TransformerBlock", "TransformerLayer", "SelfAttention"], "decoder"),
        (["GPTModel", "TransformerBlock", "TransformerLayer", "MoELayer", "SequentialMLP", "MLP"], "experts"),
        (["GPTModel", "TransformerBlock", "TransformerLayer", "MLP"], "decoder"),
        (["GPTModel", "LanguageModelEmbedding", "VocabParallelEmbedding"], "embedding_and_loss"),
        (["GPTModel", "ColumnParallelLinear"], "embedding_and_loss"),
        ([], "runtime"),
    ],
)
def test_a_module_under_construction_is_known_by_the_classes_around_it(
    classes: list[str], component: str
) -> None:
    assert component_of_classes(classes) == component
