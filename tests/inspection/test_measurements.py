"""Inspection: its numbers against counts of the corpus, t5's mask and a packing written here; its page and verbs."""

import dataclasses
import io
import json
import re

import numpy as np
import pytest
import seqio
import tensorflow as tf
from command import run_t5xpg
from conftest import PROSE, TESTS
from html_pages import Page
from rich.console import Console
from t5.data import preprocessors as t5_preprocessors

from t5xpg import objectives, tasks, vocabularies
from t5xpg.cli.main import main
from t5xpg.inspection import measurements, page, readable, terminal
from t5xpg.vocabularies import training


@pytest.fixture
def make_task(tmp_path, request):
    """Registers rows as a task; returns its name."""

    def make(rows: list[dict], **arguments) -> str:
        file = tmp_path / "rows.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        name = re.sub(r"\W+", "_", f"inspected_{request.node.name}")
        return tasks.jsonl_task(name, {"train": str(file), "validation": str(file)}, **arguments)

    return make


def prose_rows(count: int) -> list[dict]:
    return [{"text": f"{n}. {PROSE}"} for n in range(count)]


def t5_noise(tokens: int) -> int:
    with seqio.utils.map_seed_manager(0):
        mask = t5_preprocessors.random_spans_noise_mask(tokens, 0.15, [(0, 1), (2, 3)], 3.0)
    return int(np.sum(mask))


# ---- Numbers ----


def test_span_corruptions_numbers_are_those_of_the_corpus_and_of_t5s_mask(make_task):
    rows = prose_rows(30)
    seen = measurements.inspect(make_task(rows), {"inputs": 64, "targets": 14})
    total = sum(len(row["text"].encode()) for row in rows)
    full, rest = divmod(total, 70)  # raw tokens of a (64, 14) example
    noise = full * t5_noise(70) + (t5_noise(rest) if rest else 0)
    sample = seen.sample
    assert sample.text_tokens == total
    assert sample.noise_tokens == noise
    assert sample.noise_density == pytest.approx(noise / total)
    assert sample.examples == full + (rest > 0)
    assert (sample.features["inputs"].lengths == 64).sum() >= full
    assert sample.rows == 30
    assert seen.epoch.examples == sample.examples


def test_ul2s_spans_are_those_of_its_span_denoisers(make_task):
    denoisers = objectives.UL2(rates=(0.5, 0, 0.5), regular=((3.0, 0.15),))
    name = make_task(prose_rows(400), objective=denoisers)
    sample = measurements.inspect(name, {"inputs": 256, "targets": 256}).sample
    assert 0 < np.count_nonzero(sample.sentinels) < sample.examples  # S-denoised text has none
    assert abs(sample.mean_span - 3) < 0.1
    assert sample.noise_density > 0.2


def test_512_inputs_have_28_spans(make_task):
    name = make_task(prose_rows(12))
    seen = measurements.inspect(name, None, rows=12, examples=50)
    assert measurements.default_lengths(measurements.find(name)) == {"inputs": 512, "targets": 114}
    full = [example for example in seen.examples if len(example.features["inputs"]) == 512]
    assert full
    for example in full:
        assert len(example.text) == 568
        assert sum(token.kind == "noise" for token in example.text) == 85
        assert sum(token.kind == "sentinel" for token in example.features["inputs"]) == 28
        assert len(example.features["targets"]) == 114
    assert seen.sample.sentinels.max() == 28
    assert seen.sample.sentinels_available == 100


def next_fit(lengths: np.ndarray, rooms: list[int], window: int) -> np.ndarray:
    """Packs examples [n, features] in order into rows, those of each window by themselves."""
    rows = []
    for start in range(0, len(lengths), window):
        row = np.zeros_like(lengths[0])
        for example in lengths[start : start + window]:
            if (row + example > rooms).any():
                rows.append(row)
                row = np.zeros_like(row)
            row = row + example
        rows.append(row)
    return np.array(rows)


