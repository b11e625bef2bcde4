"""Tasks and mixtures from Python and gin, and what they yield."""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import gin
import pytest
import seqio
import tensorflow as tf
from wikitext_tasks import LENGTHS, ids

from t5xpg import objectives, tasks


@pytest.fixture(autouse=True)
def clean_registry():
    before = set(seqio.TaskRegistry.names())
    yield
    for name in set(seqio.TaskRegistry.names()) - before:
        seqio.TaskRegistry.remove(name)
    for name in list(seqio.MixtureRegistry.names()):
        seqio.MixtureRegistry.remove(name)
    gin.clear_config()


# ---- jsonl_task from Python ----


def test_registers_once(folder):
    register = functools.partial(tasks.jsonl_task, "notes", "wikitext_{split}.jsonl")
    assert register() == "notes"
    task = seqio.TaskRegistry.get("notes")
    assert register(objective=objectives.SpanCorruption(0.15, 3)) == "notes"
    assert register(vocabulary=seqio.ByteVocabulary(100), sequence_length=LENGTHS) == "notes"
    assert seqio.TaskRegistry.get("notes") is task
    assert ids("notes", seed=42) == ids("wikitext_span_corruption", seed=42)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"objective": "prefix_lm"}, r"objective was SpanCorruption\(.*\), now PrefixLM"),
        ({"vocabulary": seqio.ByteVocabulary()}, "vocabulary was .*=100.*, now .*extra_ids=0"),
        ({"files": {"train": "b", "validation": "b"}}, "source was .*'a'.*, now .*'b'"),
        ({"text_key": "body"}, "source was .*'text'}.*, now .*'body'}"),
        ({"cacheable": True}, "cacheable was False, now True"),
        ({"metric_fns": ["squad"]}, r"scoring was \[\], now \['squad'\]"),
    ],
)
def test_other_arguments_for_the_same_name(change, message):
    first = {"name": "notes", "files": {"train": "a", "validation": "a"}}
    tasks.jsonl_task(**first)
    with pytest.raises(ValueError, match=f"^notes: registered before, and {message}.*another name"):
        tasks.jsonl_task(**first | change)


def test_text_key_and_objectives(folder):
    (folder / "bodies.jsonl").write_text('{"body": "abcdef"}\n')
    for objective in ("prefix_lm", "full_lm"):
        files = {"train": "bodies.jsonl", "validation": "bodies.jsonl"}
        name = tasks.jsonl_task(f"a_{objective}", files, objective, text_key="body")
        task = seqio.TaskRegistry.get(name)
        lengths = dict.fromkeys(task.output_features, 64)
        (example,) = task.get_dataset(lengths, "train", shuffle=False).as_numpy_iterator()
        text = [t for name in lengths for t in example[name] if t != 1]
        assert task.output_features["targets"].vocabulary.decode(text) == "abcdef"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"name": "my notes"}, "letters, digits .* Use 'my_notes'"),
        ({"name": "an_mixture"}, "a mixture has this name"),
        ({"objective": "span"}, "no objective 'span'. Use one of .*span_corruption"),
        ({"vocabulary": "spm.model"}, r"vocabulary is a str.*vocabularies.sentencepiece\(path\)"),
        ({"files": "notes.jsonl"}, "does not say for which split"),
        ({"sequence_length": {"inputs": 512, "targets": 100}}, "'targets': 114}"),
        ({"sequence_length": {"inputs": 512}}, r"Add \['targets'\]"),
        ({"inputs_key": "q"}, "does not read inputs_key, only text_key.*objective='supervised'"),
        ({"objective": "supervised", "text_key": "q"}, "only inputs_key and targets_key"),
        ({"metric_fns": ["bleurt"]}, "no metric 'bleurt'. Use a function, or one of .*'bleu'"),
        ({"postprocess_fn": "qa"}, "postprocess_fn='qa' is not a function"),
    ],
)
def test_refused_when_registered(change, message):
    tasks.jsonl_task("a_part", {"train": "a", "validation": "a"})
    seqio.MixtureRegistry.add("an_mixture", ["a_part"], default_rate=1.0)
    with pytest.raises(ValueError, match=message):
        tasks.jsonl_task(**{"name": "notes", "files": "notes_{split}.jsonl"} | change)
    assert "notes" not in seqio.TaskRegistry.names()


