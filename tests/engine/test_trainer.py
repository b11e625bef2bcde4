"""The trainer's parts as T5X's users call and override them, on a model whose gradients are known."""

import clu.metrics
import clu.values
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from flax.core import freeze
from flax.linen.partitioning import AxisMetadata
from jax.sharding import PartitionSpec

from t5x import adafactor, checkpoints, metrics, optimizers, partitioning, train, trainer, utils
from t5x.embedded import initialization, waiting
from t5x.train_state import FlaxOptimTrainState
from t5xpg.base import memory, stores

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

BATCH = {"x": np.arange(8.0, dtype=np.float32).reshape(4, 2)}
RATE = jnp.float32(0.1)


class Linear:
    """loss = the sum of x @ kernel, so that the kernel's gradient is the sum of x; `bias` has none."""

    def loss_fn(self, params, batch, dropout_rng):
        loss = jnp.sum(batch["x"] @ params["kernel"])
        return loss, {"loss": metrics.Sum.from_model_output(loss)}

    def eval_fn(self, params, batch):
        return self.loss_fn(params, batch, None)

    def get_initial_variables(self, rng, input_shapes, input_types=None):
        return {
            "params": freeze({"kernel": jnp.ones(2), "bias": jnp.ones(3)}),
            "params_axes": freeze(
                {"kernel_axes": AxisMetadata(names=("mlp",)), "bias_axes": AxisMetadata(names=("mlp",))}
            ),
        }


def make_trainer(optimizer_def=None, cls=trainer.Trainer, partitioner=None, summary_dir=None, **settings):
    """Returns (a trainer of a new Linear, the initializer of its states)."""
    partitioner = partitioner or partitioning.PjitPartitioner(num_partitions=1)
    initializer = initialization.TrainStateInitializer(
        optimizer_def or optimizers.sgd(0.5), Linear().get_initial_variables, {"x": (4, 2)}, partitioner
    )
    made = cls(
        model=Linear(),
        train_state=initializer.from_scratch(jax.random.PRNGKey(0)),
        partitioner=partitioner,
        eval_names=["a", "b"],
        summary_dir=summary_dir,
        train_state_axes=initializer.train_state_axes,
        rng=jax.random.PRNGKey(1),
        **{"learning_rate_fn": lambda step: RATE, "num_microbatches": None, **settings},
    )
    return made, initializer


def tags_in(folder) -> set[str]:
    from tensorflow.python.summary.summary_iterator import summary_iterator

    (path,) = folder.glob("events*")
    return {value.tag for event in summary_iterator(str(path)) for value in event.summary.value}


@pytest.mark.parametrize("num_microbatches", [None, 2])
def test_the_functions_are_what_the_step_does(num_microbatches):
    state = FlaxOptimTrainState.create(optimizers.sgd(0.5), Linear().get_initial_variables(None, {}))
    rng = jax.random.PRNGKey(0)
    grads, summed, mutables = trainer.accumulate_grads_microbatched(Linear(), state, BATCH, rng, num_microbatches)
    np.testing.assert_array_equal(grads["kernel"], BATCH["x"].sum(axis=0))
    assert mutables is None and float(summed["loss"].compute()) == BATCH["x"].sum()

    applied, reported = trainer.apply_grads(state, grads, dict(summed), RATE, trainer.WeightMetricsComputer())
    np.testing.assert_array_equal(applied.params["kernel"], 1 - 0.5 * BATCH["x"].sum(axis=0))
    assert reported["learning_rate/current"].compute() == RATE
    assert "weight_rms/kernel" in reported and "weight_rms/kernel" not in summed

    whole, _ = trainer.train_with_lr(state, BATCH, RATE, rng, Linear(), num_microbatches)
    jax.tree.map(np.testing.assert_array_equal, whole, applied)
    assert float(trainer.eval_step(Linear(), state, BATCH)["loss"].compute()) == BATCH["x"].sum()


