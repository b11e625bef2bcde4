"""Makes a run's train state: from its shapes, from scratch, or from a checkpoint."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any

import jax

from t5x import checkpoints
from t5x.checkpoints import OrbaxCheckpointManagerInterface
from t5x.embedded import checkpoint_paths
from t5x.embedded.checkpoint_configs import RestoreCheckpointConfig, SaveCheckpointConfig
from t5x.embedded.checkpoint_readers import raised_by_all
from t5x.train_state import FlaxOptimTrainState, InferenceState

# For a GPU XLA makes one kernel of all parameters of a shape, unless told not to: T5 1.1 base's were compiled in 125 s
# on an H100's machine, and in 81 s with a kernel for each, from which they come out the same to the bit.
A_KERNEL_EACH = {"xla_disable_hlo_passes": "multi_output_fusion,gpu_horizontal_loop_fusion"}


class TrainStateInitializer:
    """Initializes or restores partitioned train states of one model.

    Args:
      optimizer_def: the optimizer, or None for an InferenceState.
      init_fn: a model's get_initial_variables.
      input_shapes, input_types: {feature: global shape} and {feature: dtype} of a batch.
      partitioner: places the arrays.

    Attributes:
      global_train_state_shape: the state with jax.ShapeDtypeStruct leaves.
      train_state_axes: the state with PartitionSpec leaves.
    """

    def __init__(
        self,
        optimizer_def,
        init_fn: Callable,
        input_shapes: Mapping[str, tuple[int, ...]],
        partitioner,
        input_types: Mapping | None = None,
    ):
        def initialize(rng):
            variables = init_fn(rng=rng, input_shapes=input_shapes, input_types=input_types)
            if optimizer_def is None:
                return InferenceState.create(variables)
            return FlaxOptimTrainState.create(optimizer_def, variables)

        self._partitioner = partitioner
        self._compiled: Future | None = None
        initialize = jax.jit(initialize)  # so that it is traced once, here
        rng = jax.eval_shape(lambda: jax.random.PRNGKey(0))  # JAX would remember the shape of PRNGKey by itself
        self.global_train_state_shape = jax.eval_shape(partitioner.partition(initialize, None, None), rng)
        self.train_state_axes = partitioner.get_mesh_axes(self.global_train_state_shape)
        self._from_scratch = partitioner.partition(initialize, None, self.train_state_axes)

    def compile_ahead(self, init_rng: jax.Array, submit: Callable[[Callable], Future]) -> None:
        """Begins to compile what `from_scratch` runs; `submit` makes a call in another thread.

        The embedded engine's own. It is traced at once: of two programs traced at the same time, some functions could
        get other names, and JAX's cache of compiled programs another key.
        """
        if hasattr(self._from_scratch, "lower"):  # a partitioner may have no way to compile
            compile_it = self._from_scratch.lower(init_rng).compile
            if jax.default_backend() == "gpu":
                compile_it = functools.partial(compile_it, compiler_options=A_KERNEL_EACH)
            self._compiled = submit(compile_it)

    def from_scratch(self, init_rng: jax.Array):
        """Initializes each array where it will live."""
        compiled, self._compiled = self._compiled, None  # a run needs it once
        initialize = compiled.result() if compiled else self._from_scratch
        return initialize(init_rng)

    def from_checkpoints(
        self, restore_cfgs: Sequence[RestoreCheckpointConfig], ds_iter=None, init_rng: jax.Array | None = None
    ) -> Iterator[tuple[Any, str]]:
        """Yields (train state, path) for each checkpoint of the first configuration that names one.

        Args:
          restore_cfgs: where to look, in this order.
          ds_iter: the training data's iterator, whose position is restored too where restore_dataset says so.
          init_rng: for what a checkpoint lacks and its configuration allows to be initialized.
        """
        cfg, paths = get_first_valid_restore_config_and_paths(restore_cfgs)
        if cfg is None:
            return
        for path in paths:
            checkpointer = cfg.checkpointer_cls(
                train_state=self.global_train_state_shape,
                partitioner=self._partitioner,
                checkpoints_dir="",
                dataset_iterator=ds_iter if cfg.restore_dataset else None,
                restore_dtype=cfg.dtype,
            )
            yield restore_from(self, checkpointer, cfg, path, init_rng), path

    def from_checkpoint(
        self, ckpt_cfgs: Sequence[RestoreCheckpointConfig], *, ds_iter=None, init_rng: jax.Array | None = None
    ):
        """Returns the only train state of `from_checkpoints`, or None where there is none."""
        found = list(self.from_checkpoints(ckpt_cfgs, ds_iter=ds_iter, init_rng=init_rng))
        if len(found) > 1:
            raise ValueError(f"Expected at most 1 checkpoint, and found {[path for _, path in found]}.")
        return found[0][0] if found else None

    def from_checkpoint_or_scratch(
        self, ckpt_cfgs: Sequence[RestoreCheckpointConfig], *, init_rng: jax.Array, ds_iter=None
    ):
        """Returns `from_checkpoint`'s train state, or a new one where there is no checkpoint."""
        restored = self.from_checkpoint(ckpt_cfgs, ds_iter=ds_iter, init_rng=init_rng)
        return self.from_scratch(init_rng) if restored is None else restored


