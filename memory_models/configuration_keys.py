"""The names of a configuration: which keys memory follows from, and which do not matter.

Tables only. They come from megatron-core's TransformerConfig and Megatron Bridge's
ConfigContainer, versions 0.2 to 0.6; reading.py walks them.
"""

from __future__ import annotations

#: Where each field of a TrainingJob stands in a Bridge configuration.
BRIDGE_KEYS: dict[str, str] = {
    "layout.tensor": "model.tensor_model_parallel_size",
    "layout.pipeline": "model.pipeline_model_parallel_size",
    "layout.context": "model.context_parallel_size",
    "layout.expert": "model.expert_model_parallel_size",
    "layout.expert_tensor": "model.expert_tensor_parallel_size",
    "layout.virtual_pipeline": "model.virtual_pipeline_model_parallel_size",
    "layout.sequence_parallel": "model.sequence_parallel",
    "layout.first_stage_layers": "model.num_layers_in_first_pipeline_stage",
    "layout.last_stage_layers": "model.num_layers_in_last_pipeline_stage",
    "layout.embedding_as_layer": "model.account_for_embedding_in_pipeline_split",
    "layout.loss_as_layer": "model.account_for_loss_in_pipeline_split",
    "layout.custom": "model.pipeline_model_parallel_layout",
    "layout.microbatch_group": "model.microbatch_group_size_per_vp_stage",
    "layout.world_size": "world size",
    "batch.micro": "train.micro_batch_size",
    "batch.total": "train.global_batch_size",
    "batch.sequence_length": "model.seq_length",
    "batch.images": "dataset images",
    "recompute.granularity": "model.recompute_granularity",
    "recompute.method": "model.recompute_method",
    "recompute.layers": "model.recompute_num_layers",
    "recompute.modules": "model.recompute_modules",
    "optimizer.distributed": "ddp.use_distributed_optimizer",
    "optimizer.bucketed": "ddp.overlap_grad_reduce",
    "optimizer.instances": "ddp.num_distributed_optimizer_instances",
    "optimizer.master_bytes": "optimizer.main_params_dtype",
    "optimizer.first_moment_bytes": "optimizer.exp_avg_dtype",
    "optimizer.second_moment_bytes": "optimizer.exp_avg_sq_dtype",
    "optimizer.offload_fraction": "optimizer.optimizer_offload_fraction",
    "precision.parameter_bytes": "model.params_dtype",
    "precision.gradient_bytes": "ddp.grad_reduce_in_fp32",
    "precision.activation_bytes": "model.params_dtype",
    "precision.fp8": "model.fp8",
    "precision.fp8_parameters": "model.fp8_param",
    "precision.fp8_recipe": "model.fp8_recipe",
    "precision.fp16": "model.fp16",
    "sharding": "ddp.data_parallel_sharding_strategy",
    "frozen.language": "model.freeze_language_model",
    "frozen.vision": "model.freeze_vision_model",
    "frozen.projector": "model.freeze_vision_projection",
    "routing.dispatcher": "model.moe_token_dispatcher_type",
    "routing.imbalance": "router imbalance",
    "routing.capacity_factor": "model.moe_expert_capacity_factor",
    "routing.pad_to_capacity": "model.moe_pad_expert_input_to_capacity",
    "routing.rank_capacity": "model.moe_expert_rank_capacity_factor",
    "routing.stash": "model.moe_paged_stash",
    "routing.force_balance": "model.moe_router_force_load_balancing",
    "routing.fused_permutation": "model.moe_permute_fusion",
    "routing.grouped_gemm": "model.moe_grouped_gemm",
    "routing.shared_overlap": "model.moe_shared_expert_overlap",
    "routing.exchange_overlap": "model.overlap_moe_expert_parallel_comm",
    "double_buffer": "ddp.fsdp_double_buffer",
    "routing.backend": "model.moe_flex_dispatcher_backend",
    "offload": "model.offload_modules",
    "offloaded_layers": "model.cpu_offloading_num_layers",
    "graphs.capture": "model.cuda_graph_impl",
    "graphs.scopes": "model.cuda_graph_modules",
    "adapters": "peft",
    "batch.packed": "dataset.enable_in_batch_packing",
    "upstream": "upstream",
    "cross_entropy": "model.cross_entropy_fusion_impl",
    "attention": "model.attention_backend",
    "implementation": "model.transformer_impl",
    "hidden_dropout": "model.hidden_dropout",
    "attention_dropout": "model.attention_dropout",
    "rope_fusion": "model.apply_rope_fusion",
    "bias_activation_fusion": "model.bias_activation_fusion",
    "gradient_accumulation_fusion": "model.gradient_accumulation_fusion",
    "expandable_segments": "env_vars.PYTORCH_CUDA_ALLOC_CONF",
    "user_buffers": "ddp.nccl_ub",
    "text.hidden_size": "model.hidden_size",
    "text.layers": "model.num_layers",
    "text.attention.heads": "model.num_attention_heads",
    "text.attention.groups": "model.num_query_groups",
    "text.attention.head_size": "model.kv_channels",
    "text.attention.qk_norm": "model.qk_layernorm",
    "text.feed_forward_size": "model.ffn_hidden_size",
    "text.vocabulary": "model.vocab_size",
    "text.experts.count": "model.num_moe_experts",
    "text.experts.top_k": "model.moe_router_topk",
    "text.experts.size": "model.moe_ffn_hidden_size",
    "text.experts.shared_size": "model.moe_shared_expert_intermediate_size",
    "text.experts.latent_size": "model.moe_latent_size",
    "text.extra_prediction_layers": "model.mtp_num_layers",
    "text.tied_embeddings": "model.share_embeddings_and_output_weights",
    "vision": "model.vision_config",
    "tower_split": "model.vision_dp_when_cp",
}