def test_a_name_that_is_taken_by_another_kind_of_task(folder):
    source = seqio.TextLineDataSource({"train": "wikitext_train.jsonl"})
    seqio.TaskRegistry.add("theirs", source=source, output_features={})
    with pytest.raises(ValueError, match="theirs: a task that is not a jsonl_task has this name"):
        tasks.jsonl_task("theirs", "wikitext_{split}.jsonl")


def test_no_validation_split_is_noticed_and_then_an_error(folder, caplog):
    tasks.jsonl_task("notes", {"train": "wikitext_train.jsonl"})
    assert [r.message for r in caplog.records] == [
        "notes: no validation split, so training runs without evaluation. Name one in files="
    ]
    with pytest.raises(ValueError, match=r"no split 'validation'; found \['train'\]"):
        ids("notes", "validation")


def test_lengths_are_checked_before_data_flows(folder):
    task = seqio.TaskRegistry.get("wikitext_span_corruption")
    with pytest.raises(ValueError, match="'targets': 114}"):
        task.get_dataset({"inputs": 512, "targets": 100}, "train")


def test_cacheable(folder):
    name = tasks.jsonl_task("notes", "wikitext_{split}.jsonl", cacheable=True)
    assert seqio.TaskRegistry.get(name).supports_caching
    assert not seqio.TaskRegistry.get("wikitext_span_corruption").supports_caching
    assert ids(name, seed=1) != ids("wikitext_span_corruption", seed=1), "SeqIO shifts the seeds"


@pytest.mark.parametrize("objective", sorted(objectives.OBJECTIVES))
def test_every_objective_is_a_task(folder, objective):
    pair = json.dumps({"inputs": "a", "targets": "b"})
    (folder / "pairs_validation.jsonl").write_text(pair + "\n")
    files = {"validation": f"{'pairs' if objective == 'supervised' else 'wikitext'}_validation.jsonl"}
    task = seqio.TaskRegistry.get(tasks.jsonl_task("a_task", files, objective))
    lengths = dict.fromkeys(task.output_features, 64)
    ds = task.get_dataset(lengths, "validation", shuffle=False, seed=1)
    assert all(set(lengths) <= set(e) for e in ds.as_numpy_iterator())
    assert ds.cardinality() != 0 and next(iter(ds))["targets"].dtype == tf.int32


@pytest.mark.parametrize("objective", ["span_corruption", "ul2"])
def test_a_restart_goes_on_where_it_stopped(folder, tmp_path, objective):
    task = seqio.TaskRegistry.get(tasks.jsonl_task("notes", "wikitext_{split}.jsonl", objective))
    lengths = {"inputs": 64, "targets": 59}

    def iterator():
        ds = task.get_dataset(lengths, "train", seed=3, num_epochs=None)
        return iter(seqio.EncDecFeatureConverter(pack=True)(ds, lengths).batch(2))

    first = iterator()
    for _ in range(5):
        next(first)
    path = tf.train.Checkpoint(first).write(str(tmp_path / "ckpt"))
    second = iterator()
    tf.train.Checkpoint(second).read(path).assert_consumed()
    for _ in range(5):
        tf.nest.map_structure(tf.debugging.assert_equal, next(first), next(second))


# ---- Supervised tasks ----


PAIRS = [("How high?", "8 metres"), ("Where?", "here"), ("水は?", "低きに"), ("x" * 100, "y" * 90)]


@pytest.fixture
def pairs(folder):
    rows = [json.dumps({"question": q, "answer": a, "id": 1}) for q, a in PAIRS]
    (folder / "pairs.jsonl").write_text("\n".join(rows) + "\n")
    return {
        "name": "pairs",
        "files": {"validation": "pairs.jsonl"},
        "inputs_key": "question",
        "targets_key": "answer",
    }


