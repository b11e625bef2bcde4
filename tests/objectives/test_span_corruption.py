"""T5's objectives against t5's own functions and recorded ids, and properties of what comes out."""

from __future__ import annotations

import functools
import types

import numpy as np
import pytest
import seqio
import tensorflow as tf
from objective_runs import BYT5, BYTES, fill_in, random_texts, room, run, run_t5
from t5.data import preprocessors as t5_preprocessors

from t5xpg import objectives
from t5xpg.objectives import FullLM, IidDenoising, PrefixLM, SpanCorruption, base, span_corruption
from t5xpg.objectives.lengths import span_corruption_lengths

FOX = "The quick brown fox jumps over the lazy dog."


# ---- Recorded ids ----


@pytest.mark.parametrize(
    "mask, inputs, targets",
    [
        ("011000", [10, 32099, 13, 14, 15], [32099, 11, 12, 32098]),
        ("011001", [10, 32099, 13, 14, 32098], [32099, 11, 12, 32098, 15]),
        ("110010", [32099, 12, 13, 32098, 15], [10, 11, 32099, 14, 32098]),
    ],
)
def test_masks_to_inputs_and_targets(mask, inputs, targets):
    mask = tf.constant([bit == "1" for bit in mask])
    made = t5_preprocessors.single_example_denoise(
        {"targets": tf.range(10, 16)},
        tf.constant([0, 1]),
        output_features={"targets": seqio.Feature(seqio.PassThroughVocabulary(32100))},
        noise_density=0.15,
        noise_mask_fn=lambda *_, **__: mask,
        inputs_fn=t5_preprocessors.noise_span_to_unique_sentinel,
        targets_fn=t5_preprocessors.nonnoise_span_to_unique_sentinel,
    )
    assert made["inputs"].numpy().tolist() == inputs
    assert made["targets"].numpy().tolist() == targets


@pytest.mark.parametrize(
    "seed, targets",
    [
        ((0, 1), [258, 35, 109, 120, 257, 103, 114, 106, 49]),
        ((42, 7), [258, 116, 120, 108, 102, 257, 114, 106, 49]),
    ],
)
def test_one_example_eager_and_in_tf_data(seed, targets):
    features = objectives.output_features(SpanCorruption(), BYT5)
    denoise = functools.partial(SpanCorruption().convert_example, output_features=features)
    tokens = BYT5.encode_tf(tf.constant(FOX))
    assert denoise({"targets": tokens}, tf.constant(seed))["targets"].numpy().tolist() == targets
    ds = tf.data.Dataset.from_tensors({"targets": tokens})
    (made,) = ds.map(lambda row: denoise(row, tf.constant(seed))).as_numpy_iterator()
    assert made["targets"].tolist() == targets


def test_whole_pipeline():
    made = run(SpanCorruption(), [" ".join([FOX] * 4)], room(64, 14))
    assert [(len(e["inputs"]), len(e["targets"])) for e in made] == [(64, 14), (64, 14), (36, 9)]
    assert made[0]["inputs"] == [
        *(87, 107, 104, 35, 116, 120, 108, 102, 110, 35, 101, 117, 114, 122, 113, 35, 105, 114),
        *(123, 35, 109, 120, 112, 115, 118, 35, 114, 121, 104, 117, 35, 119, 107, 104, 358, 125),
        *(124, 35, 103, 114, 106, 49, 35, 87, 107, 104, 35, 116, 120, 108, 102, 110, 35, 101, 117),
        *(357, 122, 113, 35, 105, 114, 123, 356, 1),
    ]
    targets = [358, 35, 111, 100, 357, 114, 356, 35, 109, 120, 112, 115, 118, 1]
    assert made[0]["targets"] == targets
    assert made[2]["targets"] == [358, 35, 357, 35, 103, 114, 106, 49, 1]


def test_the_task_is_t5s_pipeline():
    texts, lengths = random_texts(0), room(128, 29)
    theirs = run_t5(t5_preprocessors.span_corruption, texts, lengths, seed=7)
    assert run(SpanCorruption(), texts, lengths, seed=7) == theirs


def test_preprocessors_in_order():
    names = [seqio.utils.function_name(p) for p in objectives.preprocessors(SpanCorruption())]
    assert names == ["rekey", "tokenize", "convert", "append_eos_after_trim"]
    steps = objectives.preprocessors(SpanCorruption(), cacheable=True)
    assert [i for i, p in enumerate(steps) if isinstance(p, seqio.CacheDatasetPlaceholder)] == [2]


# ---- Properties of span corruption ----

