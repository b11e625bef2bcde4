"""T5X's InteractiveModel: T5X's own numbers for the same script, checkpoints, and what its functions make."""

import functools
import os

import jax
import numpy as np
import pytest
import seqio

from t5x import adafactor, decoding, models, partitioning
from t5x import interactive_model as interactive
from t5x.examples.t5 import network
from t5x.interactive_model import InferenceType, InteractiveModel, T5XScriptType
from t5xpg import recipes

pytestmark = pytest.mark.usefixtures("compiled_for_speed")

LENGTHS = {"inputs": 38, "targets": 18}
TARGETS = ("Ajay Tyagi", "C. S. Lewis", "29", "Jack Keil", "Journey")
EXAMPLES = [{"input": f"nq question: who {i}", "target": target} for i, target in enumerate(TARGETS)]
PREPROCESSORS = [seqio.preprocessors.tokenize, seqio.preprocessors.append_eos]


@pytest.fixture(scope="module", autouse=True)
def keep_random_numbers():
    """InteractiveModel switches JAX to T5X's hardware random numbers; other modules get theirs back."""
    before = jax.config.jax_default_prng_impl
    yield
    jax.config.update("jax_default_prng_impl", before)


def make(output_dir, checkpoint_path: str = "", restore_mode: str = "specific") -> InteractiveModel:
    sizes = {"emb_dim": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "head_dim": 16}
    config = network.T5Config(384, mlp_dim=64, mlp_activations=("gelu", "linear"), dropout_rate=0.0, **sizes)
    vocabulary = seqio.ByteVocabulary(extra_ids=100)
    rules = adafactor.standard_logical_factor_rules()
    model = models.EncoderDecoderModel(
        module=network.Transformer(config.replace(dtype="float32", logits_via_embedding=False)),
        input_vocabulary=vocabulary,
        output_vocabulary=vocabulary,
        optimizer_def=adafactor.Adafactor(decay_rate=0.8, step_offset=0, logical_factor_rules=rules),
        decode_fn=functools.partial(decoding.temperature_sample, temperature=1.0, topk=4),
    )
    return InteractiveModel(
        batch_size=4,
        task_feature_lengths=LENGTHS,
        output_dir=str(output_dir),
        partitioner=partitioning.PjitPartitioner(num_partitions=1, model_parallel_submesh=None),
        model=model,
        dtype="float32",
        restore_mode=restore_mode,
        checkpoint_path=checkpoint_path,
        input_shapes={
            "encoder_input_tokens": np.array([4, 38]),
            "decoder_target_tokens": np.array([4, 18]),
            "decoder_input_tokens": np.array([4, 18]),
            "decoder_loss_weights": np.array([4, 18]),
        },
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> InteractiveModel:
    """A model that took two steps from scratch."""
    model = make(tmp_path_factory.mktemp("interactive") / "out")
    with pytest.raises(ValueError, match="before the first train_step"):
        model.train_summary  # noqa: B018
    model.train_step(EXAMPLES[:4])
    model.train_step(examples=EXAMPLES)
    return model


def test_the_numbers_are_t5xs(model):
    """T5X's, commit cc342d4, for this script on the CPU."""
    assert model.step == 2
    np.testing.assert_allclose(model.train_summary["loss"].value, 237.59161, rtol=1e-5)
    np.testing.assert_allclose(model.train_summary["learning_rate"].value, 1.581139e-05, rtol=1e-5)
    scores = [score for _, score in model.score(EXAMPLES)]
    np.testing.assert_allclose(scores, [-72.7371, -78.2800, -19.7810, -66.7671, -52.0047], rtol=1e-5)
    pairs, aux = model.predict_with_aux(EXAMPLES)
    first, *_, last = (prediction for _, prediction in pairs)
    assert (first, last) == (b"\x10g\x0e", b"\xc3\xb0f\xe2\xa0\xab\x10\x10")
    np.testing.assert_allclose(aux["scores"], [-24.9964, -24.7962, -23.9602, -24.8427, -23.7266], rtol=1e-4)


def test_pairs_have_the_examples_features(model):
    (features, _), *_ = model.score(EXAMPLES[4:])
    vocabulary = model.model.input_vocabulary
    assert features["inputs_pretokenized"] == b"nq question: who 4" and features["targets_pretokenized"] == b"Journey"
    assert features["inputs"].tolist() == [*vocabulary.encode("nq question: who 4"), 1]


def test_metrics_by_their_arguments(model):
    def match(targets, predictions):
        return {"match": [type(x) for x in (targets[0], predictions[0])]}

    def mean(targets, scores):
        return {"mean": float(np.mean(scores))}

    def count(targets, predictions, aux_values, unit=1):
        return {"count": len(aux_values["scores"]) / unit}

    found = model.evaluate(EXAMPLES, [match, mean, count])
    scores = [score for _, score in model.score(EXAMPLES)]
    assert found == {"match": [str, str], "mean": pytest.approx(np.mean(scores)), "count": 5}
    assert model.evaluate(EXAMPLES, [mean]).keys() == {"mean"}
    with pytest.raises(ValueError, match=r"Two metric functions give \['mean'\]"):
        model.evaluate(EXAMPLES, [mean, mean])
    with pytest.raises(ValueError, match="metric function takes"):
        model.evaluate(EXAMPLES, [lambda wanted, got: {}])


def test_a_postprocessor_sees_targets_and_predictions(model):
    seen = []

    def keep(text, example=None, is_target=False):
        seen.append((is_target, example["inputs_pretokenized"]))
        return text.upper()

    def first(targets, predictions):
        return {"first": targets[0]}

    found = model.evaluate_with_preprocessors(EXAMPLES[:2], PREPROCESSORS, [first], postprocessor=keep)
    assert found == {"first": "AJAY TYAGI"}
    assert [is_target for is_target, _ in seen] == [True, True, False, False]


def test_decoders_get_further_arguments(model):
    mode = InferenceType.PREDICT_WITH_AUX
    greedy = {"decoder_params": {"topk": 1}}
    both = [model.infer_with_preprocessors(mode, EXAMPLES, PREPROCESSORS, **greedy)[0] for _ in range(2)]
    assert [p for _, p in both[0]] == [p for _, p in both[1]] != [p for _, p in model.predict_with_aux(EXAMPLES)[0]]
    with pytest.raises(ValueError, match="mode is 'predict'"):
        model.infer_with_preprocessors("predict", EXAMPLES, PREPROCESSORS)


def test_checkpoints_are_found_again(model, tmp_path):
    assert {"checkpoint_1", "checkpoint_2", "model-info.txt"} <= set(os.listdir(model._output_dir))
    scores = [score for _, score in model.score(EXAMPLES)]
    resumed = make(model._output_dir)
    named = make(tmp_path / "other", f"{model._output_dir}/checkpoint_1")
    assert (resumed.step, named.step) == (2, 1)
    np.testing.assert_allclose([score for _, score in resumed.score(EXAMPLES)], scores, rtol=1e-6)
    with pytest.raises(ValueError, match="has 2"):
        make(tmp_path / "third", model._output_dir, "all")


def test_the_loop_goes_through_batches_in_turns(model, tmp_path):
    looped = make(tmp_path, f"{model._output_dir}/checkpoint_2")
    predictions, scores, metrics = looped.train_loop(
        num_steps=3, eval_period=2, train_batches=[EXAMPLES[:4], EXAMPLES[1:]], score_batches=EXAMPLES[:3]
    )
    assert (looped.step, predictions, len(scores), metrics) == (5, None, 3, None)
    assert looped.train_loop(num_steps=1, predict_batches=[EXAMPLES[:1]])[0][0][0]["targets"].tolist()
    assert looped.step == 5
    with pytest.raises(ValueError, match="3 examples do not make a batch of 4"):
        looped.train_step(EXAMPLES[:3])


def test_examples_become_a_task_and_batches_of_it(model):
    task = interactive.get_seqio_task_from_examples("typed", model, EXAMPLES, PREPROCESSORS)
    get = functools.partial(interactive.get_batches_from_seqio, "typed", "validation", 2, 2, shuffle=False)
    try:
        assert task is seqio.TaskRegistry.get("typed")
        assert get()[1][0] == {"input": b"nq question: who 2", "target": b"29"}
        ids = get(get_pretokenized_examples=False, sequence_length=LENGTHS)
        assert ids[1][0]["target"] == [ord("2") + 3, ord("9") + 3, 1]
        model.infer_with_preprocessors(InferenceType.SCORE, ids[1], [])  # ids of different lengths
        with pytest.raises(ValueError, match="has 5 examples; 3 batches of 2 need 6"):
            interactive.get_batches_from_seqio("typed", "train", 2, 3)
    finally:
        seqio.TaskRegistry.remove("typed")
    unnamed = interactive.get_seqio_task_from_examples("unnamed", model, EXAMPLES, PREPROCESSORS, add_to_registry=False)
    assert unnamed.name == "unnamed" not in seqio.TaskRegistry.names()


@pytest.mark.parametrize(
    ("preprocessors", "message"),
    [([], "'inputs' is string of rank 0"), ([lambda ds: ds.map(lambda x: {"inputs": x["inputs"]})], "no feature")],
)
def test_features_that_preprocessors_do_not_make_are_named(preprocessors, message, model):
    features = dict(reversed(model._features.items())) if "no feature" in message else model._features
    with pytest.raises(ValueError, match=message):
        interactive.get_dataset_from_natural_text_examples(["a text"], preprocessors, LENGTHS, features)


@pytest.mark.parametrize("kind", T5XScriptType)
def test_the_gin_file_is_one_that_t5xs_programs_take(kind, model, tmp_path):
    named = make(tmp_path, f"{model._output_dir}/checkpoint_2")
    text = interactive.get_gin_config_from_interactive_model(
        interactive_model=named,
        script_type=kind,
        task_name="wikitext_byt5_span_corruption",
        partitioner_config_str="partitioning.PjitPartitioner.num_partitions = 1",
        model_config_str="models.EncoderDecoderModel.z_loss = 0.5",
        train_steps=3,
        imports_str="from t5x import models\nfrom t5x import partitioning\nimport t5xpg.tasks\n"
        "include 't5x/examples/t5/byt5/small.gin'",
    )
    recipe = recipes.read_text(text if "DROPOUT_RATE = " in text else text + "DROPOUT_RATE = 0.0\n")
    settings = recipe.settings()
    assert recipe.program == ("infer" if kind is T5XScriptType.INFERENCE else "train")
    cfg = settings["dataset_cfg" if recipe.program == "infer" else "train_dataset_cfg"]
    assert (cfg.batch_size, cfg.task_feature_lengths, cfg.pack, cfg.shuffle) == (4, LENGTHS, False, False)
    assert settings["model"]._z_loss == 0.5
    restore = settings.get("restore_checkpoint_cfg") or settings["checkpoint_cfg"].restore
    assert (restore.path, restore.mode, restore.dtype) == (f"{model._output_dir}/checkpoint_2", "specific", "float32")
    if recipe.program == "train":
        steps = 0 if kind is T5XScriptType.EVALUATION else 3
        assert (settings["total_steps"], settings["checkpoint_cfg"].save.keep) == (steps, 5)


def test_inference_needs_a_checkpoint(model):
    with pytest.raises(ValueError, match="give InteractiveModel a checkpoint_path"):
        interactive.get_gin_config_from_interactive_model(model, T5XScriptType.INFERENCE, "task", "", "")