def test_pairs(pairs):
    objective = objectives.Supervised(prefix="ask: ")
    task = seqio.TaskRegistry.get(tasks.jsonl_task(**pairs, objective=objective))
    made = list(task.get_dataset(LENGTHS, "validation", shuffle=False).as_numpy_iterator())
    decode = task.output_features["inputs"].vocabulary.decode
    for (question, answer), example in zip(PAIRS, made, strict=True):
        inputs, targets = example["inputs"].tolist(), example["targets"].tolist()
        assert inputs[-1] == targets[-1] == 1
        assert decode(inputs[:-1]) == ("ask: " + question)[:63]
        assert targets[:-1] == [b + 3 for b in answer.encode()[:13]]
        assert example["targets_pretokenized"].decode() == answer


def evaluated(task, answer):
    """SeqIO's own evaluation of a model that answers `answer` to each of PAIRS."""
    evaluator = seqio.Evaluator(task, seqio.EncDecFeatureConverter(pack=False))
    vocabulary = seqio.TaskRegistry.get(task).output_features["targets"].vocabulary

    def predict(ds):
        return [(i, vocabulary.encode(answer)) for i, _ in ds.as_numpy_iterator()]

    metrics, _ = evaluator.evaluate(compute_metrics=True, predict_fn=predict)
    return metrics.result()[task]


def test_pairs_are_scored_by_seqio(pairs):
    names = ["squad", "accuracy", "sequence_accuracy", "bleu", "rouge", "edit_distance"]
    task = tasks.jsonl_task(**pairs, objective="supervised", metric_fns=names)
    found = evaluated(task, "the Here")
    assert found["em"] == found["f1"] == 25, "squad ignores case and articles"
    assert found["accuracy"] == found["sequence_accuracy"] == 0 < found["rouge1"]
    assert {"bleu", "mean_edit", "rougeLsum"} <= set(found)
    assert evaluated(task, "here")["accuracy"] == 25


@pytest.mark.parametrize("one", ["accuracy", tasks.metric_fn("accuracy")], ids=["name", "function"])
def test_one_metric_needs_no_list(pairs, one):
    assert set(evaluated(tasks.jsonl_task(**pairs, objective="supervised", metric_fns=one), "here")) == {"accuracy"}


def test_postprocessing_is_seqios(pairs):
    def first_letter(text, example=None, is_target=False):
        question = example["inputs_pretokenized"].decode() if is_target else ""
        return [text[0], question[0]] if is_target else text[0]

    def right(targets, predictions):
        return {"right": sum(p in t for t, p in zip(targets, predictions, strict=True))}

    scoring = {"metric_fns": [right, "squad"], "postprocess_fn": first_letter}
    task = tasks.jsonl_task(**pairs, objective="supervised", **scoring)
    assert evaluated(task, "Hat") == {"right": 1, "em": 50, "f1": 50}


def test_numbers_and_lists_of_answers():
    numbers = tasks.metric_fn("pearson_corrcoef")
    assert numbers(["1", "2.5", "4"], ["2", "3.5", "5"])["pearson_corrcoef"] == pytest.approx(100)
    golds = [["Denver Broncos"], ["gold"], ["a b c d"]]
    found = tasks.metric_fn("squad")(golds, ["the Denver Broncos", "silver", "a b x"])
    assert found == pytest.approx({"em": 33.333, "f1": 46.667}, abs=1e-3)
    assert tasks.metric_fn(len) is len


# ---- Mixtures ----


@pytest.fixture
def parts(folder):
    notes = tasks.jsonl_task("notes", "wikitext_{split}.jsonl")
    return notes, tasks.jsonl_task("other_notes", "wikitext_{split}.jsonl", splits=["train"])