def test_apply_grads_hands_other_variables_to_the_state():
    variables = Linear().get_initial_variables(None, {})
    state = FlaxOptimTrainState.create(optimizers.sgd(0.5), variables)
    others = {"flax_mutables": freeze({"seen": jnp.float32(3)})}
    applied, _ = trainer.apply_grads(state, state.params, {}, RATE, None, other_state_variables=others)
    assert applied.flax_mutables["seen"] == 3


def test_eval_steps_are_compiled_once_for_a_shape():
    made, _ = make_trainer()
    with made:
        lazily = made.eval({"a": [BATCH], "b": [BATCH, BATCH]})
        assert not made._compiled_eval_steps
        made.compile_eval({"a": BATCH, "b": {"x": np.zeros((4, 2), np.float32)}})
        assert made._compiled_eval_steps["a"] is made._compiled_eval_steps["b"]
        assert isinstance(made._compiled_eval_steps["a"], jax.stages.Compiled)
        compiled = made.eval({"a": [BATCH], "b": [BATCH, BATCH]})
    assert compiled["b"]["loss"].value == lazily["b"]["loss"].value == 2 * BATCH["x"].sum()


def test_what_makes_a_state_is_traced_once_and_compiled_ahead():
    traced = []

    class Counted(Linear):
        def get_initial_variables(self, *args, **kwargs):
            traced.append(1)
            variables = super().get_initial_variables(*args, **kwargs)
            noise = jax.random.normal(kwargs["rng"], (2,))
            return variables | {"params": variables["params"].copy({"kernel": noise})}

    partitioner, rng = partitioning.PjitPartitioner(num_partitions=1), jax.random.PRNGKey(3)
    make = initialization.TrainStateInitializer(
        optimizers.sgd(0.5), Counted().get_initial_variables, {"x": (4, 2)}, partitioner
    )
    with waiting.meanwhile() as submit:
        make.compile_ahead(rng, submit)
        ahead = make.from_scratch(rng)
    later, other = make.from_scratch(rng), make.from_scratch(jax.random.PRNGKey(4))
    assert len(traced) == 1
    noise = np.asarray(jax.random.normal(rng, (2,)))
    np.testing.assert_array_equal(ahead.params["kernel"], noise)
    np.testing.assert_array_equal(later.params["kernel"], noise)
    assert not np.array_equal(other.params["kernel"], noise)


