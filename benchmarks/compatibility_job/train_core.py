"""Train a small LLaVA with mixture-of-experts on photographs, on Megatron Core alone, from 0.12 on.

    python train_core.py --steps 3 [--micro-batch-size 2]

Core's releases differ in the arguments that they take: each call names all that it means, and what a release
does not know by that name is left out.
"""

import argparse
import inspect

import nightly_photos
import numpy
import torch
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.multimodal.llava_model import LLaVAModel
from megatron.core.models.vision import clip_vit_model
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import TransformerConfig

SIDE, PATCH = 112, 14
IMAGE = -200  # the token that Core's LLaVA replaces by a picture
LENGTH = 160


def known(function, **arguments):
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


def transformer(layers, width, feed_forward, **more):
    return TransformerConfig(
        num_layers=layers,
        hidden_size=width,
        num_attention_heads=4,
        ffn_hidden_size=feed_forward,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        # Each of these needs a kernel of CUDA's.
        gradient_accumulation_fusion=False,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        persist_layer_norm=False,
        **more,
    )


def build():
    language = transformer(
        4,
        128,
        256,
        num_query_groups=2,
        num_moe_experts=8,
        moe_router_topk=2,
        moe_ffn_hidden_size=512,
        moe_token_dispatcher_type="alltoall",
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=1e-3,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        normalization="RMSNorm",
        add_bias_linear=False,
    )
    vision, projection = transformer(3, 96, 192), transformer(1, 128, 256)
    layers = get_gpt_layer_local_spec(
        **known(get_gpt_layer_local_spec, num_experts=8, moe_grouped_gemm=False, normalization="RMSNorm")
    )
    dense = get_gpt_layer_local_spec().submodules.mlp
    # Core's own layer for a tower imports Transformer Engine before 0.13.
    tower_layer = get_gpt_layer_local_spec()
    tower_layer.submodules.self_attention.params = {"attn_mask_type": AttnMaskType.no_mask}
    # Without Transformer Engine and apex the tower's norm is torch's bare class, which Core cannot build.
    tower = clip_vit_model.CLIPViTModel.__init__
    tower.__defaults__ = tuple(
        WrappedTorchNorm if default is torch.nn.LayerNorm else default for default in tower.__defaults__
    )
    vision.vision_model_type, language.language_model_type = "clip", "small"
    return language, LLaVAModel(
        **known(
            LLaVAModel.__init__,
            language_transformer_config=language,
            language_transformer_layer_spec=layers,
            language_vocab_size=512,
            language_max_sequence_length=1024,
            vision_transformer_config=vision,
            vision_transformer_layer_spec=tower_layer,
            drop_vision_class_token=True,
            vision_projection_config=projection,
            # A release's layer names the parts of its MLP, or binds them.
            vision_projection_layer_spec=getattr(dense, "submodules", None) or dense.keywords["submodules"],
            vision_projection_type="mlp",
            img_h=SIDE,
            img_w=SIDE,
            patch_dim=PATCH,
            language_position_embedding_type="rope",
            image_token_index=IMAGE,
            tokenizer_type=None,
        )
    )


def batch(photographs):
    """Pictures [n, 3, SIDE, SIDE], and their captions byte by byte after a picture's token."""
    pictures, tokens = [], torch.zeros(len(photographs), LENGTH, dtype=torch.long)
    for row, photograph in enumerate(photographs):
        pixels = numpy.asarray(photograph.image.resize((SIDE, SIDE)), dtype=numpy.float32)
        pictures.append(torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1))
        caption = photograph.caption.encode()[: LENGTH - 2]
        tokens[row, 0] = 1
        tokens[row, 1] = IMAGE
        tokens[row, 2 : 2 + len(caption)] = torch.tensor(list(caption))
    labels = torch.roll(tokens, -1, 1)
    labels[:, -1] = 0
    return {
        "images": torch.stack(pictures).cuda(),
        "input_ids": tokens.cuda(),
        "position_ids": torch.arange(LENGTH).expand_as(tokens).contiguous().cuda(),
        "attention_mask": None,
        "labels": labels.cuda(),
        "loss_mask": (labels > 0).float().cuda(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--micro-batch-size", type=int, default=2)
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    parallel_state.initialize_model_parallel()
    model_parallel_cuda_manual_seed(1234)
    torch.manual_seed(1234)
    configuration, model = build()
    chunks = [
        DistributedDataParallel(
            config=configuration,
            ddp_config=DistributedDataParallelConfig(use_distributed_optimizer=False),
            module=model.cuda(),
        )
    ]
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0), chunks)
    photographs = nightly_photos.load()
    for step in range(arguments.steps):
        first = step * arguments.micro_batch_size
        chosen = [photographs[(first + i) % len(photographs)] for i in range(arguments.micro_batch_size)]
        chunks[0].zero_grad_buffer()
        optimizer.zero_grad()
        losses, mask = chunks[0](**batch(chosen))
        loss = (losses.float() * mask).sum() / mask.sum()
        loss.backward()
        finalize_model_grads(chunks)
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
