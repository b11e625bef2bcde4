"""Masked language modelling from rows to predictions: batches, metrics, networks, and a run through the commands."""

import json
import math
import re

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import seqio
import tensorflow as tf
import transformers
from command import run_fresh_t5xpg
from conftest import TESTS

import t5x.utils
import t5xpg
from t5x import optimizers
from t5x.examples.t5 import network
from t5xpg import hf, mlm, objectives, roberta, tasks, vocabularies
from t5xpg.cli.main import main
from t5xpg.hf import compare
from t5xpg.vocabularies import training

LENGTHS = {"inputs": 64, "targets": 64, "selected": 64}
ROBERTA = roberta.RobertaConfig(vocab_size=384, emb_dim=32, num_heads=2, num_layers=1, mlp_dim=64, max_length=64)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory, corpus) -> str:
    folder = tmp_path_factory.mktemp("bpe") / "bpe"
    return str(training.train_byte_level_bpe(corpus.format(split="train"), folder, 320))


@pytest.fixture(scope="module")
def model(tokenizer) -> mlm.EncoderOnlyModel:
    return mlm.EncoderOnlyModel(
        roberta.Roberta(ROBERTA),
        vocabularies.byte_level_bpe(tokenizer),
        optimizers.adamw(1e-3, mask=mlm.is_matrix),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )


@pytest.fixture(scope="module")
def task(corpus, tokenizer) -> str:
    return tasks.jsonl_task("masked", corpus, "mlm", vocabularies.byte_level_bpe(tokenizer))


def read(task: str, split: str = "train", batch_size: int = 4, num_epochs: int = 1, pack: bool = True, seed: int = 0):
    cfg = t5x.utils.DatasetConfig(task, LENGTHS, split, batch_size, shuffle=False, seed=seed, pack=pack)
    return t5x.utils.get_dataset(cfg, 0, 1, mlm.MaskedLMFeatureConverter, num_epochs)


@pytest.fixture(scope="module")
def batch(task) -> dict[str, np.ndarray]:
    return next(read(task, batch_size=8).as_numpy_iterator())


@pytest.fixture(scope="module")
def params(model, batch):
    shapes = {name: x.shape for name, x in batch.items()}
    variables = jax.jit(lambda key: model.get_initial_variables(key, shapes))(jax.random.PRNGKey(0))
    return flax.core.unfreeze(variables["params"])


@pytest.fixture(scope="module")
def evaluate(model):
    return jax.jit(model.eval_fn)


@pytest.fixture(scope="module")
def log_p(model, params, batch) -> np.ndarray:
    """Log probabilities of all tokens, float64 [batch, length, vocab]."""
    logits = jax.jit(model._compute_logits)(params, batch)
    return scipy.special.log_softmax(np.asarray(logits, np.float64), -1)


# ---- Batches ----


def converted(rows, lengths, pack):
    spec = {name: tf.TensorSpec([None], tf.int32) for name in lengths}
    ds = tf.data.Dataset.from_generator(lambda: iter(rows), output_signature=spec)
    made = mlm.MaskedLMFeatureConverter(pack=pack)(ds, dict.fromkeys(lengths, lengths["inputs"]))
    return [{name: x.tolist() for name, x in row.items()} for row in made.as_numpy_iterator()]


ROWS = [
    {"inputs": [8, 4, 9, 5], "targets": [8, 7, 9, 6], "selected": [1, 2, 2, 2]},  # masked, kept, replaced
    {"inputs": [4, 2], "targets": [3, 2], "selected": [2, 1]},
]


def test_weights_are_where_the_model_is_asked():
    lengths = dict.fromkeys(ROWS[0], 7)
    padded = converted(ROWS, lengths, pack=False)
    assert padded[0] == {
        "encoder_input_tokens": [8, 4, 9, 5, 0, 0, 0],
        "decoder_target_tokens": [8, 7, 9, 6, 0, 0, 0],
        "decoder_loss_weights": [0, 1, 1, 1, 0, 0, 0],
    }
    (packed,) = converted(ROWS, lengths, pack=True)
    assert packed == {
        "encoder_input_tokens": [8, 4, 9, 5, 4, 2, 0],
        "decoder_target_tokens": [8, 7, 9, 6, 3, 2, 0],
        "decoder_loss_weights": [0, 1, 1, 1, 1, 0, 0],
        "encoder_segment_ids": [1, 1, 1, 1, 2, 2, 0],
        "encoder_positions": [0, 1, 2, 3, 0, 1, 0],
    }


