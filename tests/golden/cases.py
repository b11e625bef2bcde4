"""Training cases that reach an engine through T5X's API alone and come back as plain numbers.

Whichever `t5x` answers runs them: `record_training.py` writes down what google-research/t5x computes, and
`test_golden.py` holds the embedded engine to those numbers. A case goes the way of T5X's own train program:
split the seed, initialise through `TrainStateInitializer`, compile, train, evaluate. Every batch is a function
of its step, so nothing but the engine under test decides the numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import seqio
from flax.linen import partitioning as flax_partitioning
from flax.traverse_util import flatten_dict

from t5x import adafactor, models, partitioning, trainer, utils
from t5x.examples.decoder_only import network as decoder_only
from t5x.examples.scalable_t5 import network as scalable_t5
from t5x.examples.t5 import network

BATCH, INPUT_LENGTH, TARGET_LENGTH, VOCAB = 8, 48, 32, 384
EVAL_BATCHES = 2
SUMMARY_STEPS = 5
Pair = tuple[list[int], list[int]]  # input ids and target ids
INIT_RNG, TRAINER_RNG = jax.random.split(jax.random.PRNGKey(7))

T5_1_1 = dict(
    vocab_size=VOCAB,
    emb_dim=64,
    num_heads=4,
    head_dim=16,
    mlp_dim=128,
    num_encoder_layers=2,
    num_decoder_layers=2,
    mlp_activations=("gelu", "linear"),
)
WIDE = T5_1_1 | dict(emb_dim=128, num_heads=3, head_dim=48, mlp_dim=160)
LANGUAGE_MODEL = {name: T5_1_1[name] for name in T5_1_1 if "coder" not in name} | dict(num_layers=2)
SHALLOW = T5_1_1 | dict(num_encoder_layers=1, num_decoder_layers=1)
NETWORKS = {
    "t5_1_1": T5_1_1,
    "t5_1_0": SHALLOW | dict(mlp_activations=("relu",), logits_via_embedding=True),
    "shallow": SHALLOW,
    # Adafactor factors the second moments of matrices with two dimensions of at least 128. The widths and the depths
    # all differ, so that an exchanged pair cannot go unnoticed.
    "wide": WIDE | dict(num_encoder_layers=1, num_decoder_layers=2),
    "scanned": WIDE | dict(num_encoder_layers=2, num_decoder_layers=3, remat_policy="minimal"),
    "decoder_only": LANGUAGE_MODEL | dict(logits_via_embedding=True),
    "prefix_lm": LANGUAGE_MODEL,
}

RSQRT = dict(factors="constant * rsqrt_decay", base_learning_rate=0.1, warmup_steps=50)
# For relu, whose derivative jumps at zero, where the last bit of an activation decides: small and few steps.
WARMUP_RSQRT = dict(factors="constant * linear_warmup * rsqrt_decay", base_learning_rate=0.01, warmup_steps=20)
LINEAR = dict(factors="linear_decay", base_learning_rate=0.01, warmup_steps=10, decay_factor=0.02)


@dataclasses.dataclass(frozen=True)
class Case:
    """One training run; the names are T5X's own.

    `network` is a key of `NETWORKS`. `steps` are trained one at a time, then `SUMMARY_STEPS` as one summary.
    `evaluate` adds the metrics of `EVAL_BATCHES` evaluation batches, `tensors` fingerprints of every array at the
    start and at the end.
    """

    network: str
    steps: int
    loss: dict[str, Any] = dataclasses.field(default_factory=dict)
    schedule: dict[str, Any] = dataclasses.field(default_factory=lambda: RSQRT)
    dropout_rate: float = 0.0
    dtype: str = "float32"
    packed: bool = False
    num_microbatches: int | None = None
    weight_metrics: bool = False
    evaluate: bool = False
    tensors: bool = False

    @property
    def joins(self) -> bool:
        """Whether inputs and targets are one sequence."""
        return "num_layers" in NETWORKS[self.network]


CASES = {
    "t5_1_1": Case("t5_1_1", steps=100, loss=dict(z_loss=1e-4), evaluate=True, tensors=True),
    "t5_1_0": Case(
        "t5_1_0",
        steps=20,
        loss=dict(loss_normalizing_factor="NUM_TOTAL_TARGET_TOKENS"),
        schedule=WARMUP_RSQRT,
        tensors=True,
    ),
    "factored": Case("wide", steps=100, loss=dict(loss_normalizing_factor=96.0, z_loss=1e-4), tensors=True),
    "dropout": Case(
        "t5_1_1",
        steps=100,
        loss=dict(loss_normalizing_factor="NUM_REAL_TARGET_TOKENS", z_loss=1e-4),
        dropout_rate=0.1,
        evaluate=True,
    ),
    "packed": Case("shallow", steps=100, packed=True, evaluate=True),
    "smoothing": Case(
        "shallow",
        steps=40,
        loss=dict(label_smoothing=0.1, z_loss=1e-3, loss_normalizing_factor="AVERAGE_PER_SEQUENCE"),
        schedule=LINEAR,
        evaluate=True,
    ),
    "microbatches_2": Case("shallow", steps=40, dropout_rate=0.1, num_microbatches=2),
    "microbatches_4": Case(
        "shallow",
        steps=40,
        loss=dict(loss_normalizing_factor="AVERAGE_PER_SEQUENCE"),
        packed=True,
        num_microbatches=4,
    ),
    "weight_metrics": Case("shallow", steps=10, weight_metrics=True),
    "bfloat16": Case("shallow", steps=40, loss=dict(z_loss=1e-4), dtype="bfloat16"),
    "scanned": Case("scanned", steps=20, loss=dict(z_loss=1e-4), dropout_rate=0.1, packed=True, tensors=True),
    "scanned_bfloat16": Case("scanned", steps=20, loss=dict(z_loss=1e-4), dtype="bfloat16", evaluate=True),
    "decoder_only": Case("decoder_only", steps=20, dropout_rate=0.1, evaluate=True, tensors=True),
    "prefix_lm": Case("prefix_lm", steps=20, loss=dict(z_loss=1e-4), packed=True, tensors=True),
}


def run(name: str) -> dict[str, Any]:
    """Trains the case `name` of `CASES` and returns its numbers, ready for JSON.

    Returns:
      `losses` and `learning_rates`, one float per single step; `train` and, if asked for, `eval`, the metrics of a
      summary by name, those of time left out; with `tensors`, `initial` (`describe_parameters`) and `final`
      (`checksums`).
    """
    case = CASES[name]
    partitioner = partitioning.PjitPartitioner(num_partitions=1)
    initializer, state = initialize(case.network)
    numbers = {"initial": describe_parameters(initializer, state)} if case.tensors else {}

    with make_trainer(case, partitioner, initializer, state) as engine:
        train_batches = batches(case, partitioner)
        engine.compile_train(next(batches(case, partitioner)))
        single = [engine.train(train_batches, 1, start_step=step).result() for step in range(case.steps)]
        numbers["losses"] = [_number(metrics["loss"].value) for metrics in single]
        numbers["learning_rates"] = [_number(metrics["learning_rate"].value) for metrics in single]
        numbers["train"] = _values(engine.train(train_batches, SUMMARY_STEPS, start_step=case.steps).result())
        if case.evaluate:
            held_out = batches(case, partitioner, first=1000, count=EVAL_BATCHES)
            numbers["eval"] = _values(engine.eval({"task": held_out})["task"])
        if case.tensors:
            numbers["final"] = checksums(engine.train_state.state_dict())
    return numbers


@functools.cache
def initialize(network_name: str) -> tuple[Any, Any]:
    """Returns T5X's initializer of train states and a state that it made from scratch.

    A parameter's first value depends on the network and the seed, not on how the case is trained: cases share it.
    """
    model = make_model(Case(network_name, steps=0))
    batch = make_batch(Case(network_name, steps=0), 0)
    initializer = utils.TrainStateInitializer(
        optimizer_def=model.optimizer_def,
        init_fn=model.get_initial_variables,
        input_shapes={feature: array.shape for feature, array in batch.items()},
        input_types={feature: array.dtype for feature, array in batch.items()},
        partitioner=partitioning.PjitPartitioner(num_partitions=1),
    )
    return initializer, initializer.from_scratch(INIT_RNG)


def make_model(case: Case) -> Any:
    """Returns T5X's model as its gin files put it together."""
    sizes = NETWORKS[case.network] | dict(dropout_rate=case.dropout_rate, dtype=case.dtype)
    vocabulary = seqio.PassThroughVocabulary(size=VOCAB, eos_id=1)
    rules = adafactor.standard_logical_factor_rules()
    optimizer = adafactor.Adafactor(decay_rate=0.8, step_offset=0, logical_factor_rules=rules)
    if case.joins:
        return models.DecoderOnlyModel(
            module=decoder_only.DecoderWrapper(config=decoder_only.TransformerConfig(**sizes)),
            vocabulary=vocabulary,
            optimizer_def=optimizer,
            inputs_bidirectional_attention=case.network == "prefix_lm",
            **case.loss,
        )
    family = scalable_t5 if case.network == "scanned" else network
    return models.EncoderDecoderModel(
        module=family.Transformer(config=family.T5Config(**sizes)),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        optimizer_def=optimizer,
        **case.loss,
    )


