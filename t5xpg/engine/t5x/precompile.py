"""A training step, compiled without training, and XLA's programs of it: T5X's precompile.

`t5xpg check RECIPE --on v5e-16` says more and needs less: the recipe of the run itself, and no chips.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import PartitionSpec

from t5x import models, partitioning, trainer, utils
from t5xpg.base import files

LEARNING_RATE = 1e-3  # some number: the program is the same with any


def precompile(
    *,
    model: models.BaseTransformerModel,
    train_dataset_cfg: utils.DatasetConfig,
    partitioner: partitioning.BasePartitioner,
    model_dir: str,
    random_seed: int | None,
    get_dataset_fn: Callable = utils.get_dataset,
    verify_matching_vocabs_fn: Callable[..., None] | None = utils.verify_matching_vocabs,
) -> None:
    """Compiles the step that trains `model` on a whole batch, for the devices of `partitioner`.

    It writes to `model_dir`, as T5X does: lowered_hlo_pre_optimization and lowered_hlo_post_optimization, XLA's
    HloModuleProto before and after compiling, and assignment, a .npy of the mesh's device ids, int [data, model].

    Args:
      random_seed: of the dropout, which is a constant of the program; None or 0 for 42.
      Others: as in `t5x.train.train`.
    """
    if verify_matching_vocabs_fn:
        verify_matching_vocabs_fn(train_dataset_cfg, model)
    layout = partitioner.get_data_layout(train_dataset_cfg.batch_size)
    dataset = get_dataset_fn(train_dataset_cfg, layout.shard_id, layout.num_shards, model.FEATURE_CONVERTER_CLS)
    batch = {
        name: jax.ShapeDtypeStruct((layout.batch_size, *x.shape[1:]), x.dtype.as_numpy_dtype)
        for name, x in dataset.element_spec.items()
    }
    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={name: x.shape for name, x in batch.items()},
        input_types={name: x.dtype for name, x in batch.items()},
        partitioner=partitioner,
    )
    dropout_rng = jax.random.split(jax.random.PRNGKey(random_seed or 42))[1]
    axes = initializer.train_state_axes
    step = partitioner.partition(
        lambda state, batch: trainer.train_with_lr(state, batch, LEARNING_RATE, dropout_rng, model, None),
        in_axis_resources=(axes, PartitionSpec("data")),
        out_axis_resources=(axes, None),
        donate_argnums=(0,),
    )
    lowered = step.lower(initializer.global_train_state_shape, batch)
    before = lowered.compiler_ir(dialect="hlo").as_serialized_hlo_module_proto()
    after = lowered.compile().runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    assignment = io.BytesIO()
    np.lib.format.write_array(assignment, partitioner.mesh.device_ids)
    files.make_folder(model_dir)
    files.write_whole(os.path.join(model_dir, "lowered_hlo_pre_optimization"), before)
    files.write_whole(os.path.join(model_dir, "lowered_hlo_post_optimization"), after)
    files.write_whole(os.path.join(model_dir, "assignment"), assignment.getvalue())