def test_seqios_own_converter_would_ask_only_at_masks():
    ds = tf.data.Dataset.from_tensors({name: tf.constant(x, tf.int32) for name, x in ROWS[0].items()})
    theirs = seqio.EncoderFeatureConverter(mask_id=4, pack=False)(ds, {"inputs": 4, "targets": 4})
    assert next(theirs.as_numpy_iterator())["encoder_loss_weights"].tolist() == [0, 1, 0, 0]


def test_lengths_that_differ_are_refused():
    with pytest.raises(ValueError, match="need one length"):
        mlm.MaskedLMFeatureConverter().get_model_feature_lengths({"inputs": 8, "targets": 4, "selected": 8})


def test_a_batch_holds_the_corpus_and_documents_have_both_ends(task, corpus, tokenizer):
    vocabulary = vocabularies.byte_level_bpe(tokenizer)
    rows = [row for batch in read(task, batch_size=1).as_numpy_iterator() for row in batch["decoder_target_tokens"]]
    ids = np.concatenate(rows)
    ids = ids[ids != 0].tolist()
    expected = []
    for example in seqio.TaskRegistry.get(task).source.get_dataset("train", shuffle=False).as_numpy_iterator():
        expected += [1, *vocabulary.encode(example["text"].decode()), 2]
    assert sorted(ids) == sorted(expected)
    assert ids[:200] == expected[:200]


def test_every_epoch_masks_anew_and_every_evaluation_alike(tokenizer, tmp_path):
    words = ["the", "keeper", "read", "what", "he", "had", "written", "on", "the", "far", "shore", "every", "evening"]
    rows = "".join(f'{{"text": "{" ".join(words[i % 5 :])}"}}\n' for i in range(128))  # concatenated 128 at a time
    (tmp_path / "train.jsonl").write_text(rows)
    name = tasks.jsonl_task(
        "same", {"train": str(tmp_path / "train.jsonl")}, "mlm", vocabularies.byte_level_bpe(tokenizer)
    )
    epochs = [list(read(name, batch_size=1, num_epochs=n).unbatch().as_numpy_iterator()) for n in (1, 3)]
    once, thrice = ({f: np.stack([r[f] for r in e]) for f in e[0]} for e in epochs)
    rows = len(once["decoder_target_tokens"])
    selected = np.stack(np.split(thrice["decoder_loss_weights"], 3))  # [epochs, rows, length]
    targets = np.stack(np.split(thrice["decoder_target_tokens"], 3))
    assert rows > 20 and np.array_equal(targets[0], targets[1]) and np.array_equal(targets[0], targets[2])
    np.testing.assert_array_equal(selected[0], once["decoder_loss_weights"])
    both = (selected[0] & selected[1]).sum() / selected[0].sum()
    assert abs(both - 0.15) < 0.05, "chosen independently"
    assert abs(selected.sum() / (targets > 2).sum() - 0.15) < 0.02
    again = np.stack([row["encoder_input_tokens"] for row in read(name, batch_size=1).unbatch().as_numpy_iterator()])
    np.testing.assert_array_equal(again, once["encoder_input_tokens"])


def test_the_vocabularys_mask_is_the_objectives(tokenizer):
    vocabulary = vocabularies.byte_level_bpe(tokenizer)
    assert objectives.MaskedLM().mask_token(vocabulary) == 4
    assert objectives.MaskedLM().text_ids(vocabulary).tolist() == list(range(5, 320))


# ---- The model ----


def test_loss_and_metrics_are_those_of_selected_positions(evaluate, params, batch, log_p):
    loss, found = evaluate(params, batch)
    rows, columns = np.nonzero(batch["decoder_loss_weights"])
    targets, chances = batch["decoder_target_tokens"][rows, columns], log_p[rows, columns]  # [selected], and vocab
    nats = -chances[np.arange(len(targets)), targets].mean()
    assert 0.1 < len(targets) / (batch["decoder_target_tokens"] > 0).sum() < 0.2
    np.testing.assert_allclose(loss, nats, rtol=1e-5)
    for name, expected in (
        ("loss", nats),
        ("nats_per_token", nats),
        ("perplexity", math.exp(nats)),
        ("accuracy", (chances.argmax(-1) == targets).mean()),
    ):
        np.testing.assert_allclose(found[name].compute(), expected, rtol=1e-5, err_msg=name)
    assert {"effective_batch_size/encoder", "non_padding_fraction/loss_weights"} <= found.keys()