def test_for_a_gpu_each_parameter_has_a_kernel_of_its_own(monkeypatch):
    options, compile_it = [], jax.stages.Lowered.compile

    def record(lowered, compiler_options=None):
        options.append(compiler_options)
        return compile_it(lowered, compiler_options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", record)
    partitioner, rng = partitioning.PjitPartitioner(num_partitions=1), jax.random.PRNGKey(3)
    kernels = []
    for platform in ("cpu", "gpu"):
        make = initialization.TrainStateInitializer(
            optimizers.sgd(0.5), Linear().get_initial_variables, {"x": (4, 2)}, partitioner
        )
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        with waiting.meanwhile() as submit:
            make.compile_ahead(rng, submit)
            kernels.append(make.from_scratch(rng).params["kernel"])
    assert options == [None, initialization.A_KERNEL_EACH]
    np.testing.assert_array_equal(*kernels)


@pytest.mark.parametrize("kind", ["threefry2x32", "unsafe_rbg"])
def test_a_state_is_made_from_keys_of_the_kind_in_force(kind):
    seen = []

    def initial(rng, **_):
        seen.append(rng.shape)
        return Linear().get_initial_variables(rng, {"x": (4, 2)})

    with jax.default_prng_impl(kind):
        initialization.TrainStateInitializer(
            optimizers.sgd(0.5), initial, {"x": (4, 2)}, partitioning.PjitPartitioner(num_partitions=1)
        )
        assert seen == [jax.random.PRNGKey(0).shape]


def test_a_step_is_compiled_while_its_state_is_made():
    made, initializer = make_trainer()
    state, made.train_state = made.train_state, initializer.global_train_state_shape
    with waiting.meanwhile() as submit:
        made.compile_ahead(BATCH, submit)
        program = made._compiled_ahead.result().program
    made.train_state = state
    with made:
        made.compile_train(BATCH)
        assert made._compiled_train_step is program
        assert made.train(iter([BATCH]), 1).result()["loss"].value == BATCH["x"].sum()


class Interpreted(partitioning.PjitPartitioner):
    """A partitioner that has no way to compile ahead."""

    def compile(self, partitioned_fn, *args):
        return partitioned_fn


def test_a_partitioner_need_not_compile():
    made, _ = make_trainer(partitioner=Interpreted(num_partitions=1))
    with made:
        with waiting.meanwhile() as submit:
            made.compile_ahead(BATCH, submit)
        made.compile_train(BATCH)
        made.compile_eval({"a": BATCH})
        assert made.train(iter([BATCH]), 1).result()["loss"].value == BATCH["x"].sum()
        assert made._compiled_train_step is made._partitioned_train_step


class Counting(trainer.BaseTrainer):
    """A trainer as T5X's users write them: steps of its own, and `train` with T5X's arguments alone."""

    @property
    def _partitioned_train_step(self) -> trainer.PartitionedTrainCallable:
        def step(state: trainer.TrainState, batch: trainer.BatchType):
            rng = self._get_step_rng(state.step)
            noise = metrics.Sum.from_model_output(jax.random.uniform(rng, (1,)))
            return state.apply_gradient(state.params, learning_rate=RATE), {"noise": noise}

        return step

    @property
    def _partitioned_eval_step(self) -> trainer.PartitionedEvalCallable:
        return lambda state, batch: {"rows": metrics.Sum.from_model_output(jnp.ones(len(batch["x"])))}

    def train(self, batch_iter, num_steps, start_step=None):
        return super().train(batch_iter, num_steps, start_step)


def test_base_trainer_takes_steps_of_ones_own():
    made, _ = make_trainer(cls=lambda *, learning_rate_fn, num_microbatches, **base: Counting(**base))
    seen = []
    made.on_step = lambda step, update: seen.append((step, sorted(update)))
    with made:
        made.train(iter([BATCH] * 2), 2).result()
        assert made.eval({"a": [BATCH]})["a"]["rows"].value == 4
    assert seen == [(1, ["noise"]), (2, ["noise"])]
    np.testing.assert_array_equal(made.train_state.params["kernel"], [0.25, 0.25])


@flax.struct.dataclass
class Note(clu.metrics.Metric):
    """A metric whose value is a text."""

    def merge(self, other):
        return other

    def compute_value(self):
        return clu.values.Text("written")


def test_metrics_may_be_texts_and_time_is_what_the_clock_says(tmp_path):
    ticks = iter([10.0, 14.0])
    manager = trainer.MetricsManager("mine", str(tmp_path), clock=lambda: next(ticks))
    manager.start_duration_timer()
    told = {"note": Note(), "pace": metrics.StepsPerTime.from_model_output(), "loss": metrics.Sum(jnp.float32(3))}
    summary = manager.write_metrics_summary(told, 7, num_steps=2).result()
    manager.close()
    assert (summary["note"].value, summary["pace"].value, summary["loss"].value) == ("written", 0.5, 3)
    assert tags_in(tmp_path / "mine") == {"note", "pace", "loss"}


def test_a_manager_that_writes_nothing_has_a_writer_all_the_same():
    manager = trainer.MetricsManager("mine")
    with pytest.raises(ValueError, match="'mine' are not timed; call start_duration_timer first"):
        manager.write_metrics_summary({}, 0, 1)
    manager.summary_writer.write_scalars(1, {"loss": 2.0})
    manager.write_scalar("loss", val=1.0, step=2)
    manager.close()


class Largest(trainer.WeightMetricsComputer):
    """One metric more, made as the base class makes its own."""

    def compute_metrics(self, gradients, old_train_state, new_train_state):
        mine = self._make_max_metrics("gradient_max", gradients)
        return super().compute_metrics(gradients, old_train_state, new_train_state) | mine


def test_weight_metrics_can_be_extended():
    made, _ = make_trainer(weight_metrics_computer=Largest())
    with made:
        told = made.train(iter([BATCH]), 1).result()
    assert told["gradient_max/kernel"].value == BATCH["x"].sum(axis=0).max()
    assert told["weight_max/bias"].value == 1


def test_parameters_in_no_group_train_on_save_and_restore(tmp_path):
    kernels = traverse_util.ModelParamTraversal(lambda path, _: path == "/kernel")
    made, initializer = make_trainer(optimizers.MultiOptimizer([(kernels, adafactor.Adafactor())]))
    parts = memory.state_parts(
        initializer.global_train_state_shape, initializer.train_state_axes, made._partitioner.mesh
    )
    assert parts == {"parameters": 5 * 4, "optimizer": 4 * (2 + 1 + 1 + 1), "gradients": 5 * 4}
    with made:
        made.compile_train(BATCH)
        made.train(iter([BATCH] * 2), 2).result()
    state = made.train_state
    np.testing.assert_array_equal(state.params["bias"], np.ones(3))
    assert state.param_states["bias"] is None and (state.params["kernel"] != 1).all()

    manager = checkpoints.OrbaxCheckpointManagerInterface(str(tmp_path), state, made._partitioner)
    manager.save(state)
    manager.close()
    path = checkpoints.checkpoint_path(str(tmp_path), 2)
    restored = initializer.from_checkpoint([utils.RestoreCheckpointConfig(path, "specific")])
    jax.tree.map(np.testing.assert_array_equal, restored, state)
    assert restored.params["kernel"].sharding.spec == PartitionSpec("model")


class Saved:
    """Stands for a CheckpointManager and keeps the steps it was given."""

    def __init__(self):
        self.steps = []

    def save(self, state, *_) -> bool:
        self.steps.append(int(state.step))
        return True


def test_a_preempted_run_is_saved_and_the_error_goes_on(tmp_path):
    made, _ = make_trainer()
    manager = Saved()
    run = train.TrainingRun(made, manager, None, None, {}, {}, str(tmp_path))

    def preempted():
        yield from [BATCH] * 3
        raise trainer.PreemptionError("the machine goes")

    with made, pytest.raises(trainer.PreemptionError, match="the machine goes"), run._saving_if_preempted():
        made.train(preempted(), 5)
    assert manager.steps == [3]


class ReadsMetrics(Saved):
    """Looks, as it saves, which metrics are in the event files: the best checkpoints are chosen by them."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.found = str(folder), {}

    def save(self, state, *_) -> bool:
        self.found = checkpoints.populate_metrics_for_steps(self.folder, "train/learning_rate", [2])
        return super().save(state)


def test_metrics_are_in_the_event_files_before_a_checkpoint_is_saved(tmp_path):
    made, _ = make_trainer(summary_dir=str(tmp_path))
    manager = ReadsMetrics(tmp_path)
    run = train.TrainingRun(made, manager, None, None, {}, {}, str(tmp_path))
    with made:
        made.train(iter([BATCH] * 2), 2)
        run._save(2)
    assert manager.found == {2: pytest.approx(RATE)}


def test_metrics_that_a_store_does_not_take_keep_only_a_monitored_checkpoint_from_being_saved(monkeypatch):
    answers, sent = ["the store failed"], []

    def write_whole(path, content):
        if answers:
            raise stores.StoreError(f"{path}: {answers[0]}")
        sent.append(path)

    monkeypatch.setattr("t5xpg.base.files.write_whole", write_whole)
    monkeypatch.setattr("t5xpg.base.files.append", write_whole)  # of metrics.jsonl
    monkeypatch.setattr("t5x.embedded.tf_memory.SEND_PERIOD", 0.0)
    made, _ = make_trainer(summary_dir="gs://bucket/run")
    manager = Saved()
    run = train.TrainingRun(made, manager, None, None, {}, {}, "gs://bucket/run")
    with made:
        made.train(iter([BATCH] * 2), 2).result()
        manager.metric_name_to_monitor = None
        run._save(2)
        assert manager.steps == [2]
        manager.metric_name_to_monitor = "train/learning_rate"
        with pytest.raises(stores.StoreError, match="^gs://bucket/run/train/events.*: the store failed"):
            run._save(2)
        answers.clear()
    assert [path for path in sent if path.startswith("gs://bucket/run/train/events")]
