"""SQuAD's files, task and numbers, against t5, SeqIO's evaluator and what the official scorer gave."""

import gzip
import json
import random

import pytest
import seqio
import tensorflow as tf
from conftest import TESTS, run_t5xpg
from t5.data import preprocessors
from t5.evaluation import metrics

import t5xpg
from t5xpg import qa
from t5xpg.cli.main import main

FILLER = "The shore was grey, and the water was loud. " * 2
LENGTHS = {"inputs": 128, "targets": 16}


def make_squad(split: str, articles: int) -> dict:
    """A file as SQuAD 2.0's, whose questions' answers stand early, late, or nowhere in the context."""
    rng, data = random.Random(split), []
    for i in range(articles):
        name = rng.choice(("Anna", "Bo", "Cleo", "Dov"))
        late = f"It was {1900 + i} then."
        context = f"{name}'s lamp (the old one) burned.\n{FILLER}{late}"
        found = {"text": name, "answer_start": 0}
        qas = [
            {"id": f"{split}{i}-who", "question": "Whose lamp?", "answers": [found, {**found, "text": f"{name}'s"}]},
            {"id": f"{split}{i}-none", "question": "Why so?", "answers": [], "is_impossible": True},
            {
                "id": f"{split}{i}-when",
                "question": "When?",
                "answers": [{"text": str(1900 + i), "answer_start": context.index(late) + 7}],
            },
        ]
        data.append({"title": name, "paragraphs": [{"context": context, "qas": qas}]})
    return {"version": "v2.0", "data": data}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("squad")
    for split, articles in (("train", 40), ("validation", 10)):
        (folder / f"{split}.json").write_text(json.dumps(make_squad(split, articles)), encoding="utf-8")
    return str(folder / "{split}.json")


@pytest.fixture(scope="module")
def task(files) -> seqio.Task:
    return seqio.get_mixture_or_task(qa.squad_task("test_squad", files, LENGTHS))


def rows(task, split, lengths=LENGTHS, **settings):
    return list(task.get_dataset(lengths, split, shuffle=False, **settings).as_numpy_iterator())


# ---- Files ----


def test_all_forms_of_a_file_hold_the_same_questions(files, tmp_path):
    nested = qa.read_questions(files.replace("{split}", "validation"))
    assert len(nested) == 30 and [len(q.answers) for q in nested[:3]] == [2, 0, 1]
    assert nested[2].context[: nested[2].answer_end].endswith(nested[2].answers[0])
    flat = [q._asdict() for q in nested]
    starts = [q.answer_end - len(q.answers[0]) if q.answers else None for q in nested]
    hub = [
        {**q, "answers": {"text": q["answers"], "answer_start": [start] * len(q["answers"])}}
        for q, start in zip(flat, starts, strict=True)
    ]
    for name, lines in (("flat.jsonl", flat), ("hub.jsonl.gz", hub)):
        text = "\n".join(map(json.dumps, lines)).encode() + b"\n\n"
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        assert qa.read_questions(str(tmp_path / name)) == nested


