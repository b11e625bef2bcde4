"""Trains the same three steps on several meshes and prints {case: mesh, losses, shard of a kernel} as JSON.

With "gathered": the features of which a device fetches the whole batch when it is split into microbatches.

A script, because XLA fixes the number of virtual CPU devices when a process starts.
"""

import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import t5xpg  # noqa: F401
from t5x import adafactor, models, partitioning, trainer
from t5x.embedded import fused_attention, initialization, learning_rates
from t5x.examples.scalable_t5 import network as scalable
from t5x.examples.t5 import network


class Vocabulary:
    eos_id = 1


SIZES = dict(vocab_size=64, emb_dim=32, num_heads=8, head_dim=4, mlp_dim=64, mlp_activations=("gelu", "linear"))
ONE_LAYER = network.Transformer(network.T5Config(**SIZES, num_encoder_layers=1, num_decoder_layers=1, dropout_rate=0.1))
FUSED = network.Transformer(ONE_LAYER.config.replace(fused_attention=True))
SCANNED = scalable.Transformer(
    scalable.T5Config(**SIZES, num_encoder_layers=2, num_decoder_layers=2, dropout_rate=0.1, remat_policy="minimal")
)


def make_batches(count: int = 3) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    lengths = {"encoder_input_tokens": 12, "decoder_input_tokens": 8, "decoder_target_tokens": 8}
    return [
        {name: rng.integers(1, 64, (16, length)).astype(np.int32) for name, length in lengths.items()}
        | {"decoder_loss_weights": np.ones((16, 8), np.int32)}
        for _ in range(count)
    ]


def losses(num_microbatches: int | None = None, module=ONE_LAYER, arrays: str = "", **mesh) -> dict:
    """Trains; with `arrays`, returns those too that the compiled step has on each device and that this pattern fits."""
    partitioner = partitioning.PjitPartitioner(**mesh)
    optimizer = adafactor.Adafactor(logical_factor_rules=adafactor.standard_logical_factor_rules())
    model = models.EncoderDecoderModel(module, Vocabulary(), Vocabulary(), optimizer)
    batches = make_batches()
    initializer = initialization.TrainStateInitializer(
        optimizer,
        model.get_initial_variables,
        {name: x.shape for name, x in batches[0].items()},
        partitioner,
        {name: x.dtype for name, x in batches[0].items()},
    )
    run = trainer.Trainer(
        model=model,
        train_state=initializer.from_scratch(jax.random.PRNGKey(0)),
        partitioner=partitioner,
        eval_names=["eval"],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(1),
        learning_rate_fn=learning_rates.create_learning_rate_scheduler("constant", 0.01),
        num_microbatches=num_microbatches,
    )
    with run:
        summaries = [run.train(iter([partitioner.shard_batch(batch)]), 1).result() for batch in batches]
        summaries.append(run.eval({"eval": batches})["eval"])
    layer = "encoder" if module is SCANNED else "layers_0"
    kernel = run.train_state.params["encoder"][layer]["mlp"]["wi_0"]["kernel"]
    found = {
        "mesh": dict(partitioner.mesh.shape),
        "losses": [float(summary["loss"].value) for summary in summaries],
        "shard": kernel.addressable_shards[0].data.shape,
    }
    if arrays:
        program = partitioner.compile(run._partitioned_train_step, run.train_state, batches[0]).as_text()
        found["arrays"] = sorted(set(re.findall(arrays, program)))
    return found


def gathered_features() -> int:
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    state = types.SimpleNamespace(params={"x": jnp.ones(5)}, flax_mutables=None)
    model = types.SimpleNamespace(loss_fn=lambda params, batch, _: ((params["x"][None] * batch["x"]).sum(), {}))
    step = partitioner.partition(
        lambda batch: trainer.accumulate_grads_microbatched(model, state, batch, jax.random.PRNGKey(0), 4)[0],
        in_axis_resources=(PartitionSpec("data"),),
        out_axis_resources=None,
    )
    program = partitioner.compile(step, {"x": np.zeros((64, 5), np.float32)}).as_text()
    return len(re.findall(r"f32\[64,5\]\S* all-gather\(", program))


def main() -> None:
    fused_attention.is_possible = lambda *_: True  # without a TPU its kernels are interpreted
    if len(jax.devices()) == 1:
        results = {
            "whole": losses(num_partitions=1),
            "fused": losses(module=FUSED, num_partitions=1),
            "micro": losses(2, num_partitions=1),
            "scanned": losses(module=SCANNED, num_partitions=1),
        }
    else:
        spread, both = partitioning.standard_logical_axis_rules(1, 2), partitioning.standard_logical_axis_rules(2, 2)
        results = {
            "data": losses(num_partitions=1),
            "both": losses(num_partitions=2),
            "model": losses(num_partitions=8),
            "submesh": losses(model_parallel_submesh=(2, 2, 1, 1)),
            "fused": losses(module=FUSED, num_partitions=2),
            "2d": losses(num_partitions=2, logical_axis_rules=both),
            "slices": losses(num_partitions=1, ici_mesh_shape=(2, 2, 2), dcn_mesh_shape=(1, 1, 1)),
            "micro": losses(2, num_partitions=4),
            "gathered": gathered_features(),
            "scanned": losses(module=SCANNED, arrays=r"f32\[2,8,12,[\d,]*\]", num_partitions=4),
            "spread": losses(module=SCANNED, arrays=r"f32\[16,12,\d+]", num_partitions=1, logical_axis_rules=spread),
        }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