SETTINGS = {
    "t5": (SpanCorruption(), BYTES, 100, room(512, 114)),
    "byt5": (SpanCorruption(0.15, 20), BYT5, 11, room(1024, 189)),
    "short": (SpanCorruption(), BYTES, 100, room(16, 5)),
    "two more targets than t5 plans": (SpanCorruption(), BYTES, 100, room(640, 144)),
    "half": (SpanCorruption(0.5, 8), BYTES, 100, room(512, 512)),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_token_is_lost(setting):
    objective, vocabulary, sentinels, lengths = SETTINGS[setting]
    texts = [*random_texts(1), "", "日", "x" * 5000]
    made = run(objective, texts, lengths, vocabulary)
    tokens = [t for example in made for t in fill_in(example, vocabulary, sentinels)]
    assert tokens == [t for text in texts for t in vocabulary.encode(text)]


def test_sentinels_of_span_3_without_extra_ids_would_be_text():
    japanese = "水".encode()[0] + 3  # the id of a lead byte
    assert japanese >= BYT5.vocab_size - span_corruption_lengths(512).spans
    with pytest.raises(ValueError, match=r"ByteVocabulary\(extra_ids=100\)"):
        run(SpanCorruption(), ["水"], room(512, 114), BYT5)


def test_density_and_span_length_over_many_examples():
    made = run(SpanCorruption(), ["abcdefghij" * 3000] * 3, room(512, 114))
    text = sum(len(fill_in(e, BYTES, 100)) for e in made)
    spans = sum(t > 258 for e in made for t in e["inputs"])
    noise = sum(3 <= t <= 258 for e in made for t in e["targets"])
    assert len(made) > 100
    assert abs(noise / text - 0.15) < 0.001 and abs(noise / spans - 3) < 0.05
    starts = [[t > 258 for t in e["inputs"][:-1]].index(True) for e in made]
    assert len(set(starts)) > 20, "masks differ between examples"


def test_seeds():
    texts, lengths = random_texts(2), room(128, 29)
    made = run(SpanCorruption(), texts, lengths, seed=1)
    assert run(SpanCorruption(), texts, lengths, seed=1) == made
    other = run(SpanCorruption(), texts, lengths, seed=2)
    assert other != made
    assert [fill_in(e, BYTES, 100) for e in other] == [fill_in(e, BYTES, 100) for e in made]


def test_each_epoch_draws_new_masks():
    lengths = room(64, 14)
    made = run(SpanCorruption(), ["abcdefg" * 10], lengths, num_epochs=2 * 128)
    assert fill_in(made[0], BYTES, 100) == fill_in(made[1], BYTES, 100)
    assert made[0] != made[1]


@pytest.mark.parametrize("pack", [True, False])
def test_the_feature_converter_keeps_every_token(pack):
    texts, lengths = random_texts(3), room(64, 14)
    made = run(SpanCorruption(), texts, lengths)
    ds = tf.data.Dataset.from_generator(
        lambda: made, output_signature={k: tf.TensorSpec([None], tf.int32) for k in lengths}
    )
    converted = seqio.EncDecFeatureConverter(pack=pack)(ds, lengths).as_numpy_iterator()
    rows = list(converted)
    for feature, name in (("inputs", "encoder_input_tokens"), ("targets", "decoder_target_tokens")):
        ids = np.concatenate([row[name][row[name] > 0] for row in rows])
        assert ids.tolist() == [t for example in made for t in example[feature]]


# ---- What is refused ----


@pytest.mark.parametrize(
    "objective, lengths, vocabulary, message",
    [
        (SpanCorruption(), room(512, 113), BYTES, "'inputs': 512, 'targets': 114}"),
        (SpanCorruption(), room(640, 142), BYTES, "'inputs': 640, 'targets': 144}"),
        (SpanCorruption(), room(8, 8), BYTES, "inputs of length 10, .* length 4$"),
        (SpanCorruption(), room(0, 8), BYTES, "inputs of length 3, .* length 3$"),
        (SpanCorruption(0.15, 20), room(32, 8), BYT5, "inputs of length 62, .* 13$"),
        (SpanCorruption(0.6, 1), room(64, 64), BYTES, "span_length=2, or a smaller"),
        (SpanCorruption(), None, BYTES, r"\['inputs', 'targets'\] to TASK_FEATURE_LENGTHS"),
        (SpanCorruption(), {"inputs": 512}, BYTES, r"Add \['targets'\] to TASK_FEATURE_LENGTHS"),
        (PrefixLM(), room(512, 510), BYTES, "'inputs': 512, 'targets': 511}"),
        (PrefixLM(), {"targets": 512}, BYTES, r"Add \['inputs'\]"),
        (FullLM(), {"inputs": 512}, BYTES, r"Add \['targets'\]"),
        (IidDenoising(), room(512, 211), BYTES, "'inputs': 512, 'targets': 212}"),
        (
            IidDenoising(),
            room(1024, 382),
            BYTES,
            r"need 176 sentinels.*Vocabulary\(extra_ids=176\)",
        ),
        (IidDenoising(), room(2, 9), BYTES, "too short. Use 3"),
    ],
)
def test_lengths_refused(objective, lengths, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        objective.check(lengths, vocabulary)
    with pytest.raises(ValueError, match=message):
        run(objective, ["text"], lengths, vocabulary)  # before any data flows: nothing is iterated


@pytest.mark.parametrize(
    "objective, inputs, vocabulary, extra_ids, span",
    [
        (SpanCorruption(), 512, BYT5, 100, 8),
        (SpanCorruption(), 1810, BYTES, 101, 4),
        (SpanCorruption(0.5, 3), 404, BYTES, 101, 4),
    ],
)
def test_more_spans_than_sentinels(objective, inputs, vocabulary, extra_ids, span):
    lengths = {"inputs": inputs, "targets": objective.lengths(inputs).targets}
    with pytest.raises(ValueError, match=rf"extra_ids={extra_ids}\).*span_length={span} ") as error:
        objective.check(lengths, vocabulary)
    objective.check(lengths, seqio.ByteVocabulary(extra_ids))
    longer = SpanCorruption(objective.noise_density, span)
    lengths = {"inputs": inputs, "targets": longer.lengths(inputs).targets}
    assert f"targets of length {lengths['targets']}" in str(error.value)
    longer.check(lengths, vocabulary)


def test_spans_reach_100_sentinels_at_1809():
    SpanCorruption().check(room(1809, 405), BYTES)
    assert span_corruption_lengths(1809).spans == 100


def test_targets_with_room_to_spare_are_noticed_once(caplog):
    base._warn_once.cache_clear()
    for _ in range(3):
        SpanCorruption().check(room(1024, 1024), BYTES)
    assert [r.message.count("'targets': 229}") for r in caplog.records] == [1]
    SpanCorruption().check(room(1024, 229), BYTES)
    assert len(caplog.records) == 1


def test_features_refused():
    convert, ds = SpanCorruption().convert, tf.data.Dataset.from_tensors({"targets": [3]})
    lengths, feature = room(512, 114), seqio.Feature(BYTES)
    with pytest.raises(ValueError, match=r"lacks \['inputs'\]; found \['targets'\]"):
        convert(ds, lengths, {"targets": feature})
    with pytest.raises(ValueError, match="one vocabulary; found .*ids=0.* and .*ids=100"):
        convert(ds, lengths, {"inputs": seqio.Feature(BYT5), "targets": feature})


@pytest.mark.parametrize("settings", [(15, 3), (0, 3), (1, 3), (0.15, 0.5), (0.15, float("nan"))])
def test_settings_refused(settings):
    with pytest.raises(ValueError, match="found"):
        SpanCorruption(*settings)


# ---- I.i.d. denoising ----


def test_iid_denoising_is_t5s():
    texts, lengths = random_texts(6), room(128, 71)
    made = run(IidDenoising(), texts, lengths, seed=5)
    theirs = run_t5(t5_preprocessors.iid_denoising, texts, lengths, seed=5)
    assert made == theirs


def test_iid_density():
    made = run(IidDenoising(), ["abcdefghij" * 3000] * 3, room(256, 121))
    kept = sum(3 <= t <= 258 for e in made for t in e["inputs"])
    noise = sum(3 <= t <= 258 for e in made for t in e["targets"])
    deviation = (0.15 * 0.85 * 90_000) ** 0.5
    assert kept + noise == 90_000 and abs(noise - 0.15 * 90_000) < 4 * deviation


# ---- Language models ----


def test_prefix_lm_parts_every_text():
    texts, lengths = random_texts(4), room(64, 63)
    made = run(PrefixLM(), texts, lengths)
    assert all(e["inputs"][-1] == e["targets"][-1] == 1 for e in made)
    assert max(len(e["targets"]) for e in made) > 55
    tokens = [t for e in made for t in e["inputs"][:-1] + e["targets"][:-1]]
    assert tokens == [t for text in texts for t in BYTES.encode(text)]


def test_full_lm_ends_documents_not_examples():
    texts = random_texts(5)
    made = run(FullLM(), texts, {"targets": 64})
    assert {len(e["targets"]) for e in made[:-1]} == {64}
    tokens = [t for e in made for t in e["targets"]]
    assert tokens == [t for text in texts for t in [*BYTES.encode(text), 1]]


# ---- The way back ----


def fill_in_spans(inputs, targets):
    vocabulary = types.SimpleNamespace(vocab_size=32100, extra_ids=100, pad_id=0, eos_id=1)
    return span_corruption.fill_in({"inputs": np.array(inputs), "targets": np.array(targets)}, vocabulary)


@pytest.mark.parametrize(
    ("mask", "inputs", "targets"),
    [
        ("011000", [10, 32099, 13, 14, 15], [32099, 11, 12, 32098]),
        ("011001", [10, 32099, 13, 14, 32098], [32099, 11, 12, 32098, 15]),
        ("110010", [32099, 12, 13, 32098, 15], [10, 11, 32099, 14, 32098]),
    ],
)
def test_t5s_vectors_are_filled_in(mask, inputs, targets):
    ids, noise = fill_in_spans(inputs, targets)
    assert ids == [10, 11, 12, 13, 14, 15]
    assert noise == [digit == "1" for digit in mask]


def test_sentinels_that_do_not_pair_have_no_text():
    assert fill_in_spans([32099, 5, 32098], [32099, 7]) is None