def test_metrics_that_t5x_lacks_are_ours(model, evaluate, params, batch, log_p, monkeypatch):
    expected = evaluate(params, batch)[1]
    monkeypatch.setattr(mlm.models.BaseTransformerModel, "_compute_metrics", lambda self, **_: {})
    targets, mask = (jnp.asarray(batch[f"decoder_{name}"]) for name in ("target_tokens", "loss_weights"))
    found = model._compute_metrics(logits=jnp.asarray(log_p, jnp.float32), targets=targets, mask=mask, loss=0.0)
    assert found.keys() == {"nats_per_token", "perplexity"}
    for name, metric in found.items():
        np.testing.assert_allclose(metric.compute(), expected[name].compute(), rtol=1e-5)


def test_other_positions_do_not_matter(evaluate, params, batch):
    targets = np.where(batch["decoder_loss_weights"], batch["decoder_target_tokens"], 7)
    changed = {**batch, "decoder_target_tokens": targets.astype(np.int32)}
    assert evaluate(params, changed)[0] == evaluate(params, batch)[0]


def test_scores_and_predictions(model, params, batch, log_p):
    targets, weights = batch["decoder_target_tokens"], batch["decoder_loss_weights"]
    scores = (np.take_along_axis(log_p, targets[..., None], -1)[..., 0] * weights).sum(-1)
    np.testing.assert_allclose(jax.jit(model.score_batch)(params, batch), scores, rtol=1e-4)
    tokens, aux = jax.device_get(jax.jit(model.predict_batch_with_aux)(params, batch))
    np.testing.assert_array_equal(tokens, log_p.argmax(-1))
    whole = mlm.metrics([], [], {name: list(x) for name, x in aux.items()})
    np.testing.assert_allclose(whole["nats_per_token"], -scores.sum() / weights.sum(), rtol=1e-4)
    assert whole["perplexity"] == pytest.approx(math.exp(whole["nats_per_token"]))
    assert whole["accuracy"] == pytest.approx((weights * (tokens == targets)).sum() / weights.sum())


def test_weight_decay_spares_norms_and_biases(params):
    decayed = flax.traverse_util.flatten_dict(mlm.is_matrix(params), sep="/")
    assert {name.rsplit("/", 1)[-1] for name, yes in decayed.items() if not yes} == {"bias", "scale", "logits_bias"}
    assert {n.rsplit("/", 1)[-1] for n, yes in decayed.items() if yes} == {
        "kernel",
        "token_embedding",
        "position_embedding",
    }


@pytest.mark.parametrize("tied", [False, True])
def test_t5s_encoder_is_the_one_of_t5s_transformer(batch, tied):
    config = network.T5Config(
        384, emb_dim=32, num_heads=2, head_dim=16, mlp_dim=64, num_encoder_layers=1, num_decoder_layers=0
    )
    config = config.replace(logits_via_embedding=tied)
    tokens, segments = batch["encoder_input_tokens"], batch["encoder_segment_ids"]
    module = mlm.T5Encoder(config)
    params = module.init(jax.random.PRNGKey(0), tokens, enable_dropout=False)["params"]
    logits = module.apply({"params": params}, tokens, batch["encoder_positions"], segments, enable_dropout=False)
    whole = {name: params[name] for name in ("token_embedder", "encoder")}
    encode = network.Transformer.encode
    encoded = network.Transformer(config).apply(
        {"params": whole}, tokens, segments, enable_dropout=False, method=encode
    )
    kernel = params["token_embedder"]["embedding"].T / math.sqrt(32) if tied else params["logits_dense"]["kernel"]
    np.testing.assert_allclose(logits, encoded @ kernel, rtol=2e-4, atol=2e-4)


def test_filling_needs_a_mask(model, params):
    with pytest.raises(ValueError, match="no <mask>"):
        mlm.fill_mask(model, params, "the sea", 4)


def test_filling_gives_no_id_above_the_vocabulary(model, params):
    size = model.output_vocabulary.vocab_size  # the network has 384
    fond = {**params, "logits_bias": params["logits_bias"].at[size:].set(100.0)}
    (guesses,) = mlm.fill_mask(model, fond, "the <mask>", 4, top=size)
    assert sorted(token for token, _ in guesses) == list(range(size))
    assert sum(chance for _, chance in guesses) == pytest.approx(1)
    with pytest.raises(ValueError, match=f"top is {size + 1}"):
        mlm.fill_mask(model, params, "the <mask>", 4, top=size + 1)