def get_first_valid_restore_config_and_paths(
    restore_cfgs: Sequence[RestoreCheckpointConfig],
) -> tuple[RestoreCheckpointConfig | None, list[str]]:
    """Returns the first configuration that names a checkpoint, and its checkpoints; (None, []) where none does."""
    for cfg in restore_cfgs:
        paths = cfg.checkpoint_paths()
        if paths or cfg.mode == "specific":
            return cfg, paths
    return None, []


class ScratchState(Mapping):
    """A state dict that is initialized when it is first looked into: most restores never do.

    Args:
      init: () -> the state dict.
    """

    def __init__(self, init: Callable[[], Mapping]):
        self._init = init

    @cached_property
    def _state(self) -> Mapping:
        return self._init()

    def __getitem__(self, key: str) -> Any:
        return self._state[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._state)

    def __len__(self) -> int:
        return len(self._state)


def get_fallback_state(
    restore_cfg: RestoreCheckpointConfig | None,
    init_fn: Callable[[jax.Array], Mapping],
    init_rng: jax.Array | None,
) -> Mapping | None:
    """Returns a state dict to fill a checkpoint's gaps from, made by `init_fn`; None without fallback_to_scratch.

    Deviations from T5X: the state is only initialized if something is missing, and a configuration need not have a
    transformation for it.
    """
    if restore_cfg is None or not restore_cfg.fallback_to_scratch:
        return None
    if init_rng is None:
        raise ValueError("RestoreCheckpointConfig.fallback_to_scratch needs a seed; pass init_rng (fallback_init_rng).")
    return ScratchState(lambda: init_fn(init_rng))


def restore_from(
    initializer: TrainStateInitializer,
    manager: OrbaxCheckpointManagerInterface,
    cfg: RestoreCheckpointConfig,
    path: str,
    init_rng: jax.Array | None,
):
    """Returns the train state at `path`. A checkpoint without any optimizer state may start a new one."""

    def from_scratch(rng: jax.Array) -> Mapping:
        return initializer.from_scratch(rng).state_dict()

    fallback = get_fallback_state(cfg, from_scratch, init_rng)
    if fallback is None and init_rng is not None:
        fallback = ScratchState(lambda: {"state": from_scratch(init_rng)["state"]} if lacks_optimizer(path) else {})
    return manager.restore(path=path, fallback_state=fallback, state_transformation_fns=cfg.state_transformation_fns)


def lacks_optimizer(path: str) -> bool:
    with raised_by_all(path):
        reader = checkpoints.open_checkpoint(checkpoint_paths.latest_in(path))
    return not any(name.startswith("state/param_states") for name in reader.arrays)


def restore(
    checkpoint_manager: OrbaxCheckpointManagerInterface,
    paths: Sequence[str] | None,
    restore_cfg: RestoreCheckpointConfig | None,
    fallback_state: Mapping | None = None,
):
    """Returns the train state of the one path, a list of them for several or no paths, or None without a cfg."""
    if restore_cfg is None or paths is None:
        return None
    states = [
        checkpoint_manager.restore(
            path=path, state_transformation_fns=restore_cfg.state_transformation_fns, fallback_state=fallback_state
        )
        for path in paths
    ]
    return states[0] if len(states) == 1 else states