ROW = {"id": "1", "question": "Who?", "context": "Anna.", "answers": ["Anna"]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(ROW) + '\n{"id": "2",\n', "squad.jsonl:2: broken JSON"),
        (json.dumps(ROW) + "\n" + json.dumps(ROW), "squad.jsonl:2: a second question has the id '1'"),
        (json.dumps({"id": "1", "question": "Who?", "answers": []}), "squad.jsonl:1: a question needs context"),
        (json.dumps({**ROW, "answers": [3]}), "squad.jsonl:1: question, context and answers are texts"),
        (json.dumps([1, 2]), "squad.jsonl:1: a question is an object"),
        (json.dumps({"data": [{"paragraphs": [{"context": "c"}]}]}), "not laid out like SQuAD's files"),
        (json.dumps({"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "1"}]}]}]}), "needs question, answers"),
        ("", "no question"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_the_place(text, message, tmp_path):
    (tmp_path / "squad.jsonl").write_text(text)
    with pytest.raises(ValueError) as error:
        qa.read_questions(str(tmp_path / "squad.jsonl"))
    assert message in str(error.value) and "\n" not in str(error.value)


# ---- Texts ----


@pytest.mark.parametrize(
    ("question", "context", "answer"),
    [
        ("What's Norway's capital?", "Oslo (U.S.-style); see:\n\tOslo, 2 km²…", "Oslo (U.S.-style)"),
        ("  ¿Qué?\u00a0", "a_b [c] {d} ~e^f`g \\ | 'é'  东京。", "$5.00"),
    ],
)
def test_padded_texts_are_t5s(question, context, answer):
    row = {"id": "1", "question": question, "context": context, "answers": {"text": [answer]}}
    expected = next(preprocessors.squad(tf.data.Dataset.from_tensors(row)).as_numpy_iterator())
    assert qa.inputs_text(question, context, pad_punctuation=True) == expected["inputs"].decode()
    assert qa.clean(answer, pad_punctuation=True) == expected["targets"].decode()


def test_what_a_models_text_says():
    context = "In Norway's capital (Oslo), prices are at $5.00."
    for raw in ("Norway's capital (Oslo)", "$5.00", "prices"):
        assert qa.answer_text(qa.clean(raw, pad_punctuation=True), context, pad_punctuation=True) == raw
    assert qa.answer_text(" Norway 's ", context) == "Norway 's"
    assert qa.answer_text("not there !", context, pad_punctuation=True) == "not there !"
    assert qa.answer_text(qa.NO_ANSWER, context) == qa.answer_text(qa.NO_ANSWER, context, pad_punctuation=True) == ""
    assert (
        qa.answer_text("no (way)", context, "no (way)") == qa.answer_text("no ( way )", context, "no (way)", True) == ""
    )


# ---- The task ----


def test_examples_are_whole_and_a_missing_answer_has_its_own_target(task):
    vocabulary = task.output_features["targets"].vocabulary
    examples = rows(task, "validation", None)
    assert len(examples) == 30
    for example, question in zip(examples, task.source.questions("validation"), strict=True):
        inputs, targets = (vocabulary.decode(example[name].tolist()) for name in ("inputs", "targets"))
        assert inputs == f"question: {question.question} context: {question.context}".replace("\n", " ")
        assert targets == (question.answers[0] if question.answers else "unanswerable")
        assert example["inputs"][-1] == example["targets"][-1] == vocabulary.eos_id
        assert [answer.decode() for answer in example["answers"]] == list(question.answers)
        assert example["id"].decode() == question.id


def test_training_leaves_out_answers_that_are_cut_away_and_says_how_many(files, capsys):
    task = seqio.get_mixture_or_task(qa.squad_task("test_squad_cut", files, LENGTHS))
    train, validation = rows(task, "train"), rows(task, "validation")
    said = capsys.readouterr().err
    assert "train: 120 questions; 120 are cut to 128 tokens; the answers of 40 are cut away" in said
    assert "validation: 30 questions" in said or task.source.fit("validation").cut == 30
    assert len(train) == task.num_input_examples("train") == 80 and len(validation) == 30
    assert not any(b"-when" in example["id"] for example in train)
    assert all(len(example["inputs"]) == 128 for example in train)
    whole = seqio.get_mixture_or_task(qa.squad_task("test_squad_whole", files, {"inputs": 256, "targets": 5}))
    assert whole.source.fit("train").cut == 0
    assert not whole.source.fit("train").lost
    short = seqio.get_mixture_or_task(qa.squad_task("test_squad_short", files, {"inputs": 256, "targets": 4}))
    assert {q.answers[0] for q in short.source.questions("train") if q.answers} == {"Bo", "Dov"}


def test_lengths_that_were_not_counted_are_refused(task):
    with pytest.raises(ValueError, match="Set squad_task.sequence_length = %TASK_FEATURE_LENGTHS"):
        task.get_dataset({"inputs": 64, "targets": 16}, "train")


def test_a_name_stands_for_one_set_of_arguments(task, files):
    assert qa.squad_task("test_squad", files, LENGTHS) == "test_squad"
    with pytest.raises(ValueError, match="registered before, and source was"):
        qa.squad_task("test_squad", files, LENGTHS, no_answer="none")


def test_shuffling_follows_the_seed_and_shards_share_all(task):
    def ids(**settings):
        return [row["id"] for row in task.source.get_dataset("train", **settings).as_numpy_iterator()]

    assert ids(seed=1) == ids(seed=1) != ids(seed=2)
    assert sorted(ids(seed=1)) == sorted(ids(shuffle=False))
    shards = [rows(task, "train", shard_info=seqio.ShardInfo(i, 3)) for i in range(3)]
    assert sorted(row["id"] for shard in shards for row in shard) == sorted(ids())


def test_an_answer_that_says_there_is_none_is_refused(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({**ROW, "answers": ["unanswerable"]}))
    name = qa.squad_task("test_squad_says_none", {"train": str(tmp_path / "train.jsonl")}, None)
    with pytest.raises(ValueError, match="Set no_answer"):
        seqio.get_mixture_or_task(name).get_dataset(None, "train")


@pytest.mark.parametrize(("always", "expected"), [(None, (100, 100)), ("unanswerable", (0, 100)), ("Bo", (None, 0))])
def test_seqios_evaluator_gives_the_official_numbers(task, always, expected):
    evaluator = seqio.Evaluator(
        "test_squad", seqio.EncDecFeatureConverter(pack=False), "validation", sequence_length=LENGTHS, logger_cls=()
    )
    vocabulary = task.output_features["targets"].vocabulary

    def predict(dataset, model_feature_shapes=None):
        given = None if always is None else [*vocabulary.encode(always), 1]
        return [(i, given or x["decoder_target_tokens"].tolist()) for i, x in dataset.as_numpy_iterator()]

    result, _ = evaluator.evaluate(compute_metrics=True, step=0, predict_fn=predict, score_fn=predict)
    numbers = result.result()["test_squad"]
    numbers = {name: getattr(value, "value", value) for name, value in numbers.items()}
    assert (numbers["total"], numbers["HasAns_total"], numbers["NoAns_total"]) == (30, 20, 10)
    assert numbers["NoAns_exact"] == expected[1]
    assert expected[0] is None or numbers["HasAns_exact"] == expected[0]


# ---- Numbers ----


def test_numbers_are_the_official_scorers():
    golden = json.loads((TESTS / "golden" / "squad.json").read_text(encoding="utf-8"))
    for questions, expected in (
        (golden["questions"], golden["numbers"]),
        ([q for q in golden["questions"] if q["answers"]], golden["answerable"]),
    ):
        found = qa.squad_v2([q["answers"] for q in questions], [golden["predictions"][q["id"]] for q in questions])
        assert list(found) == list(expected)
        assert found == pytest.approx(expected, rel=1e-12)


def test_numbers_are_t5s_where_every_answer_has_words():
    golds, predictions = [["Denver Broncos"], ["gold"], ["a b c d"]], ["the Denver Broncos", "silver", "a b x"]
    rng, vocabulary = random.Random(1), ("Anna", "the", "lamp.", "U.S.", "and", "9")

    def answer() -> str:
        return " ".join(["".join(rng.choices("xyz", k=2)), *rng.choices(vocabulary, k=3)])

    vectors = [(golds, predictions)]
    for _ in range(20):
        made = [[answer(), answer()] for _ in range(4)]
        vectors.append((made, [rng.choice([*answers, answers[0][:-2] + " z", "lamp"]) for answers in made]))
    for targets, predicted in vectors:
        expected, found = metrics.squad(targets, predicted), qa.squad_v2(targets, predicted)
        assert (found["exact"], found["f1"]) == pytest.approx((expected["em"], expected["f1"]))
        assert (found["HasAns_exact"], found["HasAns_f1"]) == (found["exact"], found["f1"])
    assert qa.squad_v2(golds, predictions)["exact"] == pytest.approx(33.333, abs=1e-3)
    assert qa.squad_v2(golds, predictions)["f1"] == pytest.approx(46.667, abs=1e-3)


def test_empty_answers_where_t5s_metric_stops_or_differs():
    right = {"exact": 100, "f1": 100, "total": 1}
    assert qa.squad_v2([[]], [""]) == right | {f"NoAns_{name}": value for name, value in right.items()}
    assert qa.squad_v2([[]], ["Anna"])["NoAns_f1"] == 0
    assert qa.squad_v2([["Anna"]], [""])["HasAns_f1"] == 0
    assert qa.squad_v2([["?!"]], ["the"]) == qa.squad_v2([[""]], [""])  # answers without a word: nothing is right
    assert qa.squad_v2([], []) == {}


def test_predictions_are_the_official_scorers_input(tmp_path):
    qa.write_predictions({"a": "Ångström", "b": ""}, tmp_path / "predictions.json")
    assert json.loads((tmp_path / "predictions.json").read_text(encoding="utf-8")) == {"a": "Ångström", "b": ""}
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.json"]


# ---- A run ----


@pytest.fixture(scope="module")
def squad_run(tmp_path_factory, micro_run, files):
    """A micro model fine-tuned by the recipe that ships: (its MODEL_DIR, the finished process)."""
    model_dir = tmp_path_factory.mktemp("squad_run") / "run"
    done = run_t5xpg(
        *("train", "configs/squad_byt5_tiny.gin", TESTS / "micro_model.gin", f"FILES={files}"),
        *(f"MODEL_DIR={model_dir}", f"INITIAL_CHECKPOINT_PATH={micro_run[0]}/checkpoint_20"),
        *("TRAIN_STEPS_RELATIVE=20", "EVAL_PERIOD=10", "EVAL_STEPS=1", "utils.SaveCheckpointConfig.period=20"),
        *("train.stats_period=10", f"TASK_FEATURE_LENGTHS={LENGTHS}"),
    )
    assert done.returncode == 0, done.stderr
    return model_dir, done


def test_a_run_ends_with_its_scores_over_the_steps(squad_run):
    model_dir, done = squad_run
    assert "the answers of 40 are cut away" in done.stderr
    header, *lines = done.stdout.splitlines()[-3:]
    names = header.split()
    assert names[0] == "step" and set(qa.squad_v2([[], ["x"]], ["", ""])) == set(names[1:])
    assert [line.split()[0] for line in lines] == ["30", "40"]
    assert main(["qa", str(model_dir)]) == 0
    assert main(["qa", str(model_dir.parent)]) == 1


def test_the_verb_answers_as_the_runs_own_evaluation_did(squad_run, files, tmp_path, capsys):
    model_dir, _ = squad_run
    predictions, file = tmp_path / "predictions.json", files.replace("{split}", "validation")
    arguments = ["--question", "Whose lamp?", "--context", "Anna's lamp burned. " * 9, "--file", file]
    assert main(["qa", str(model_dir), *arguments, "--predictions", str(predictions)]) == 0
    printed = capsys.readouterr()
    assert "t5xpg: warning: Of 1 questions 1 are longer than the " in printed.err and "9 batches of 4" in printed.err
    shown = {parts[0]: float(parts[1]) for line in printed.out.splitlines() if len(parts := line.split()) == 2}
    logged = json.loads((model_dir / "inference_eval" / "squad-metrics.jsonl").read_text().splitlines()[-1])
    assert {name: round(value, 2) for name, value in logged.items() if name != "step"} == shown
    answers = json.loads(predictions.read_text())
    evaluated = (model_dir / "inference_eval" / "squad-000040.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(answers.values()) == [json.loads(line)["prediction"] for line in evaluated]
    assert list(answers) == [q.id for q in qa.read_questions(file)]


def test_a_restored_model_answers_alone_as_in_batches(squad_run, files):
    model = t5xpg.Model.restore(str(squad_run[0]), batch_size=4)
    questions = qa.read_questions(files.replace("{split}", "validation"))[:6]
    pairs = [(q.question, q.context) for q in questions]
    assert model.answers(pairs) == [model.answer(*pair) for pair in pairs]
    assert len(model.batch_seconds) == 2 + 6
    assert model.is_cut("Who?", "x" * 200) and not model.is_cut("Who?", "x")
    with pytest.warns(UserWarning, match="Of 2 questions 1 are longer than the .* the ends of their contexts are not"):
        model.answers([("Who?", "x" * 200), ("Who?", "x")])
    for wrong in ([], "Who?", [("Who?",)]):
        with pytest.raises(ValueError, match="pairs is a list of at least one"):
            model.answers(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--question", "Who?"], "go together"), (["--predictions", "p.json"], "needs --file")],
)
def test_arguments_that_do_not_go_together_are_refused(arguments, message, capsys):
    assert main(["qa", "nowhere", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_a_model_of_another_task_is_refused(micro_run, capsys):
    assert main(["qa", str(micro_run[0]), "--question", "Who?", "--context", "Anna."]) == 1
    assert "Fine-tune on a qa.squad_task first" in capsys.readouterr().err
