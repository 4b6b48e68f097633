"""The commit's own training loop on fakes: Bridge's pretrain, fed with one microbatch again and again."""

from __future__ import annotations

import dataclasses
import functools
import os
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from firstbad_probe.dry_run import fakes, kernels, world
from firstbad_probe.dry_run.cost import Cost
from firstbad_probe.dry_run.known_values import KnownValues
from firstbad_probe.dry_run.limits import not_modelled
from firstbad_probe.dry_run.microbatch import Microbatches, TokenIds, Workload
from firstbad_probe.dry_run.orders import PRODUCTION, Orders
from firstbad_probe.dry_run.routing import Routing
from firstbad_probe.dry_run.stages import stages_of
from firstbad_probe.imports import ImportCallbacks
from firstbad_probe.observer import Observer
from firstbad_probe.patches import Patches

#: The optimizer's states are made in the first step, so that the second shows their weight.
STEPS = 2


class Rehearsal:
    """Holds what lasts from the start of pretrain to its end."""

    def __init__(self, orders: Orders, patches: Patches, observer: Observer) -> None:
        self._orders = orders
        self._patches = patches
        self._observer = observer
        self._fakes = FakeTensorMode(allow_non_fake_inputs=True)
        self.values = KnownValues(self._fakes, Routing())
        self._configuration: Any = None
        self._cost: Cost | None = None  #: of a job without Bridge's loop, from where its world began

    def install(self, callbacks: ImportCallbacks) -> None:
        world.install(self._patches)
        if self._orders.layers == PRODUCTION:
            kernels.install(self._patches, self._observer.storages)
        fakes.install(self._patches, self.values)
        callbacks.after("megatron.bridge.training.setup", self._hook_data)
        callbacks.after("megatron.bridge.training.pretrain", self._hook_pretrain)
        callbacks.after("megatron.core.transformer.transformer_config", self._hook_configuration)
        self._hook_world()

    def _hook_world(self) -> None:
        """A job without Bridge's loop is on fakes from where it joins its world, to its end."""
        join = torch.distributed.init_process_group

        @functools.wraps(join)
        def init_process_group(*args: Any, **keywords: Any) -> None:
            join(*args, **keywords)
            if self._configuration is None and self._cost is None:
                self._cost = Cost()
                self._fakes.__enter__()
                self.values.__enter__()  # type: ignore[no-untyped-call]

        torch.distributed.init_process_group = init_process_group

    def end(self) -> None:
        """Back to real tensors, however the job ended."""
        if self._cost is None:
            return
        self._observer.storages.stop()
        self.values.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._fakes.__exit__(None, None, None)
        self._tell()
        self._cost.write(self._observer.settings)

    def _hook_configuration(self, module: Any) -> None:
        """The router's numbers, where no loop of Bridge's tells them."""
        check = module.TransformerConfig.__post_init__

        @functools.wraps(check)
        def post_init(config: Any, *args: Any, **keywords: Any) -> None:
            check(config, *args, **keywords)
            if self._configuration is None and config.num_moe_experts:
                self.values.routing = self._routing(config)

        module.TransformerConfig.__post_init__ = post_init

    def _routing(self, model: Any) -> Routing:
        return Routing(
            experts=getattr(model, "num_moe_experts", None) or 0,
            chosen=getattr(model, "moe_router_topk", 0),
            skew=self._orders.skew,
            weights=self._orders.expert_shares,
        )

    def _hook_data(self, module: Any) -> None:
        def setup_data_iterators(*_: Any, **keywords: Any) -> Any:
            self._patches.use("dry run: microbatches instead of the data set")
            chunks = keywords.get("model_length", 1)
            keywords["train_state"].do_train = True
            iterators = [self._microbatches() for _ in range(chunks)]
            return (iterators if chunks > 1 else iterators[0]), None, None

        module.setup_data_iterators = setup_data_iterators

    def _microbatches(self) -> Any:
        configuration = self._configuration
        workload = self._workload(configuration)
        model = configuration.model
        ids = TokenIds(
            image=getattr(model, "image_token_id", -1),
            vision_start=getattr(model, "vision_start_token_id", -1),
            vision_end=getattr(model, "vision_end_token_id", -1),
        )
        batches = Microbatches(workload, ids, model.params_dtype, self.values.fake)
        return map(_with_visual_inputs, batches)

    def _workload(self, configuration: Any) -> Workload:
        vision = getattr(configuration.model, "vision_config", None)
        shape = {
            name: getattr(vision, key)
            for name, key in (
                ("patch_size", "patch_size"),
                ("merge_size", "spatial_merge_size"),
                ("temporal_patch_size", "temporal_patch_size"),
                ("channels", "in_channels"),
            )
            if hasattr(vision, key)
        }
        return Workload(
            sequence_length=self._orders.sequence_length or configuration.model.seq_length,
            samples=configuration.train.micro_batch_size,
            images=self._orders.images if vision is not None else (),
            **shape,
        )

    def _hook_pretrain(self, module: Any) -> None:
        train = module.pretrain

        @functools.wraps(train)
        def pretrain(config: Any, *args: Any, **keywords: Any) -> Any:
            self._prepare(config)
            self._take_a_stage(config)
            cost = Cost()
            with self._fakes, self.values:
                try:
                    return train(config, *args, **keywords)
                finally:
                    self._observer.storages.stop()
                    self._tell()
                    cost.write(self._observer.settings)

        module.pretrain = pretrain

    def _take_a_stage(self, configuration: Any) -> None:
        """One process a pipeline stage, forked after all imports; each is the first rank of its stage."""
        stages = _at_least_one(configuration.model, "pipeline_model_parallel_size")
        if not self._orders.all_stages or stages == 1:
            self._observer.rehearsed = [self._observer.settings.rank]
            return
        ranks = [stage * self._orders.world_size // stages for stage in range(stages)]
        self._observer.rehearsed = ranks
        rank = stages_of(ranks, self._orders.parallel)
        os.environ["RANK"] = str(rank)
        self._observer.settings = dataclasses.replace(self._observer.settings, rank=rank)

    def _tell(self) -> None:
        observer = self._observer
        observer.unseen += not_modelled(self._orders.layers)
        observer.notes.append(self._orders.told())
        observer.notes += [
            f"nobody knew {what}: it was taken to be 0" for what in sorted(self.values.unknown)
        ]

    def _prepare(self, configuration: Any) -> None:
        """A short run, without anything that reads or writes training's own files."""
        self._configuration = configuration
        model = configuration.model
        self.values.routing = self._routing(model)
        self._set(configuration.train, "train_iters", STEPS)
        self._set(configuration.train, "eval_iters", 0)
        self._set(configuration.dist, "use_gloo_process_groups", False)
        self._limit_microbatches(configuration)

    def _limit_microbatches(self, configuration: Any) -> None:
        """As many as fill the pipeline twice: more of them repeat the same peak."""
        model, train = configuration.model, configuration.train
        stages = _at_least_one(model, "pipeline_model_parallel_size")
        parallel = stages
        for name in ("tensor_model_parallel_size", "context_parallel_size"):
            parallel *= _at_least_one(model, name)
        replicas = self._orders.world_size // parallel
        one = train.micro_batch_size * replicas
        self._set(train, "global_batch_size", min(train.global_batch_size or one, one * 2 * stages))

    def _set(self, section: Any, key: str, value: Any) -> None:
        if hasattr(section, key) and getattr(section, key) != value:
            self._patches.use(f"dry run: {key}={value}")
            setattr(section, key, value)


def _at_least_one(section: Any, name: str) -> int:
    return getattr(section, name, 1) or 1


def _with_visual_inputs(batch: dict[str, Any]) -> dict[str, Any]:
    """Bridge's newer steps take the images in one object, which holds what the model's call is given."""
    pixels, grids = batch.pop("pixel_values", None), batch.pop("image_grid_thw", None)
    if pixels is None:
        return {**batch, "visual_inputs": None}
    try:
        from megatron.bridge.training.utils import visual_inputs as module
    except ImportError:
        return {**batch, "pixel_values": pixels, "image_grid_thw": grids}
    for kind in vars(module).values():
        if dataclasses.is_dataclass(kind) and {"pixel_values", "image_grid_thw"} <= {
            field.name for field in dataclasses.fields(kind)
        }:
            return {**batch, "visual_inputs": kind(pixel_values=pixels, image_grid_thw=grids)}
    return {**batch, "pixel_values": pixels, "image_grid_thw": grids}