def test_packing_is_what_next_fit_gives(make_task):
    rng = np.random.default_rng(0)
    rows = [{"inputs": "i" * a, "targets": "t" * b} for a, b in rng.integers(1, 40, (90, 2))]
    seen = measurements.inspect(make_task(rows, objective="supervised"), {"inputs": 50, "targets": 45}, batch_size=4)
    inputs, targets = seen.sample.features["inputs"], seen.sample.features["targets"]
    assert sorted(inputs.lengths) == sorted(len(row["inputs"]) + 1 for row in rows)  # and EOS
    lengths = np.stack([inputs.lengths, targets.lengths], 1)
    expected = next_fit(lengths, [50, 45], window=50)
    np.testing.assert_array_equal(sorted(zip(inputs.packed, targets.packed, strict=True)), sorted(map(tuple, expected)))
    assert inputs.efficiency == pytest.approx(lengths[:, 0].sum() / (90 * 50))
    assert inputs.packed_efficiency == pytest.approx(lengths[:, 0].sum() / (len(expected) * 50))
    assert seen.sample.tokens == lengths.sum()
    assert seen.epoch.steps == -(-len(expected) // 4)


def test_an_epoch_is_scaled_from_rows(make_task):
    rows = [{"inputs": "a" * 9, "targets": "b" * 9}] * 40
    name = make_task(rows, objective="supervised")
    seen = measurements.inspect(name, {"inputs": 20, "targets": 20}, rows=10, batch_size=3)
    assert (seen.sample.rows, seen.sample.examples, seen.sample.packed_rows) == (10, 10, 5)
    assert seen.epoch == measurements.Epoch(40, 40, 20, 7, 3, True)
    assert measurements.estimate_epoch(seen.sample, 40, 3, pack=False).steps == 14


def test_histograms_cover_every_length_once():
    lengths = np.random.default_rng(1).integers(1, 115, 500)
    bins = measurements.histogram(lengths, 114, 32)
    assert [low for low, _, _ in bins] == [1, *(high + 1 for _, high, _ in bins[:-1])]
    assert bins[-1][1] == 114
    for low, high, count in bins:
        assert count == ((lengths >= low) & (lengths <= high)).sum()
    assert len(measurements.histogram(lengths % 5, 5, 32)) == 5


# ---- Examples ----


@pytest.mark.parametrize("objective", ["span_corruption", "iid_denoising", "prefix_lm", "mlm"])
def test_the_text_is_the_documents(make_task, objective):
    text = "Ein Haus über dem Fluß – und eine Brücke. " + PROSE[:160]
    lengths = dict.fromkeys(objectives.get(objective).features, 256)
    seen = measurements.inspect(make_task([{"text": text}], objective=objective), lengths)
    example = seen.examples[0]
    if objective == "prefix_lm":  # may take a piece of the document
        assert "".join(token.text for token in example.text) in text
    else:
        assert "".join(token.text for token in example.text).removesuffix("</s>") == text
    assert any(token.kind == "noise" for token in example.text)
    if objective != "mlm":
        ids = [token.id for token in example.features["targets"]]
        assert [token.id for token in example.features["decoder inputs"]] == [0, *ids[:-1]]


def test_pairs_have_no_mask(make_task):
    name = make_task([{"inputs": "a question", "targets": "answer"}], objective="supervised")
    seen = measurements.inspect(name, {"inputs": 32, "targets": 16})
    assert seen.examples[0].text is None
    assert seen.sample.noise_density is None and seen.sample.mean_span is None
    assert [token.text for token in seen.examples[0].features["targets"]] == [*"answer", "</s>"]


def test_bytes_are_read_as_characters():
    vocabulary = vocabularies.byte_vocabulary()
    text = "aé日😀z"
    read = readable.tokens([*vocabulary.encode(text), 358, 1, 0], vocabulary)
    assert [token.text for token in read] == [
        *("a", "é", "", "日", "", "", "😀", "", "", "", "z"),
        *("⟨0⟩", "</s>", "<pad>"),
    ]
    broken = [0xC3 + 3, 358, 0xA9 + 3, 0xE6 + 3]
    assert [token.text for token in readable.tokens(broken, vocabulary)] == ["\\xc3", "⟨0⟩", "\\xa9", "\\xe6"]
    assert [token.kind for token in readable.tokens([258], seqio.ByteVocabulary())] == ["sentinel"]


def test_sentencepiece_is_read_as_pieces(tmp_path, make_task):
    rows = prose_rows(60)
    (tmp_path / "text.txt").write_text("\n".join(row["text"] for row in rows), encoding="utf-8")
    model = training.train_sentencepiece(str(tmp_path / "text.txt"), tmp_path / "pieces", 120)
    vocabulary = vocabularies.sentencepiece(str(model))
    name = make_task(rows, vocabulary=vocabulary)
    seen = measurements.inspect(name, {"inputs": 128, "targets": 29})
    assert next(token.text for token in seen.examples[0].text).strip() == ""
    restored = "".join(token.text for token in seen.examples[0].text)
    assert vocabulary.decode([token.id for token in seen.examples[0].text]) == restored.strip()
    assert seen.sample.text_tokens == sum(len(vocabulary.encode(row["text"])) for row in rows)


def test_a_mixture_has_no_epoch(make_task):
    mixed = tasks.mixture("inspected_mixture", [(make_task(prose_rows(5)), 1)])
    seen = measurements.inspect(mixed, {"inputs": 64, "targets": 14}, rows=7)
    assert seen.sample.examples == 7
    assert seen.epoch is None and seen.sample.rows is None


def test_errors_say_what_to_do(make_task):
    name = make_task(prose_rows(2))
    with pytest.raises(ValueError, match="no task or mixture 'nothing'.*t5xpg tasks"):
        measurements.inspect("nothing")
    with pytest.raises(ValueError, match="no split 'test'.*train"):
        measurements.inspect(name, split="test")
    with pytest.raises(ValueError, match=r"no split 'trian'.*; did you mean train\?$"):
        measurements.inspect(name, split="trian")
    with pytest.raises(ValueError, match=rf"no task or mixture '{name}s'.*; did you mean {name}\?$"):
        measurements.inspect(f"{name}s")
    with pytest.raises(ValueError, match="Set the feature lengths to"):
        measurements.inspect(name, {"inputs": 64, "targets": 8})


# ---- What is shown ----


@pytest.fixture
def hostile(make_task) -> measurements.Inspection:
    text = "<script>document.title = 'taken'</script> <img src=http://x.example/a.png> & \x1b[31mred " + PROSE
    seen = measurements.inspect(make_task([{"text": text}]))
    return dataclasses.replace(seen, task=f"{seen.task}<script>")


def test_the_page_is_whole_escaped_and_needs_nothing_else(hostile, tmp_path):
    path = tmp_path / "folder" / "page.html"
    page.write(hostile, terminal.facts(hostile), path)
    text = path.read_text(encoding="utf-8")
    made = Page(text)
    assert made.open == []
    assert not made.tags & {"script", "img", "link", "iframe", "object"}
    assert made.asked_for() == []
    whole = "".join(token.text for token in hostile.examples[0].text)
    assert "<script>" in whole
    assert readable.one_line(whole) in made.text
    assert "\x1b" not in text
    assert f"{hostile.sample.noise_density:.2%}" in made.text
    assert list(path.parent.iterdir()) == [path]


def printed(seen: measurements.Inspection, **settings) -> str:
    console = Console(file=io.StringIO(), width=100, **settings)
    terminal.show(seen, console)
    return console.file.getvalue()


def test_colour_is_for_terminals_that_want_it(hostile):
    terminal = {"force_terminal": True, "color_system": "standard", "_environ": {}}
    coloured = printed(hostile, **terminal)
    assert "\x1b[30;43m" in coloured  # noise
    for settings in ({"force_terminal": False}, terminal | {"_environ": {"NO_COLOR": "1"}}):
        plain = printed(hostile, **settings)
        assert "\x1b[3" not in plain and "\x1b[4" not in plain
        assert plain.count("[") >= hostile.sample.sentinels.max()
    assert "\x1b[31m" not in coloured + plain  # which the corpus has


def test_sparks_have_one_sign_for_each_bin():
    assert terminal.sparks(np.array([1, 4, 4, 4]), 4) == "▃  █"


def test_what_is_printed_fits_80_columns(hostile):
    console = Console(file=io.StringIO(), width=80)
    terminal.show(hostile, console)
    terminal.show_code([("why?", "because " * 20, "/a/long/path" * 9 + ":7")], np.linspace(0, 1, 1001), None, console)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    table = lines[lines.index("Lengths") : lines.index("Sample")]
    assert len(table) == 7 and "shortest" in table[1] and not any("…" in line for line in table)


def test_a_recipe_is_read_as_train_reads_it(corpus, tmp_path):
    page = tmp_path / "page.html"
    arguments = (TESTS / "micro.gin", f"FILES={corpus}", "BATCH_SIZE=4", "--examples", "1", "--sample", "20")
    done = run_t5xpg("inspect", *arguments, "--html", page, COLUMNS="160")
    assert done.returncode == 0, done.stderr
    assert "micro, train split" in done.stdout
    assert "inputs 64" in done.stdout and "targets 13" in done.stdout
    assert "batch size 4" in done.stdout
    assert "\x1b" not in done.stdout
    assert page.exists()


def test_tasks_are_listed_ours_first(capsys):
    name = "inspected_of_another_library"
    if name not in seqio.TaskRegistry.names():
        source = seqio.FunctionDataSource(lambda split, shuffle_files: tf.data.Dataset.range(3), ["train"])
        features = {"targets": seqio.Feature(vocabularies.byte_vocabulary())}
        seqio.TaskRegistry.add(name, source, features)
    assert main(["tasks"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names.index("wikitext_span_corruption") < names.index(name)
    ours = lines[names.index("wikitext_span_corruption")]
    for part in ("wikitext_train.jsonl", "SpanCorruption", "extra_ids=100", "validation"):
        assert part in ours
