"""UL2, BERT's masking and pairs against t5's functions, plain Python, and the published numbers."""

from __future__ import annotations

import collections

import gin
import numpy as np
import pytest
import seqio
import tensorflow as tf
from objective_runs import BYT5, BYTES, fill_in, random_texts, room, run, run_t5
from t5.data import preprocessors as t5_preprocessors

from t5xpg import objectives
from t5xpg.objectives import UL2, MaskedLM, PrefixLM, SpanCorruption, Supervised, ul2

MANY_SENTINELS = seqio.ByteVocabulary(extra_ids=130)
PREFIXES = {mode: BYTES.encode(mode) for mode in ("[NLU]", "[NLG]", "[S2S]")}
SMALL = room(64, 59)


@pytest.fixture(autouse=True)
def no_gin():
    yield
    gin.clear_config()


def mode_of(example):
    """The mode of a UL2 example, and the example without its prefix."""
    (mode,) = (m for m, prefix in PREFIXES.items() if example["inputs"][:5] == prefix)
    return mode, {**example, "inputs": example["inputs"][5:]}


def text_of(example, vocabulary):
    """The tokens that a UL2 example was made of."""
    mode, rest = mode_of(example)
    if mode == "[S2S]":
        return rest["inputs"][:-1] + rest["targets"][:-1]
    return fill_in(rest, vocabulary, vocabulary.extra_ids)


# ---- UL2 ----


def test_published_settings():
    made = UL2().denoisers(512, MANY_SENTINELS)
    found = [(d.rate, bytes(i - 3 for i in d.prefix), d.objective) for d in made]
    assert found == [
        (pytest.approx(rate), prefix, objective)
        for rate, prefix, objective in [
            (0.2, b"[NLU]", SpanCorruption(0.15, 3)),
            (0.2, b"[NLU]", SpanCorruption(0.15, 8)),
            (0.1, b"[NLG]", SpanCorruption(0.5, 3)),
            (0.1, b"[NLG]", SpanCorruption(0.5, 8)),
            (0.1, b"[NLG]", SpanCorruption(0.15, 64)),
            (0.1, b"[NLG]", SpanCorruption(0.5, 64)),
            (0.2, b"[S2S]", PrefixLM()),
        ]
    ]


def test_one_denoiser_alone_is_t5s():
    alone = {"prefixes": ("", "", ""), "regular": [(3, 0.15)]}
    texts, lengths = random_texts(7, 8), room(128, 29)
    made = run(UL2(rates=(1, 0, 0), **alone), texts, lengths, seed=7)
    assert made == run_t5(t5_preprocessors.span_corruption, texts, lengths, seed=7)
    texts, lengths = [" ".join(random_texts(8))], room(64, 63)
    made = run(UL2(rates=(0, 0, 1), **alone), texts, lengths, seed=8)
    assert made == run_t5(t5_preprocessors.prefix_lm, texts, lengths, seed=8)


@pytest.mark.parametrize("inputs", [8, 64, 200, 512])
def test_no_token_is_lost(inputs):
    texts = [*random_texts(9), "", "日", "x" * 5000]
    targets = max(d.targets for d in UL2().denoisers(inputs, MANY_SENTINELS))
    made = run(UL2(), texts, room(inputs, targets), MANY_SENTINELS)
    tokens = [t for example in made for t in text_of(example, MANY_SENTINELS)]
    assert tokens == [t for text in texts for t in BYTES.encode(text)]


def test_rates_and_what_each_denoiser_masks():
    made = run(UL2(), ["abcdefghij" * 6_500] * 3, SMALL)
    whole = [(mode_of(e)[0], len(text_of(e, BYTES)), e) for e in made]
    counts = collections.Counter((mode, tokens) for mode, tokens, _ in whole)
    expected = {("[NLU]", 65): 0.2, ("[NLU]", 67): 0.2, ("[S2S]", 58): 0.2}
    expected |= {("[NLG]", tokens): 0.1 for tokens in (86, 104, 67, 114)}
    assert len(made) > 2500 and len(set(counts) - set(expected)) <= 2, "but for the texts' ends"
    for denoiser, rate in expected.items():
        deviation = (rate * (1 - rate) / len(made)) ** 0.5
        assert abs(counts[denoiser] / len(made) - rate) < 4 * deviation
    spans = collections.defaultdict(set)
    for mode, tokens, example in whole:
        spans[mode, tokens].add(sum(t > 258 for t in example["inputs"]))
    assert spans["[NLG]", 86] == {14} and spans["[NLG]", 104] == {6}, "43 / 3 and 52 / 8"
    assert spans["[NLG]", 114] == spans["[NLG]", 67] == {1} and spans["[S2S]", 58] == {0}
    order = [mode for mode, *_ in whole]
    assert len(set(zip(order, order[1:], order[2:], strict=False))) == 27, "drawn independently"


def test_ul2_seeds():
    texts = random_texts(10)
    made = run(UL2(), texts, SMALL, seed=1)
    assert run(UL2(), texts, SMALL, seed=1) == made
    other = run(UL2(), texts, SMALL, seed=2)
    assert [mode_of(e)[0] for e in other[:20]] != [mode_of(e)[0] for e in made[:20]]