def make_trainer(case: Case, partitioner: Any, initializer: Any, state: Any) -> Any:
    """Returns T5X's trainer around a copy of `state`, for training gives its buffers away."""
    return trainer.Trainer(
        model=make_model(case),
        train_state=jax.tree_util.tree_map(jnp.copy, state),
        partitioner=partitioner,
        eval_names=["task"],
        summary_dir=None,
        train_state_axes=initializer.train_state_axes,
        rng=TRAINER_RNG,
        learning_rate_fn=utils.create_learning_rate_scheduler(**case.schedule),
        num_microbatches=case.num_microbatches,
        weight_metrics_computer=trainer.WeightMetricsComputer() if case.weight_metrics else None,
    )


def batches(case: Case, partitioner: Any, first: int = 0, count: int = 10**6) -> Iterator[dict[str, jax.Array]]:
    """Yields the batches of `count` steps from step `first` on, laid out over the partitioner's devices."""
    sharding = jax.sharding.NamedSharding(partitioner.mesh, partitioner.data_partition_spec)
    for step in range(first, first + count):
        yield jax.device_put(make_batch(case, step), sharding)


def make_batch(case: Case, step: int) -> dict[str, np.ndarray]:
    """Returns the batch of a step: int32 [BATCH, length] arrays under the feature names of T5X's models.

    Targets repeat the first half of their inputs, ids lean towards the small ones and lengths vary, so that there is
    something to learn and something to pad. Packed rows hold as many such pairs as fit.
    """
    rng = np.random.RandomState(step)  # its streams are frozen across NumPy versions
    rows = [_packed_row(rng) if case.packed else [_pair(rng)] for _ in range(BATCH)]
    return (_joined if case.joins else _side_by_side)(rows, case.packed)