def test_mixture(parts):
    notes, others = parts
    assert tasks.mixture("both", [(notes, 3), (others, 1)]) == "both"
    mixture = seqio.MixtureRegistry.get("both")
    assert tasks.mixture("both", {notes: 3.0, others: 1}) == "both"
    assert seqio.MixtureRegistry.get("both") is mixture
    assert [mixture.get_rate(task) for task in mixture.tasks] == [3, 1]
    ds = mixture.get_dataset(LENGTHS, "train", shuffle=False, seed=1).take(20)
    assert len(list(ds)) == 20
    whole = tasks.mixture("whole", [("both", 1), ("wikitext_span_corruption", 1)])
    assert len(seqio.MixtureRegistry.get(whole).tasks) == 3


def test_a_mixture_takes_examples_by_its_rates(folder):
    rates = {"a": 3, "b": 1}
    for letter in rates:
        row = json.dumps({"inputs": letter, "targets": letter})
        (folder / f"{letter}.jsonl").write_text(row + "\n")
        files = {"train": f"{letter}.jsonl", "validation": f"{letter}.jsonl"}
        tasks.jsonl_task(letter, files, "supervised")
    mixture = seqio.MixtureRegistry.get(tasks.mixture("both", rates))
    ds = mixture.get_dataset(LENGTHS, "train", seed=1).take(1000).as_numpy_iterator()
    first = sum(e["targets"][0] == ord("a") + 3 for e in ds)
    assert abs(first - 750) < 4 * (1000 * 0.75 * 0.25) ** 0.5


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("both", [("notes", 1), ("none", 1)]), "no task or mixture 'none'.*tasks.jsonl_task"),
        (("both", [("notes", 1), ("note", 1)]), r"no task or mixture 'note'.*; did you mean notes\?$"),
        (("both", ["notes"]), "'notes' has no rate"),
        (("both", [("notes", 0)]), "rate of notes is 0. Pass a number above 0"),
        (("both", [("notes", "1")]), "rate of notes is '1'"),
        (("both", [("notes", 1), ("notes", 2)]), "notes is listed twice"),
        (("both", []), "a mixture of no tasks"),
        (("notes", [("notes", 1)]), "notes: a task has this name"),
        (("my mix", [("notes", 1)]), "Use 'my_mix'"),
        (("one", [("notes", 2)]), "registered before, and tasks were .*1}, now .*2}"),
        (("both", [("notes", 1), ("lm", 1)]), "notes has .*'inputs'.*lm has .*same features"),
        (("both", [("notes", 1), ("wikitext_byt5_span_corruption", 1)]), "=100.*=0.*one vocab"),
    ],
)
def test_mixtures_refused(parts, arguments, message):
    tasks.jsonl_task("lm", "wikitext_{split}.jsonl", "full_lm")
    tasks.mixture("one", [("notes", 1)])
    with pytest.raises(ValueError, match=message):
        tasks.mixture(*arguments)
    assert list(seqio.MixtureRegistry.names()) == ["one"]


# ---- jsonl_task from gin ----


GIN = """
from __gin__ import dynamic_registration
import seqio
from t5xpg import objectives
from t5xpg import tasks
from t5xpg import vocabularies

VOCABULARY = @vocabularies.byte_vocabulary()
MIXTURE_OR_TASK_NAME = @tasks.jsonl_task()
TASK_FEATURE_LENGTHS = {"inputs": 64, "targets": 14}
tasks.jsonl_task:
    name = "notes"
    files = "wikitext_{split}.jsonl"
    vocabulary = %VOCABULARY
    sequence_length = %TASK_FEATURE_LENGTHS
vocabularies.byte_vocabulary.extra_ids = 50
objectives.SpanCorruption.mean_noise_span_length = 5
train/seqio.get_mixture_or_task.task_or_mixture_name = %MIXTURE_OR_TASK_NAME
train_eval/seqio.get_mixture_or_task.task_or_mixture_name = %MIXTURE_OR_TASK_NAME
"""