# ---- A run ----


@pytest.fixture(scope="module")
def run(tmp_path_factory, corpus, tokenizer):
    model_dir = tmp_path_factory.mktemp("roberta") / "run"
    done = run_fresh_t5xpg(
        *(
            "train",
            "configs/roberta_tiny.gin",
            TESTS / "micro_roberta.gin",
            f"FILES={corpus}",
            f"MODEL_DIR={model_dir}",
        ),
        *(f"TOKENIZER_FILE={tokenizer}", f"TASK_FEATURE_LENGTHS={LENGTHS}", "TRAIN_STEPS=20", "BATCH_SIZE=8"),
        *("utils.SaveCheckpointConfig.period=20", "train.eval_period=20", "train.eval_steps=2", "train.stats_period=5"),
        "WARMUP_STEPS=5",
        JAX_NUMPY_DTYPE_PROMOTION="standard",  # optax's Adam needs it
    )
    assert done.returncode == 0, done.stderr
    return model_dir, done.stderr


def test_a_run_learns_and_says_so(run):
    nats, perplexity = map(
        float, re.search(r"step +20  masked_text: (\S+) nats/token, perplexity ([\d.]+)", run[1]).groups()
    )
    assert math.exp(nats) == pytest.approx(perplexity, rel=1e-2)
    assert nats < math.log(384) - 0.3


def test_a_run_shows_its_masks_filled_in(run):
    lines = [json.loads(line) for line in (run[0] / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(each["step"], each["index"]) for each in lines] == [(20, index) for index in range(5)]
    for each in lines:
        kept = [part.strip() for part in each["inputs"].split("<mask>")]
        assert len(kept) > 1 and "<mask>" not in each["targets"]
        assert each["prediction"] != each["targets"] and "�" not in each["targets"]


def test_fill_mask_and_export_agree_with_transformers(run, tmp_path, capsys):
    text = "The lighthouse<mask> wrote down the <mask>."
    assert main(["fill-mask", str(run[0]), text, "--top", "3"]) == 0
    shown = re.findall(r"^  (\d)  +([\d.]+)%  (.*)$", capsys.readouterr().out, re.MULTILINE)
    out = tmp_path / "hf"
    assert main(["export", "hf", str(run[0] / "checkpoint_20"), str(out)]) == 0
    names = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {path.name for path in out.iterdir()} == names and list(tmp_path.iterdir()) == [out]
    pipe = transformers.pipeline("fill-mask", model=str(out), tokenizer=str(out), top_k=3)
    expected = [(number, guess) for number, best in enumerate(pipe(text), 1) for guess in best]
    assert len(shown) == len(expected) == 6
    for (number, chance, piece), (place, guess) in zip(shown, expected, strict=True):
        assert int(number) == place and float(chance) / 100 == pytest.approx(guess["score"], abs=2e-3)
        assert piece == guess["token_str"]
    with pytest.raises(FileExistsError, match="does not exist yet"):
        hf.export_model(str(run[0]), str(out))


def test_a_masked_model_does_not_map_inputs_to_targets(run):
    restored = t5xpg.Model.restore(str(run[0]), batch_size=1)
    with pytest.raises(ValueError, match="EncoderOnlyModel does not map inputs to targets.*t5xpg fill-mask"):
        restored.predict(["the sea"])
    best = restored.fill_mask("The <mask> and the<mask>.", top=2)
    assert [len(guesses) for guesses in best] == [2, 2] and best[0][0][1] >= best[0][1][1] > 0


def test_a_mixtures_mask_is_that_of_its_tasks(run, tokenizer, corpus):
    restored = t5xpg.Model.restore(str(run[0]), batch_size=1)
    alone = restored.fill_mask("The <mask>.")
    restored.task = seqio.MixtureRegistry.add("masked_mixture", [restored.task.name], default_rate=1.0)
    assert restored.fill_mask("The <mask>.") == alone
    tasks.jsonl_task("not_masked", corpus, "full_lm", vocabularies.byte_level_bpe(tokenizer))
    restored.task = seqio.get_mixture_or_task("not_masked")
    with pytest.raises(ValueError, match="not_masked masks with no id that is known"):
        restored.fill_mask("The <mask>.")


def test_an_export_that_differs_is_not_written(run, tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "TOLERANCE", 1e-9)
    with pytest.raises(ValueError, match="differ: .* Nothing was written"):
        hf.export_model(str(run[0]), str(tmp_path / "hf"))
    assert not list(tmp_path.iterdir())