def _side_by_side(rows: list[list[Pair]], packed: bool) -> dict[str, np.ndarray]:
    """Returns the features of seqio.EncDecFeatureConverter."""
    inputs = _lay_out([[pair[0] for pair in row] for row in rows], INPUT_LENGTH)
    targets = _lay_out([[pair[1] for pair in row] for row in rows], TARGET_LENGTH)
    batch = _decoder_features(targets, packed) | {
        "encoder_input_tokens": inputs["tokens"],
        "decoder_loss_weights": (targets["tokens"] != 0).astype(np.int32),
    }
    if packed:
        batch |= {"encoder_segment_ids": inputs["segment_ids"], "encoder_positions": inputs["positions"]}
    return batch


def _joined(rows: list[list[Pair]], packed: bool) -> dict[str, np.ndarray]:
    """Returns the features of seqio.DecoderFeatureConverter for inputs and targets."""
    length = INPUT_LENGTH + TARGET_LENGTH
    tokens = _lay_out([[[*inputs, *targets] for inputs, targets in row] for row in rows], length)
    weights = [[[0] * len(inputs) + [1] * len(targets) for inputs, targets in row] for row in rows]
    prefix = [[[1] * (len(inputs) + 1) + [0] * (len(targets) - 1) for inputs, targets in row] for row in rows]
    return _decoder_features(tokens, packed) | {
        "decoder_loss_weights": _lay_out(weights, length)["tokens"],
        "decoder_causal_attention": _lay_out(prefix, length)["tokens"],
    }


