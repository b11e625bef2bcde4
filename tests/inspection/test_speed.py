"""The speed of batches: what is counted against counts by hand, cores against Amdahl's law, and what users are told."""

import functools
import itertools
import json
import os
import signal

import numpy as np
import pytest
import seqio
import tensorflow as tf
from conftest import TESTS

from t5x import utils
from t5xpg import tasks, vocabularies
from t5xpg.cli.main import main
from t5xpg.data import workers
from t5xpg.inspection import speed, terminal
from t5xpg.inspection.speed import Rate, Speed

LENGTHS = {"inputs": 32, "targets": 16}
IN_ARRAYS = "in arrays, of many examples at a time"


def write_rows(path, rows: list[dict]) -> dict[str, str]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"train": str(path)}


@pytest.fixture(scope="module")
def pairs_task(tmp_path_factory) -> str:
    """Every example has 10 tokens of inputs, 5 of targets, EOS included, and 13 bytes of text."""
    files = write_rows(
        tmp_path_factory.mktemp("speed") / "rows.jsonl", [{"inputs": "é" * 4 + "a", "targets": "bcde"}] * 50
    )
    return tasks.jsonl_task("speed_pairs", files, "supervised")


# ---- Measuring ----


def test_a_second_is_counted_after_the_buffers_are_full():
    now = 0.0

    def batches():
        nonlocal now
        now += 30  # for the first
        for number in itertools.count():
            ids = np.zeros([4, 8], np.int32)
            ids[:, : 3 + number % 2] = 7
            names = ("encoder_input_tokens", "decoder_target_tokens", "decoder_input_tokens", "decoder_positions")
            yield dict.fromkeys(names, ids)
            now += 0.25

    examples, tokens, cores = speed.a_second(batches(), lambda: now, lambda: 1.5 * now + 7)
    assert examples == 4 / 0.25
    assert tokens == examples * 2 * 3.5  # inputs and labels, of 3 or 4 tokens each
    assert cores == 1.5


@pytest.mark.parametrize(("bos_id", "path"), [(0, IN_ARRAYS), (3, "by SeqIO, one example after the other: only it")])
def test_both_paths_are_measured_and_named(pairs_task, monkeypatch, bos_id, path):
    monkeypatch.setattr(speed, "WARM_SECONDS", 0.01)
    monkeypatch.setattr(speed, "SECONDS", 0.01)
    convert = functools.partial(seqio.EncDecFeatureConverter, bos_id=bos_id) if bos_id else seqio.EncDecFeatureConverter
    cfg = utils.DatasetConfig(pairs_task, LENGTHS, "train", 5, shuffle=False, seed=0)
    rate = speed.measure(cfg, convert)
    assert rate.path.startswith(path)
    assert rate.examples > 0 and rate.cores > 0 and rate.tokens / rate.examples == pytest.approx(15)


def test_text_is_that_of_the_rows_in_bytes(pairs_task, tmp_path):
    assert speed.text_bytes_of_a_token(seqio.get_mixture_or_task(pairs_task), LENGTHS, "train", 20, 0) == 13 / 15
    files = write_rows(tmp_path / "more.jsonl", [{"inputs": "abc", "targets": "abc"}] * 9)  # 8 tokens, 6 bytes
    mixed = tasks.mixture("speed_mixture", [(pairs_task, 1), (tasks.jsonl_task("speed_more", files, "supervised"), 3)])
    found = speed.text_bytes_of_a_token(seqio.get_mixture_or_task(mixed), LENGTHS, "train", 20, 0)
    assert found == pytest.approx((13 + 3 * 6) / (15 + 3 * 8))