def tasks_of_each_scope():
    for scope in ("train", "train_eval"):
        with gin.config_scope(scope):
            yield gin.get_configurable(seqio.get_mixture_or_task)()


def test_gin_alone_makes_a_task(folder):
    gin.parse_config(GIN)
    train, train_eval = tasks_of_each_scope()
    assert train is train_eval and train.name == "notes"
    assert train.jsonl_arguments["objective"] == (
        "SpanCorruption(noise_density=0.15, mean_noise_span_length=5.0, select_random_chunk=False)"
    )
    assert train.output_features["targets"].vocabulary == seqio.ByteVocabulary(50)
    shipped = seqio.TaskRegistry.get("wikitext_span_corruption").jsonl_arguments["objective"]
    assert shipped == repr(objectives.SpanCorruption(0.15, 3.0))


def test_gin_text_that_a_run_writes_down_reads_back(folder):
    gin.parse_config(GIN)
    written = gin.config_str()
    tasks_before = list(tasks_of_each_scope())
    gin.clear_config()
    gin.parse_config(written)
    assert list(tasks_of_each_scope()) == tasks_before


def test_gin_with_an_objective_of_its_own(folder):
    gin.parse_config(
        GIN
        + """
        tasks.jsonl_task.objective = @wide/objectives.SpanCorruption()
        tasks.jsonl_task.sequence_length = None
        wide/objectives.SpanCorruption.noise_density = 0.5
    """
    )
    task, _ = tasks_of_each_scope()
    assert task.jsonl_arguments["objective"] == repr(objectives.SpanCorruption(0.5, 5))


MIXED = """
from __gin__ import dynamic_registration
import seqio
from t5xpg import objectives
from t5xpg import tasks

MIXTURE_OR_TASK_NAME = @tasks.mixture()
tasks.mixture.name = "mixed"
tasks.mixture.tasks = [(@text/tasks.jsonl_task(), 3), (@pairs/tasks.jsonl_task(), 1)]
text/tasks.jsonl_task:
    name = "text"
    files = "wikitext_{split}.jsonl"
    objective = "ul2"
pairs/tasks.jsonl_task:
    name = "pairs"
    files = {"train": "pairs.jsonl", "validation": "pairs.jsonl"}
    objective = "supervised"
    inputs_key = "question"
    targets_key = "answer"
    metric_fns = ["squad"]
objectives.Supervised.prefix = "ask: "
train/seqio.get_mixture_or_task.task_or_mixture_name = %MIXTURE_OR_TASK_NAME
train_eval/seqio.get_mixture_or_task.task_or_mixture_name = %MIXTURE_OR_TASK_NAME
"""


def test_gin_alone_makes_a_mixture(pairs):
    gin.parse_config(MIXED)
    train, train_eval = tasks_of_each_scope()
    assert train is train_eval and train.name == "mixed"
    assert {task.name: train.get_rate(task) for task in train.tasks} == {"text": 3, "pairs": 1}
    found = {task.name: task.jsonl_arguments["objective"] for task in train.tasks}
    assert found == {"text": repr(objectives.UL2()), "pairs": "Supervised(prefix='ask: ')"}
    lengths = {"inputs": 64, "targets": 59}
    assert len(list(train.get_dataset(lengths, "train", seed=1).take(40))) == 40


def test_gin_error_is_the_tasks_own(folder):
    gin.parse_config(GIN.replace('"targets": 14', '"targets": 13'))
    with pytest.raises(ValueError, match="'inputs': 64, 'targets': 14}"):
        list(tasks_of_each_scope())


# ---- Imports ----


def test_imported_anew_with_all_it_needs():
    code = (
        "import sys, seqio, t5xpg.tasks\n"
        "task = seqio.TaskRegistry.get('wikitext_span_corruption')\n"
        "[sys.modules.pop(name) for name in list(sys.modules) if name.startswith('t5xpg')]\n"
        "import t5xpg.tasks\n"
        "assert task is seqio.TaskRegistry.get('wikitext_span_corruption')\n"
        "assert 't5x' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