def _decoder_features(targets: dict[str, np.ndarray], packed: bool) -> dict[str, np.ndarray]:
    shifted = np.roll(targets["tokens"], 1, axis=1)  # as SeqIO's converter: EOS reaches the first padding position
    shifted[:, 0] = 0
    batch = {"decoder_target_tokens": targets["tokens"], "decoder_input_tokens": shifted}
    if packed:
        batch["decoder_input_tokens"] = shifted * (targets["positions"] != 0)
        batch |= {"decoder_segment_ids": targets["segment_ids"], "decoder_positions": targets["positions"]}
    return batch


def batch_fingerprints() -> dict[str, int]:
    """Returns a checksum of the first batch of each kind."""
    kinds = {"padded": "t5_1_1", "packed": "packed", "joined": "decoder_only", "joined_packed": "prefix_lm"}
    batches = {kind: sorted(make_batch(CASES[case], 0).items()) for kind, case in kinds.items()}
    return {kind: zlib.crc32(b"".join(array.tobytes() for _, array in batches[kind])) for kind in kinds}


def _pair(rng: np.random.RandomState, longest: int = INPUT_LENGTH - 1) -> Pair:
    """Returns input ids and target ids, each closed by EOS (id 1)."""
    ids = 3 + ((VOCAB - 3) * rng.uniform(size=rng.randint(4, longest + 1)) ** 3).astype(int)
    return [*ids, 1], [*ids[: len(ids) // 2], 1]


def _packed_row(rng: np.random.RandomState) -> list[Pair]:
    pairs = [_pair(rng, longest=20)]
    while sum(len(inputs) for inputs, _ in pairs) + 21 <= INPUT_LENGTH:
        pairs.append(_pair(rng, longest=20))
    return pairs


def _lay_out(rows: list[list[list[int]]], length: int) -> dict[str, np.ndarray]:
    """Lays the sequences of every row one after the other; segments count from 1, positions from 0, padding is 0."""
    features = {name: np.zeros((BATCH, length), np.int32) for name in ("tokens", "segment_ids", "positions")}
    for row, sequences in enumerate(rows):
        start = 0
        for segment, ids in enumerate(sequences, start=1):
            span = slice(start, start + len(ids))
            features["tokens"][row, span] = ids
            features["segment_ids"][row, span] = segment
            features["positions"][row, span] = np.arange(len(ids))
            start += len(ids)
    return features


def describe_parameters(initializer: Any, state: Any) -> dict[str, dict[str, Any]]:
    """Returns, for every parameter: shape, dtype, sums, the first values bit for bit, and how it is partitioned.

    `axes` are the logical names that the model gives its dimensions; `mesh` is where the partitioner's rules put them.
    """
    axes = flatten_dict(flax_partitioning.get_axis_names(initializer.global_train_state_shape.params_axes), sep="/")
    mesh = flatten_dict(initializer.train_state_axes.params, sep="/")
    return {
        name: {
            "shape": list(value.shape),
            "dtype": str(value.dtype),
            "sums": _sums(value),
            "head": [f"{bits:08x}" for bits in np.asarray(value).ravel()[:4].view(np.uint32)],
            "axes": list(axes[name]),
            "mesh": list(mesh[name]),
        }
        for name, value in flatten_dict(state.params, sep="/").items()
    }


def checksums(state_dict: Any) -> dict[str, list[float]]:
    """Returns [sum, sum of magnitudes] of every array of more than one element, by its path in the checkpoint."""
    return {name: _sums(value) for name, value in flatten_dict(state_dict, sep="/").items() if np.size(value) > 1}


def _sums(array: Any) -> list[float]:
    wide = np.asarray(array, np.float64)
    return [float(f"{wide.sum():.12g}"), float(f"{np.abs(wide).sum():.12g}")]


def _values(metrics: Any) -> dict[str, float]:
    """Returns the metrics of a summary as floats, leaving out what depends on the clock."""
    return {name: _number(metrics[name].value) for name in sorted(metrics) if not name.startswith("timing/")}


def _number(value: Any) -> float:
    """Returns a float32 with the nine digits that determine it."""
    return float(f"{float(value):.9g}")