def create_orbax_checkpoint_manager(
    *,
    save_cfg: SaveCheckpointConfig | None = None,
    restore_cfg: RestoreCheckpointConfig | None = None,
    train_state,
    partitioner,
    ds_iter=None,
    model_dir: str | None = None,
) -> OrbaxCheckpointManagerInterface:
    """Returns the manager that the configurations ask for.

    Args:
      save_cfg, restore_cfg: one of them may be None; both must name the same checkpoint_manager_cls.
      train_state: the train state by shapes.
      partitioner: places the arrays.
      ds_iter: the training data's iterator; used where save_dataset or restore_dataset says so.
      model_dir: the folder of checkpoints.
    """
    cfgs = [cfg for cfg in (save_cfg, restore_cfg) if cfg is not None]
    if cfgs[0].checkpoint_manager_cls != cfgs[-1].checkpoint_manager_cls:
        raise ValueError(
            "SaveCheckpointConfig and RestoreCheckpointConfig name different checkpoint_manager_cls: "
            f"{[cfg.checkpoint_manager_cls for cfg in cfgs]}."
        )
    uses_data = bool(save_cfg and save_cfg.save_dataset) or bool(restore_cfg and restore_cfg.restore_dataset)
    best: dict[str, Any] = {}
    for cfg in cfgs:
        checkpointer = cfg.checkpointer_cls(
            train_state=train_state, partitioner=partitioner, checkpoints_dir=model_dir or ""
        )
        best = best or getattr(checkpointer, "best", {})
    return cfgs[0].checkpoint_manager_cls(
        directory=model_dir,
        train_state=train_state,
        partitioner=partitioner,
        dataset_iterator=ds_iter if uses_data else None,
        save_dtype=save_cfg.dtype if save_cfg else None,
        restore_dtype=restore_cfg.dtype if restore_cfg else None,
        keep=save_cfg.keep if save_cfg else None,
        period=save_cfg.period if save_cfg else None,
        **best,
    )


def create_checkpoint_manager_and_restore(
    train_state_initializer: TrainStateInitializer,
    partitioner,
    restore_checkpoint_cfg: RestoreCheckpointConfig | None,
    restore_path: str | None,
    fallback_init_rng: jax.Array | None,
    save_checkpoint_cfg: SaveCheckpointConfig | None = None,
    model_dir: str | None = None,
    ds_iter=None,
    use_orbax: bool = True,
) -> tuple[Any, OrbaxCheckpointManagerInterface]:
    """Returns (train state or None, manager): the state of the checkpoint `restore_path`, if one is given.

    `use_orbax` is accepted for T5X's callers; checkpoints are always written by Orbax.
    """
    del use_orbax
    cfg, rng = restore_checkpoint_cfg, fallback_init_rng
    if not model_dir:
        model_dir = cfg.path if cfg is not None and isinstance(cfg.path, str) else restore_path
    if model_dir is None:
        raise ValueError("There is no folder for the checkpoint manager; pass model_dir or a restore_checkpoint_cfg.")
    manager = create_orbax_checkpoint_manager(
        save_cfg=save_checkpoint_cfg,
        restore_cfg=cfg,
        train_state=train_state_initializer.global_train_state_shape,
        partitioner=partitioner,
        ds_iter=ds_iter,
        model_dir=model_dir,
    )
    if cfg is None or restore_path is None:
        return None, manager
    return restore_from(train_state_initializer, manager, cfg, restore_path, rng), manager


def check_divisible(initializer: TrainStateInitializer, mesh: jax.sharding.Mesh) -> None:
    """Raises ValueError for the first array that the mesh cannot divide evenly."""
    specs = checkpoints.flatten(initializer.train_state_axes.state_dict())
    for name, value in checkpoints.flatten(initializer.global_train_state_shape.state_dict()).items():
        for size, axes in zip(getattr(value, "shape", ()), specs.get(name) or (), strict=False):
            parts = math.prod(mesh.shape[axis] for axis in ((axes,) if isinstance(axes, str) else axes or ()))
            if size % parts:
                raise ValueError(
                    f"{name} {tuple(value.shape)} cannot be divided over {parts} devices of the mesh axis {axes!r}; "
                    "choose PjitPartitioner.num_partitions so that it divides that size."
                )
