"""A small mixture-of-experts vision-language model in plain torch, laid out as Qwen3-VL-MoE is.

Without Megatron and Transformer Engine, so that the probe can be tried wherever torch runs. Its modules bear
the names that the real ones have; its configuration is one that Hugging Face writes for such a model.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def configuration(scale: int = 1) -> dict:
    """The config.json of this model; `scale` makes all widths larger."""
    hidden, tower = 256 * scale, 128 * scale
    return {
        "model_type": "qwen3_vl_moe",
        "architectures": ["Qwen3VLMoeForConditionalGeneration"],
        "image_token_id": 5,
        "torch_dtype": "float32",
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "qwen3_vl_moe_text",
            "hidden_size": hidden,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 32 * scale,
            "intermediate_size": 2 * hidden,
            "moe_intermediate_size": hidden // 2,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "vocab_size": 4096,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "hidden_act": "silu",
            "attention_bias": False,
            "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]},
        },
        "vision_config": {
            "model_type": "qwen3_vl_moe",
            "depth": 4,
            "hidden_size": tower,
            "num_heads": 4,
            "intermediate_size": 2 * tower,
            "patch_size": 16,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "in_channels": 3,
            "out_hidden_size": hidden,
            "num_position_embeddings": 576,
            "deepstack_visual_indexes": [1],
            "hidden_act": "gelu_pytorch_tanh",
        },
    }


class VisionBlock(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.linear_fc1, self.linear_fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, hidden):
        query, key, value = self.qkv(self.norm1(hidden)).chunk(3, dim=-1)
        mixed = attend(query, key, value, self.heads, self.heads, causal=False)
        hidden = hidden + self.proj(mixed)
        inner = nn.functional.gelu(self.linear_fc1(self.norm2(hidden)), approximate="tanh")
        return hidden + self.linear_fc2(inner)


class Merger(nn.Module):
    def __init__(self, width, out, *, norm_after_merge):
        super().__init__()
        self.wide = 4 * width
        self.norm_after_merge = norm_after_merge
        self.norm = nn.LayerNorm(self.wide if norm_after_merge else width)
        self.linear_fc1, self.linear_fc2 = nn.Linear(self.wide, self.wide), nn.Linear(self.wide, out)

    def forward(self, hidden):
        if self.norm_after_merge:
            hidden = self.norm(hidden.reshape(-1, self.wide))
        else:
            hidden = self.norm(hidden).reshape(-1, self.wide)
        return self.linear_fc2(nn.functional.gelu(self.linear_fc1(hidden)))


class VisionModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        width, out = config["hidden_size"], config["out_hidden_size"]
        patch = (config["temporal_patch_size"], config["patch_size"], config["patch_size"])
        self.patch = (config["in_channels"], *patch)
        self.patch_embed = nn.Conv3d(config["in_channels"], width, kernel_size=patch, stride=patch)
        self.pos_embed = nn.Embedding(config["num_position_embeddings"], width)
        self.blocks = nn.ModuleList(
            VisionBlock(width, config["num_heads"], config["intermediate_size"])
            for _ in range(config["depth"])
        )
        self.merger = Merger(width, out, norm_after_merge=False)
        self.taken = config["deepstack_visual_indexes"]
        self.deepstack_merger_list = nn.ModuleList(
            Merger(width, out, norm_after_merge=True) for _ in self.taken
        )

    def forward(self, pixel_values):
        hidden = self.patch_embed(pixel_values.view(-1, *self.patch)).flatten(1)
        places = torch.arange(hidden.shape[0], device=hidden.device) % self.pos_embed.num_embeddings
        hidden = (hidden + self.pos_embed(places)).unsqueeze(0)
        extra = []
        for number, block in enumerate(self.blocks):
            hidden = block(hidden)
            if number in self.taken:
                extra.append(self.deepstack_merger_list[self.taken.index(number)](hidden))
        return self.merger(hidden), extra


class Experts(nn.Module):
    def __init__(self, count, hidden, inner):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(count, hidden, 2 * inner) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(count, inner, hidden) * 0.02)

    def forward(self, rows, by_expert):
        """rows: [tokens of all experts, hidden], sorted by expert; by_expert: tokens of each."""
        results = []
        for number, given in enumerate(rows.split(by_expert.tolist())):
            gate, up = (given @ self.gate_up_proj[number]).chunk(2, dim=-1)
            results.append((nn.functional.silu(gate) * up) @ self.down_proj[number])
        return torch.cat(results)


class MoeLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.count, self.top_k = config["num_experts"], config["num_experts_per_tok"]
        self.router = nn.Linear(config["hidden_size"], self.count, bias=False)
        self.experts = Experts(self.count, config["hidden_size"], config["moe_intermediate_size"])

    def forward(self, hidden):
        flat = hidden.reshape(-1, hidden.shape[-1])
        weights, chosen = self.router(flat).softmax(dim=-1).topk(self.top_k, dim=-1)
        order = chosen.flatten().argsort()
        tokens = order // self.top_k
        by_expert = torch.bincount(chosen.flatten(), minlength=self.count).cpu()
        given = self.experts(flat[tokens], by_expert) * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(flat).index_add(0, tokens, given).view_as(hidden)


class DecoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, size = config["hidden_size"], config["head_dim"]
        self.heads, self.groups = config["num_attention_heads"], config["num_key_value_heads"]
        self.input_layernorm, self.pre_mlp_layernorm = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.q_norm, self.k_norm = nn.RMSNorm(size), nn.RMSNorm(size)
        self.linear_q = nn.Linear(hidden, self.heads * size, bias=False)
        self.linear_k = nn.Linear(hidden, self.groups * size, bias=False)
        self.linear_v = nn.Linear(hidden, self.groups * size, bias=False)
        self.linear_proj = nn.Linear(self.heads * size, hidden, bias=False)
        self.mlp = MoeLayer(config)

    def forward(self, hidden):
        normed = self.input_layernorm(hidden)
        query = self.q_norm(self.linear_q(normed).unflatten(-1, (self.heads, -1))).flatten(-2)
        key = self.k_norm(self.linear_k(normed).unflatten(-1, (self.groups, -1))).flatten(-2)
        value = self.linear_v(normed)
        hidden = hidden + self.linear_proj(attend(query, key, value, self.heads, self.groups, causal=True))
        return hidden + self.mlp(self.pre_mlp_layernorm(hidden))


class LanguageModel(nn.Module):
    def __init__(self, config, recompute):
        super().__init__()
        self.recompute = recompute
        self.embedding = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config["num_hidden_layers"]))
        self.decoder.final_layernorm = nn.RMSNorm(config["hidden_size"])
        self.output_layer = nn.Linear(config["hidden_size"], config["vocab_size"], bias=False)

    def forward(self, hidden, images, extra):
        for number, layer in enumerate(self.decoder.layers):
            if self.recompute and self.training:
                hidden = checkpoint(layer, hidden, use_reentrant=False)
            else:
                hidden = layer(hidden)
            if number < len(extra):
                hidden = hidden.masked_scatter(images, hidden[images].flatten() + extra[number].flatten())
        return self.output_layer(self.decoder.final_layernorm(hidden))


class SmallVlm(nn.Module):
    """Answers the loss. input_ids: [batch, sequence]; pixel_values: [patches, values]."""

    def __init__(self, config, *, recompute=False):
        super().__init__()
        self.image_token_id = config["image_token_id"]
        self.vision_model = VisionModel(config["vision_config"])
        self.language_model = LanguageModel(config["text_config"], recompute)

    def forward(self, input_ids, pixel_values, labels, loss_mask, **_described):
        embedded, extra = self.vision_model(pixel_values)
        hidden = self.language_model.embedding(input_ids)
        images = (input_ids == self.image_token_id).unsqueeze(-1).expand_as(hidden)
        hidden = hidden.masked_scatter(images, embedded.flatten())
        logits = self.language_model(hidden, images, extra)
        loss = nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
        return (loss * loss_mask.flatten()).sum() / loss_mask.sum()


def attend(query, key, value, heads, groups, *, causal):
    query = query.unflatten(-1, (heads, -1)).transpose(1, 2)
    key, value = (
        part.unflatten(-1, (groups, -1)).transpose(1, 2).repeat_interleave(heads // groups, dim=1)
        for part in (key, value)
    )
    mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return mixed.transpose(1, 2).flatten(-2)


def batch(config, device, *, samples=2, sequence=256, patches=128):
    """Images of `patches` patches a sample; light and dark parts, as photographs have."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(6, 4096, (samples, sequence), generator=generator)
    tokens[:, : patches // 4] = config["image_token_id"]
    mask = torch.ones(samples, sequence)
    mask[:, : patches // 4] = 0
    pixels = torch.rand(samples * patches, 3 * 2 * 16 * 16, generator=generator)
    pixels += torch.linspace(0, 1, samples * patches)[:, None]
    grids = torch.tensor([[1, 8, patches // 8]] * samples)
    named = {
        "input_ids": tokens,
        "pixel_values": pixels,
        "labels": tokens.roll(-1, 1),
        "loss_mask": mask,
        "image_grid_thw": grids,
    }
    return {name: tensor.to(device) for name, tensor in named.items()}