#: Keys that change memory and that this model does not follow. Listed in every answer where they are set.
NOT_MODELLED: dict[str, str] = {
    "model.vision_cuda_graph_impl": "the vision tower's CUDA graph",
    "model.dist_train": "the tower on other GPUs",
    "model.distribute_saved_activations": "checkpoint inputs split over tensor-parallel ranks",
    "model.fp32_residual_connection": "a float residual stream",
    "model.fp4": "fp4 weights and activations",
    "model.tp_comm_overlap": "user buffers of overlapped tensor-parallel communication",
    "model.delay_wgrad_compute": "inputs kept for delayed weight gradients",
    "model.hierarchical_context_parallel_sizes": "hierarchical context parallelism",
    "model.experimental_attention_variant": "an experimental attention",
    "model.heterogeneous_block_specs": "layers of unequal shape",
    "model.num_microbatches_with_partial_activation_checkpoints": "recompute for some micro-batches only",
    "model.init_model_with_meta_device": "building on the meta device",
    "ddp.keep_fp8_transpose_cache": "FSDP's fp8 transposes",
    "ddp.suggested_communication_unit_size": "FSDP's prefetch budget",
    "ddp.outer_dp_sharding_strategy": "hybrid sharding",
    "ddp.reduce_scatter_with_fp32_accumulation": "all-to-all copies of gradient buckets",
    "ddp.bucket_size": "padding of gradient buckets",
    "ddp.pad_buckets_for_high_nccl_busbw": "padding of gradient buckets",
    "comm_overlap.tp_comm_overlap": "user buffers of overlapped tensor-parallel communication",
    "dist.use_torch_fsdp2": "torch FSDP2",
    "optimizer.use_torch_optimizer_for_cpu_offload": "the CPU optimizer's copies",
}

_SECTIONS = """
rng rerun_state_machine optimizer_config_override_provider scheduler logger tokenizer checkpoint ft
straggler nvrx_straggler profiling tensor_inspect inprocess_restart validation env_vars callbacks
"""

_WORDS = """
init_ _init seed lr decay loss_scal loss_window hysteresis beta eps momentum clip weight_decay timers
exit interval log_ _log token_id rotary rope epsilon amax margin tp_comm_ wgrad barrier deterministic
autocast qk_clip test_mode softmax aux_loss z_loss jitter router_score router_load topk_ num_groups
group_topk bias_update enable_expert_bias routing_replay drop_policy per_layer num_sms async_tensor
batch_p2p ring_exchange p2p_comm deallocate sync _func backend timeout local_rank lazy sharp nccl_comm
external_gpu device_mapping gloo experimental decentralized jit_fuser overlap_grad overlap_param align_
check_for average_in reduce_div preserve_fp32 symmetric inference mamba_ linear_ dsa_ attn_skip glu_
clamp kitchen only_amax flash_decode batch_invariant te_activation mlp_chunks hf_ restore_ model_name
config_logger kv_channels_ seed_ iters samples rampup gc eval iterations skip decrease hash empty_unused
muon pin_ loss_scaling use_te_rng rng_tracker scatter_embedding parallel_output interleaved language_max
patch_size merge_size sparse_step mlp_only head_dim mrope quant legacy extended_tp calculate_per
memory_efficient zero_centered persist hybrid_context max_seqlen variable_seq transformer_layer_spec
position_embedding use_transformer_engine mtp_ parameter_transpose clone_scatter apply_probs bos_ eos_
padding_for query_key single_qkv bias_dropout masked_softmax weighted_squared ep_overlap attention_mask
dataloader worker sharding pin_memory trust_remote normalization heterogen hetereo grad_scale
output_layer add_ disable_ cp_comm perform_ use_cpu_init num_layers_at no_rope min_offloaded
offload_modules first_last kl_ activation_func embedding_init manual_reg fsdp_manual decoupled
window_attn window_size use_mamba mem_eff cuda_graph_use cuda_graph_retain cuda_graph_warmup should_pad
make_vocab stash_page size_factor_cpu
mixed_prec use_precision distributed_backend high_priority use_tp_pp train_ fp8_interval fp8_wgrad
fp8_dot fp8_multi fp8_quantizer fp4_ quantizer seq_len_interp softmax_scale early_attn cpu_offloading_
conversation pipeline_dtype router_dtype transformer_impl params_dtype remainders main_grads
flex_dispatcher_backend tie_ kind name path digest split shuffle skip_getting fp16_lm defer_embedding
pretrained_checkpoint processor preload blend reset_ random_ create_attention mmap object_storage
validation test_ load save
"""

#: Sections of a configuration that have no say in memory.
HARMLESS_SECTIONS = frozenset(_SECTIONS.split())

#: Parts of key names that mark a key as no memory matter: schedules, seeds, names, constants, timing.
HARMLESS_WORDS = tuple(_WORDS.split())