def test_ul2_draws_and_corrupts_alike_eagerly_and_in_tf_data():
    denoisers = UL2().denoisers(64, BYTES)
    features = objectives.output_features(UL2(), BYTES)
    tokens, seed = tf.range(3, 253), tf.constant([3, 4])
    text = ul2._draw({"targets": tokens}, seed, denoisers)
    examples = list(ul2._cut(text).as_numpy_iterator())
    assert np.concatenate([e["targets"] for e in examples]).tolist() == tokens.numpy().tolist()
    numbers = tf.data.Dataset.range(len(denoisers), output_type=tf.int32)
    examples = [{"targets": tokens[:40], "denoiser": number} for number in numbers]
    made = numbers.map(lambda n: ul2._corrupt({"targets": tokens[:40], "denoiser": n}, seed, denoisers, features))
    for example, in_tf_data in zip(examples, made, strict=True):
        eager = ul2._corrupt(example, seed, denoisers, features)
        tf.nest.map_structure(tf.debugging.assert_equal, in_tf_data, dict(eager))
    ds = tf.data.Dataset.from_tensors({"targets": tokens})
    (made,) = ds.map(lambda e: ul2._draw(e, seed, denoisers))
    tf.nest.map_structure(tf.debugging.assert_equal, made, text)


@pytest.mark.parametrize(
    "objective, lengths, vocabulary, message",
    [
        (UL2(), room(512, 506), MANY_SENTINELS, "'inputs': 512, 'targets': 507}"),
        (UL2(), room(512, 512), BYTES, r"507 inputs.*\(noise_density=0.5.*\(extra_ids=126\)"),
        (UL2(), room(64, 59), BYT5, r"\(extra_ids=100\)"),
        (UL2(), room(7, 7), BYTES, r"5 tokens of '\[NLU\]'. Use inputs of length 8"),
        (UL2(), {"inputs": 64}, BYTES, r"Add \['targets'\]"),
        (MaskedLM(), room(64, 64), BYTES, r"Add \['selected'\]"),
        (MaskedLM(), {**room(64, 32), "selected": 64}, BYTES, "'targets': 64, 'selected': 64}"),
        (MaskedLM(mask_id=359), {**room(8, 8), "selected": 8}, BYTES, "no id for the mask"),
        (Supervised(), room(1, 8), BYTES, "Use 2 or more"),
        (Supervised(), {"inputs": 8}, BYTES, r"Add \['targets'\]"),
    ],
)
def test_lengths_refused(objective, lengths, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        objective.check(lengths, vocabulary)


@pytest.mark.parametrize(
    "objective, settings, message",
    [
        (UL2, {"rates": (0.5, 0.5)}, "three shares"),
        (UL2, {"rates": (0.5, -0.1, 0.6)}, "three shares"),
        (UL2, {"rates": (0, 0, 0)}, "three shares"),
        (UL2, {"prefixes": ("[NLU]",)}, "three texts"),
        (UL2, {"regular": [(0.15, 3)]}, "noise_density is a share"),
        (MaskedLM, {"noise_density": 15}, "noise_density is a share"),
        (MaskedLM, {"mask_share": 0.8, "random_share": 0.3}, "shares of one whole"),
    ],
)
def test_settings_refused(objective, settings, message):
    with pytest.raises(ValueError, match=message):
        objective(**settings)


# ---- Masked language models ----

ALIGNED = {"inputs": 64, "targets": 64, "selected": 64}


def masked_by_hand(tokens, seed, objective, mask_id, text_ids):
    """BERT's rule, token by token, on the same random numbers."""
    seeds = tf.random.experimental.stateless_split(seed, 3)
    chance, fate = (tf.random.stateless_uniform([len(tokens)], s).numpy() for s in seeds[:2])
    drawn = tf.random.stateless_uniform([len(tokens)], seeds[2], 0, len(text_ids), tf.int32).numpy()
    inputs, selected = [], []
    for i, token in enumerate(tokens):
        chosen = token in text_ids and chance[i] < objective.noise_density
        if chosen and fate[i] < objective.mask_share:
            inputs.append(mask_id)
        elif chosen and fate[i] < objective.mask_share + objective.random_share:
            inputs.append(text_ids[drawn[i]])
        else:
            inputs.append(token)
        selected.append(2 if chosen else 1)
    return {"inputs": inputs, "targets": tokens, "selected": selected}


@pytest.mark.parametrize("objective", [MaskedLM(), MaskedLM(0.4, 0.5, 0.25, mask_id=4)])
def test_masking_is_berts_rule_eagerly_and_in_tf_data(objective):
    mask_id = objective.mask_id or 358
    text_ids = [i for i in range(3, 259) if i != mask_id]
    tokens = [*BYTES.encode("".join(random_texts(11, 3))), 1, 2, 0, 300, mask_id] * 2
    seed = tf.constant([5, 6])
    expected = masked_by_hand(tokens, seed, objective, mask_id, text_ids)
    example = {"targets": tf.constant(tokens)}
    eager = objective.convert_example(example, seed, BYTES)
    assert {k: v.numpy().tolist() for k, v in eager.items()} == expected
    ds = tf.data.Dataset.from_tensors(example)
    (made,) = ds.map(lambda e: objective.convert_example(e, seed, BYTES)).as_numpy_iterator()
    assert {k: v.tolist() for k, v in made.items()} == expected


def test_shares_over_many_tokens():
    made = run(MaskedLM(), ["abcdefghij" * 12_000] * 2, ALIGNED)
    flat = {name: np.concatenate([e[name] for e in made]) for name in MaskedLM.features}
    inputs, targets, selected = (flat[name] for name in MaskedLM.features)
    chosen = selected == 2
    assert np.all(inputs[~chosen] == targets[~chosen]) and set(selected) == {1, 2}
    assert not np.any(chosen & (targets == 1)), "EOS is never selected"
    masked, kept = chosen & (inputs == 358), chosen & (inputs == targets)
    drawn = inputs[chosen & ~masked & ~kept]
    n = chosen.sum()
    for found, of, share in (
        (n, len(targets) - 2, 0.15),
        (masked.sum(), n, 0.8),
        (kept.sum(), n, 0.1 + 0.1 / 256),  # a random token may be the original
        (len(drawn), n, 0.1 * 255 / 256),
    ):
        assert abs(found / of - share) < 4 * (share * (1 - share) / of) ** 0.5
    counts = np.bincount(drawn, minlength=359)
    assert set(np.flatnonzero(counts)) <= set(range(3, 259)), "random tokens are text"
    others = np.delete(counts, [*range(3), *range(259, 359), *BYTES.encode("abcdefghij")])
    chi_square = np.sum((others - others.mean()) ** 2) / others.mean()
    assert abs(chi_square - len(others)) < 4 * (2 * len(others)) ** 0.5, "alike"


def test_targets_are_the_texts_and_features_stand_side_by_side():
    texts = [*random_texts(12), "日"]
    made = run(MaskedLM(), texts, ALIGNED)
    assert [t for e in made for t in e["targets"]] == [t for text in texts for t in [*BYTES.encode(text), 1]]
    assert {len(e["targets"]) for e in made[:-1]} == {64}
    assert all(len({len(e[name]) for name in e}) == 1 for e in made)


def test_masking_seeds_and_epochs():
    texts = random_texts(13, 4)
    made = run(MaskedLM(), texts, ALIGNED, seed=1)
    assert run(MaskedLM(), texts, ALIGNED, seed=1) == made
    assert run(MaskedLM(), texts, ALIGNED, seed=2) != made
    first, second = run(MaskedLM(), ["abcdefg" * 9], ALIGNED, num_epochs=2 * 128)[:2]
    assert first["targets"] == second["targets"] and first["inputs"] != second["inputs"]


def test_packing_keeps_features_side_by_side():
    made = run(MaskedLM(), random_texts(14), ALIGNED)
    spec = {name: tf.TensorSpec([None], tf.int32) for name in ALIGNED}
    ds = tf.data.Dataset.from_generator(lambda: made, output_signature=spec)
    longer = dict.fromkeys(ALIGNED, 200)
    packed = list(seqio.trim_and_pack_dataset(ds, longer).as_numpy_iterator())
    for name in ALIGNED:
        ids = np.concatenate([row[name][row["targets"] > 0] for row in packed])
        assert ids.tolist() == [t for example in made for t in example[name]]


def test_masks_of_vocabularies():
    assert MaskedLM().mask_token(BYTES) == 358
    assert MaskedLM().mask_token(BYT5) == 258, "0xFF, which is in no text"
    assert MaskedLM().text_ids(BYT5).tolist() == list(range(3, 248))
    ids = seqio.PassThroughVocabulary(1000, eos_id=1)
    with pytest.raises(ValueError, match="extra_ids=100 in the task and the model, or set mask_id"):
        MaskedLM().mask_token(ids)
    assert MaskedLM(mask_id=4).mask_token(ids) == 4


# ---- By name ----


def test_objectives_by_name():
    assert objectives.get("span_corruption") == SpanCorruption(0.15, 3)
    assert objectives.get("ul2") == UL2() and objectives.get("mlm") == MaskedLM()
    assert objectives.get(PrefixLM()) == PrefixLM()
    with pytest.raises(ValueError, match="'bert'.*'full_lm', 'iid_denoising', 'mlm', 'prefix_lm'"):
        objectives.get("bert")


def test_gin_reaches_an_objective_that_is_only_named():
    gin.parse_config("""
        from __gin__ import dynamic_registration
        from t5xpg import objectives
        objectives.UL2.rates = (0.25, 0.25, 0.5)
    """)
    assert objectives.get("ul2") == UL2((0.25, 0.25, 0.5))
    assert objectives.get("mlm") == MaskedLM()
    assert UL2() == UL2((0.4, 0.4, 0.2)), "Python's own calls are not touched"