def test_rows_without_text_have_no_megabytes():
    def numbers(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensors({"targets": np.arange(1, 9, dtype=np.int32)})

    features = {"targets": seqio.Feature(vocabularies.byte_vocabulary(), add_eos=False)}
    task = seqio.Task("numbers", seqio.FunctionDataSource(numbers, ["train"]), features, preprocessors=[])
    assert speed.text_bytes_of_a_token(task, {"targets": 8}, "train", 5, 0) is None


@pytest.mark.parametrize(
    ("features", "converter"),
    [("inputs targets", "EncDec"), ("targets", "LM"), ("inputs targets selected", "MaskedLM")],
)
def test_a_task_alone_is_converted_by_its_features(features, converter):
    assert speed.default_converter(dict.fromkeys(features.split(), 8)).__name__ == f"{converter}FeatureConverter"


# ---- A process of its own ----


def test_a_new_process_is_held_to_its_cores():
    every = workers.cores()
    assert workers.in_new_process(1, workers.cores) == 1
    assert workers.in_new_process(every, workers.cores) == every == workers.cores()
    assert speed.numbers_of_cores() == sorted({1, every})


def test_without_affinity_all_cores_are_measured_together(monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity")
    monkeypatch.delattr(os, "sched_getaffinity")
    assert speed.numbers_of_cores() == [os.cpu_count()]


def test_a_new_processs_errors_are_its_own():
    with pytest.raises(ValueError, match="invalid literal for int"):
        workers.in_new_process(1, int, "x")
    with pytest.raises(ChildProcessError, match="a process ended before its work was done: it was killed"):
        workers.in_new_process(1, signal.raise_signal, signal.SIGKILL)


# ---- Cores ----


@pytest.mark.parametrize(
    ("rates", "wanted", "cores"),
    [
        ({1: 600, 2: 1000}, 1, 1),
        ({1: 600, 2: 1000}, 600, 1),
        ({1: 600, 2: 1000}, 601, 2),
        ({1: 600, 2: 1000}, 1000, 2),
        ({1: 600, 2: 1000}, 1001, 3),
        ({1: 600, 2: 1000}, 1500, 4),  # a fifth of the work does not divide: 600 / (0.2 + 0.8 / 4)
        ({1: 600, 2: 1000}, 2400, 16),  # 600 / (0.2 + 0.8 / 16)
        ({1: 600, 2: 1000}, 3001, None),  # 600 / 0.2
        ({1: 100, 8: 800}, 10_000, 100),
        ({1: 100, 2: 90}, 101, None),
        ({1: 100, 2: 250}, 250, 2),
        ({8: 4000}, 4001, 9),
        ({1: 100}, 1000, 10),
    ],
)
def test_cores_for_a_rate(rates, wanted, cores):
    assert speed.cores_for(wanted, rates) == cores


def test_one_core_fewer_would_not_do():
    rng = np.random.default_rng(0)
    for _ in range(200):
        one, stays, here = rng.uniform(10, 1e5), rng.uniform(0.001, 0.9), int(rng.integers(2, 64))

        def rate(cores, one=one, stays=stays):
            return one / (stays + (1 - stays) / cores)

        wanted = rng.uniform(one, 0.99 * one / stays)
        cores = speed.cores_for(wanted, {1: one, here: rate(here)})
        assert rate(cores) >= wanted * (1 - 1e-6) and rate(cores - 1) < wanted
        assert speed.cores_for(one / stays * 1.01, {1: one, here: rate(here)}) is None


# ---- What users are told ----

ON_ONE_AND_TWO = {1: Rate(23_412, 12.1e6, 0.98, IN_ARRAYS), 2: Rate(38_049, 19.6e6, 1.8, IN_ARRAYS)}


def test_the_sentence_has_examples_tokens_and_megabytes():
    name, value, note = terminal.speed_facts(Speed(ON_ONE_AND_TWO, True, 0.9), None)[0]
    assert f"{name}: {value} {note}" == (
        "batches: 23,000 packed examples a second (12M tokens, 11 MB of text) on one core, "
        "38,000 (20M tokens, 18 MB of text) on 2 cores; made in arrays, of many examples at a time"
    )
    slow = {8: Rate(7.46, 412.3, 3.1, "by SeqIO, one example after the other")}
    assert terminal.speed_facts(Speed(slow, False, None), None) == [
        ("batches", "7.5 examples a second", "(410 tokens) on 8 cores; made by SeqIO, one example after the other")
    ]


@pytest.mark.parametrize(
    ("examples", "wanted", "value", "note"),
    [
        ({1: 600, 2: 1000}, 500, "1 core", "of 2 here"),
        ({1: 600, 2: 1000}, 900.5, "2 cores", "of 2 here"),
        ({1: 600, 2: 1000}, 1500, "4 cores", "extrapolated: there are 2 here"),
        ({1: 600}, 1500, "3 cores", "extrapolated: there is 1 here"),
        ({8: 4000}, 1500, "3 cores", "of 8 here, if each adds as much"),
        (
            {1: 600, 2: 1000},
            3500,
            "more than a process makes",
            "by the rates on 1 and 2 cores, no number of cores makes more than 3,000; hosts share the work",
        ),
        (
            {1: 600, 2: 590},
            700,
            "more than a process makes",
            "2 cores make no more than one",
        ),
    ],
)
def test_cores_are_told_with_where_they_come_from(examples, wanted, value, note):
    rates = {cores: Rate(rate, 100 * rate, cores, IN_ARRAYS) for cores, rate in examples.items()}
    found = terminal.speed_facts(Speed(rates, True, 1), wanted)[1]
    assert found[:2] == (f"to feed {wanted:,.10g} a second", value)
    assert found[2].startswith(note)


def test_a_core_that_others_use_is_said():
    rates = {1: Rate(600, 6000, 0.42, IN_ARRAYS), 2: Rate(900, 9000, 0.8, IN_ARRAYS)}
    note = "the one core was used to 42%: other programs, or files, were waited for"
    assert terminal.speed_facts(Speed(rates, True, 1), 100)[2:] == [("note", "", note)]
    rates[1] = Rate(600, 6000, 0.97, IN_ARRAYS)
    assert len(terminal.speed_facts(Speed(rates, True, 1), 100)) == 2


@pytest.mark.parametrize("wanted", ["0", "-5", "x", "nan", "inf"])
def test_a_trainer_takes_a_number_above_zero(wanted, capsys):
    with pytest.raises(SystemExit):
        main(["inspect", "wikitext_span_corruption", f"--feeds={wanted}"])
    assert f"argument --feeds: '{wanted}' is not a number above 0" in capsys.readouterr().err


def test_only_training_has_a_speed(corpus, capsys):
    recipe = [str(TESTS.parent / "configs" / "byt5_tiny_eval.gin"), f"FILES={corpus}", "--speed"]
    assert main(["inspect", *recipe]) == 1
    assert "measure what training reads; this recipe is of t5xpg eval." in capsys.readouterr().err


def test_a_recipe_is_measured_and_told_on_the_terminal_and_on_the_page(corpus, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(speed, "numbers_of_cores", lambda: [1])
    monkeypatch.setenv("COLUMNS", "300")
    arguments = ["--sample", "20", "--feeds", "1e9", "--html", str(tmp_path / "page.html")]
    assert main(["inspect", str(TESTS / "micro.gin"), f"FILES={corpus}", *arguments]) == 0
    printed, page = capfd.readouterr().out, (tmp_path / "page.html").read_text(encoding="utf-8")
    found = next(line for line in printed.splitlines() if line.startswith("batches "))
    value, note = found.removeprefix("batches").strip().split("  ")
    assert value.endswith(" packed examples a second")
    assert note.endswith(f" MB of text) on one core; made {IN_ARRAYS}")
    assert "to feed 1,000,000,000 a second" in printed and "cores  extrapolated: there is 1 here" in printed
    assert f'<dt>batches</dt><dd class="value">{value}</dd><dd class="note">{note}</dd>' in page
