"""`t5xpg inspect` names the code that does what it says, and shows the learning rate that a run will have."""

import functools
import re
from pathlib import Path

import numpy as np
import pytest
import seqio
from conftest import TESTS

from t5x import losses, utils
from t5xpg.cli.main import main
from t5xpg.inspection import code, terminal
from t5xpg.objectives import span_masks


def line_of(place: str) -> str:
    """The line that a place names, or, where that is a decorator, the one after it."""
    path, _, line = place.rpartition(":")
    lines = Path(path).read_text(encoding="utf-8").splitlines()[int(line) - 1 :]
    return next(line for line in lines if not line.startswith("@"))


@pytest.mark.parametrize("thing", [span_masks.corrupt_spans, losses.compute_weighted_cross_entropy, code.Answer])
def test_a_place_is_where_the_code_begins(thing):
    assert re.match(rf"(def|class) {thing.__name__}\b", line_of(code.place(thing)))


def test_code_without_source_has_its_modules_name():
    assert code.place(len) == "builtins"


def test_a_recipes_answers_point_at_code_on_the_terminal_and_on_the_page(corpus, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["inspect", str(TESTS / "micro.gin"), f"FILES={corpus}", "--sample", "20", "--html", str(page)]) == 0
    printed, html = capsys.readouterr().out.replace("\n", ""), page.read_text(encoding="utf-8")
    for question, line in (
        ("how is the mask made?", "def span_mask"),
        ("what are inputs and labels?", "def with_sentinels"),
        ("what does the decoder read?", "def make_autoregressive_inputs"),
        ("how are batches made?", "def batches"),
        ("how is the loss computed?", "def loss_fn"),
        ("what is the optimizer?", "class Adafactor"),
        ("what does the learning rate do?", "def create_learning_rate_scheduler"),
    ):
        assert question in printed
        found = re.search(re.escape(question) + r'.*?href="file://([^"]+)#L(\d+)"', html, re.DOTALL)
        assert line in line_of(":".join(found.groups()))
    assert "0.01 at most" in html and "Learning rate" in printed


def test_an_encoder_alone_has_no_decoder_that_reads(corpus):
    from t5xpg import tasks, vocabularies

    vocabulary = vocabularies.byte_vocabulary(1)
    for objective, expected in (("mlm", False), ("span_corruption", True)):
        task = seqio.get_mixture_or_task(tasks.jsonl_task(f"read_by_{objective}", corpus, objective, vocabulary))
        questions = [answer.question for answer in code.of_data(task, None)]
        assert ("what does the decoder read?" in questions) == expected


def test_batches_that_seqio_makes_are_said_to_be_with_the_reason(corpus):
    from t5xpg import tasks

    cfg = utils.DatasetConfig(tasks.jsonl_task("inspected", corpus), {"inputs": 64, "targets": 14}, "train", 4, True, 0)
    assert code.of_batches(cfg, seqio.EncDecFeatureConverter).words == "in arrays, of many examples at a time"
    found = code.of_batches(cfg, functools.partial(seqio.EncDecFeatureConverter, bos_id=7))
    assert found.words.startswith(
        "by SeqIO, one example after the other: only it knows the converter functools.partial("
    )
    assert line_of(found.place).startswith("def get_dataset(")


def test_a_task_without_a_run_has_the_answers_about_its_data(capsys, corpus):
    from t5xpg import tasks

    tasks.jsonl_task("test_code_pairs", corpus, "supervised", inputs_key="text", targets_key="text")
    assert main(["inspect", "test_code_pairs", "--sample", "5"]) == 0
    printed = capsys.readouterr().out
    assert "what are inputs and labels?" in printed and "how is the loss computed?" not in printed


def test_the_curve_and_its_notable_steps():
    rates = np.concatenate([np.linspace(0, 1, 101), np.linspace(1, 0, 101)[1:]]).astype(np.float32)
    assert terminal.curve(rates, 5) == "▁▅█▅▁"  # halves round to even: 3.5 of 7 steps to 4
    steps = dict(code.notable(rates))
    assert {0, 1, 100, 200} <= steps.keys() and steps[100] == 1 and steps[200] == 0
