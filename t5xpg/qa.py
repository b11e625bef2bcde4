"""Question answering: SQuAD 1.1 and 2.0 as a SeqIO task, with the official numbers.

    from __gin__ import dynamic_registration
    from t5xpg import qa
    MIXTURE_OR_TASK_NAME = @qa.squad_task()
    qa.squad_task:
      name = "squad"
      files = {"train": "train-v2.0.json", "validation": "dev-v2.0.json"}
      sequence_length = %TASK_FEATURE_LENGTHS
      vocabulary = %VOCABULARY

The model reads "question: … context: …", as T5 does, and writes the first answer, or `NO_ANSWER`
where the context holds none. What it writes is scored against all of a question's answers, as the
file has them.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import re
import string
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import orjson
import seqio
import tensorflow as tf
from tqdm import tqdm

from t5xpg import tasks, vocabularies
from t5xpg.base.files import write_whole
from t5xpg.data import compressed, finding

NO_ANSWER = "unanswerable"  # what a model writes where the context does not answer the question
_SPACES = re.compile(r"[\t\n\f\r ]+")  # what RE2, and so TensorFlow, calls \s
_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")


class Question(NamedTuple):
    """One question of a SQuAD file.

    Attributes:
      id: of the question; the official scorer's predictions are {id: answer}.
      question: its text.
      context: the paragraph it is about.
      answers: all that count as right, the one to train on first; none where there is no answer.
      answer_end: where the first answer ends, in characters of the context; 0 where there is none.
    """

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    answer_end: int


# ---- Files ----


def read_questions(files: finding.Files) -> list[Question]:
    """Returns all questions of SQuAD files, in order.

    Args:
      files: see `finding.find_files`; also .gz, .bz2, .xz. Each is SQuAD's own JSON (1.1 or 2.0),
        or JSONL with a row {"id", "question", "context", "answers"} for each question. Answers are
        [{"text", "answer_start"}, …] as in SQuAD, {"text": […], "answer_start": […]} as in
        Hugging Face's data set, or texts; [] where there is none.

    Raises:
      ValueError: a file is neither, or two questions have the same id; says where.
    """
    found: dict[str, Question] = {}
    for path in finding.find_files(files):
        for where, row in _rows(path):
            question = _question(row, where)
            if question.id in found:
                raise ValueError(f"{where}: a second question has the id {question.id!r}. Give each its own")
            found[question.id] = question
    if not found:
        raise ValueError(f"{files}: no question in these files")
    return list(found.values())


def _rows(path: str) -> Iterator[tuple[str, Mapping]]:
    """Yields (where, {"id", "question", "context", "answers"}) of each question of a file."""
    try:
        with compressed.open_binary(path) as file:
            text = file.read()
    except compressed.READ_ERRORS as error:
        raise ValueError(f"{path}: cannot be read ({error}). Fetch the file again") from error
    try:
        whole = orjson.loads(text)
    except orjson.JSONDecodeError:
        whole = None  # JSONL, unless a line of it is broken
    if not isinstance(whole, dict) or "data" not in whole:
        for number, line in enumerate(text.split(b"\n"), 1):
            if line.strip():
                yield f"{path}:{number}", _parse(line, f"{path}:{number}")
        return
    try:
        for i, article in enumerate(whole["data"]):
            for j, paragraph in enumerate(article["paragraphs"]):
                for k, asked in enumerate(paragraph["qas"]):
                    where = f"{path}: data[{i}].paragraphs[{j}].qas[{k}]"
                    yield where, {**asked, "context": paragraph["context"]}
    except (KeyError, TypeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path}: not laid out like SQuAD's files, data[].paragraphs[].qas[] ({found})") from None


def _parse(line: bytes, where: str) -> Mapping:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"{where}: broken JSON ({error.msg}). Use SQuAD's own JSON, or one row per line") from None


def _question(row: Mapping, where: str) -> Question:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: a question is an object, not of type {type(row).__name__}")
    if missing := [key for key in ("id", "question", "context", "answers") if key not in row]:
        raise ValueError(f"{where}: a question needs {', '.join(missing)}; found {sorted(row)}")
    answers = row["answers"]
    if isinstance(answers, dict):
        answers = [{"text": text} for text in answers["text"]]
        for answer, start in zip(answers, row["answers"].get("answer_start", ()), strict=False):
            answer["answer_start"] = start
    answers = [answer if isinstance(answer, dict) else {"text": answer} for answer in answers]
    texts = tuple(answer.get("text") for answer in answers)
    if not all(isinstance(text, str) for text in (row["question"], row["context"], *texts)):
        raise ValueError(f"{where}: question, context and answers are texts; found {json.dumps(row)[:200]}")
    end = 0
    if texts:
        start = answers[0].get("answer_start", row["context"].find(texts[0]))
        end = max(start, 0) + len(texts[0])
    return Question(str(row["id"]), row["question"], row["context"], texts, end)


# ---- Texts ----


def clean(text: str, pad_punctuation: bool = False) -> str:
    """Returns the text with single spaces; if asked, with spaces around punctuation, as t5 puts them."""
    if pad_punctuation:
        text = _PUNCTUATION.sub(r" \1 ", text)
    return _SPACES.sub(" ", text)


def inputs_text(question: str, context: str, pad_punctuation: bool = False) -> str:
    """Returns what a model reads: the inputs of t5's `squad`."""
    return clean(f"question: {clean(question, pad_punctuation)} context: {clean(context, pad_punctuation)}")


def answer_text(prediction: str, context: str, no_answer: str = NO_ANSWER, pad_punctuation: bool = False) -> str:
    """Returns the answer that a model's text gives, "" for none.

    Padding punctuation loses where the spaces were ("Norway ' s"), which the official numbers count.
    So such an answer is looked up in the context, ignoring spaces, and returned as it is there.
    """
    prediction = prediction.strip()
    if prediction == clean(no_answer, pad_punctuation).strip():
        return ""
    if pad_punctuation and prediction:
        letters = map(re.escape, "".join(prediction.split()))
        found = re.search(r"\s*".join(letters), context)
        return found[0] if found else prediction
    return prediction


# ---- The task ----


def squad_task(
    name: str,
    files: Mapping[str, finding.Files] | finding.Files,
    sequence_length: Mapping[str, int] | None,
    vocabulary: seqio.Vocabulary | None = None,
    no_answer: str = NO_ANSWER,
    pad_punctuation: bool = False,
    splits: Sequence[str] = ("train", "validation"),
) -> str:
    """Registers a SeqIO task of questions and answers and returns its name.

    A second call with the same arguments only returns the name: gin evaluates a macro at each use.

    Args:
      name: of the task; letters, digits and any of "_.:#".
      files: {split: files}, or files with "{split}" in each name; see `read_questions`.
      sequence_length: {feature: length} that the task is read with (T5X's TASK_FEATURE_LENGTHS).
        Longer inputs are cut at their end; questions whose answer is then gone, or longer than the
        targets, are left out of the split "train", and counted. None cuts and leaves out nothing.
      vocabulary: of inputs and targets, and of the model; None is `vocabularies.byte_vocabulary()`.
      no_answer: what the model is to write where the context has no answer.
      pad_punctuation: put spaces around punctuation, as t5's own SQuAD task does.
      splits: what "{split}" stands for; a mapping names its own.

    Raises:
      ValueError: another task has the name, or an argument cannot work; with what to do.
    """
    vocabulary = vocabularies.byte_vocabulary() if vocabulary is None else vocabulary
    source = SquadSource(files, sequence_length, vocabulary, no_answer, pad_punctuation, splits)
    feature = seqio.Feature(vocabulary, add_eos=True)
    return tasks.register(
        name,
        source,
        preprocessors=[source.check_lengths, seqio.preprocessors.tokenize, seqio.preprocessors.append_eos_after_trim],
        output_features={"inputs": feature, "targets": feature},
        arguments={"source": repr(source), "vocabulary": vocabularies.describe(vocabulary)},
        metric_fns=[squad_v2],
        postprocess_fn=source.postprocess,
    )


class Fit(NamedTuple):
    """How a split fits its lengths, in questions."""

    total: int
    cut: int  # inputs that are cut
    lost: frozenset[str]  # ids of those whose first answer is cut away, or too long for the targets


class SquadSource(seqio.DataSource):
    """SQuAD's questions as rows {"id", "inputs", "targets", "context": [], "answers": [answers]} of strings.

    Files are read when rows are asked for, never when a task is registered; arguments as in `squad_task`.
    """

    def __init__(self, files, sequence_length, vocabulary, no_answer, pad_punctuation, splits):
        self.files = dict(files) if isinstance(files, Mapping) else finding.split_files(files, splits)
        self.no_answer, self.pad_punctuation = no_answer, pad_punctuation
        self._lengths = dict(sequence_length or {})
        self._vocabulary = vocabulary
        self._read = functools.cache(lambda split: read_questions(self.files[split]))
        self.fit = functools.cache(self._fit)
        super().__init__(self.files)

    def __repr__(self) -> str:
        settings = f"{self._lengths}, no_answer={self.no_answer!r}, pad_punctuation={self.pad_punctuation}"
        return f"{type(self).__name__}({self.files}, {settings})"

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return False

    def list_shards(self, split: str) -> list[str]:
        return [split]

    def num_input_examples(self, split: str) -> int:
        """Questions of the split that are used."""
        return len(self.questions(split))

    def questions(self, split: str) -> list[Question]:
        """The questions that the split gives: of "train", those whose answer is not cut away."""
        lost = self.fit(split).lost if split == "train" else ()
        return [question for question in self._read(split) if question.id not in lost]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused_by_sources,
    ) -> tf.data.Dataset:
        """Returns the split's rows, once; `shuffle` permutes all of them, differently each time."""
        del shard_info  # there is one shard
        questions = self.questions(split)
        if not questions:
            raise ValueError(f"no question of split {split!r} keeps its answer at {self._lengths}. Use longer features")
        rows = {
            "id": tf.constant([q.id for q in questions]),
            "inputs": tf.constant([self.inputs(q.question, q.context) for q in questions]),
            "targets": tf.constant([self.target(q) for q in questions]),
            "context": tf.constant([q.context for q in questions]),
            "answers": tf.ragged.constant([q.answers for q in questions], tf.string, ragged_rank=1),
        }
        numbers = tf.data.Dataset.range(len(questions))
        if shuffle:
            numbers = numbers.shuffle(len(questions), seed)
        return numbers.map(lambda i: {name: column[i] for name, column in rows.items()})

    def inputs(self, question: str, context: str) -> str:
        return inputs_text(question, context, self.pad_punctuation)

    def target(self, question: Question) -> str:
        """Returns what the model is to write."""
        if not question.answers:
            return self.no_answer
        text = clean(question.answers[0], self.pad_punctuation)
        if text.strip() == clean(self.no_answer, self.pad_punctuation).strip():
            raise ValueError(
                f"question {question.id}: the answer {text!r} is also the text for no answer. Set no_answer to another"
            )
        return text

    def _fit(self, split: str) -> Fit:
        """Counts what the lengths cut, and says so."""
        questions, cut, lost = self._read(split), 0, []
        for q in tqdm(questions, f"measuring {split}", unit="question", delay=2, leave=False, disable=None):
            inputs_cut = not self._fits("inputs", self.inputs(q.question, q.context))
            kept = not inputs_cut or self._fits("inputs", self.inputs(q.question, q.context[: q.answer_end]))
            cut += inputs_cut
            if q.answers and not (kept and self._fits("targets", self.target(q))):
                lost.append(q.id)
        fit = Fit(len(questions), cut, frozenset(lost))
        tqdm.write(describe_fit(split, fit, self._lengths), file=sys.stderr)
        return fit

    def _fits(self, feature: str, text: str) -> bool:
        """Whether the text and EOS have room."""
        room = self._lengths.get(feature, sys.maxsize)
        return len(text.encode()) < room or len(self._vocabulary.encode(text)) < room  # a token has a byte at least

    def check_lengths(self, dataset: tf.data.Dataset, sequence_length: Mapping[str, int] | None) -> tf.data.Dataset:
        """A preprocessor that changes nothing, and refuses lengths that cut more than was counted."""
        for feature, length in (sequence_length or {}).items():
            if length < self._lengths.get(feature, sys.maxsize):
                raise ValueError(
                    f"{feature} are to be read with length {length}, and squad_task counts what is cut by "
                    f"sequence_length {self._lengths or None}. Set squad_task.sequence_length = %TASK_FEATURE_LENGTHS"
                )
        return dataset

    def postprocess(self, text: str, example: Mapping | None = None, is_target: bool = False) -> str | list[str]:
        """Returns, as SeqIO asks, a prediction's answer, "" for none; for a target, all right answers."""
        assert example is not None  # SeqIO always gives it; its interface has a default
        if is_target:
            return [tf.compat.as_text(answer) for answer in example["answers"]]
        return self.answer(text, tf.compat.as_text(example["context"]))

    def answer(self, prediction: str, context: str) -> str:
        """Returns the answer that a model's text gives, "" for none."""
        return answer_text(prediction, context, self.no_answer, self.pad_punctuation)


def describe_fit(split: str, fit: Fit, lengths: Mapping[str, int]) -> str:
    """Returns the line that `squad_task` prints about a split."""
    if not fit.cut and not fit.lost:
        return f"{split}: {fit.total:,} questions, none cut"
    fate = "left out" if split == "train" else "scored all the same"
    return (
        f"{split}: {fit.total:,} questions; {fit.cut:,} are cut to {lengths.get('inputs')} tokens; the answers of "
        f"{len(fit.lost):,} are cut away or have more than {lengths.get('targets')} tokens: {fate}"
    )


# ---- Numbers ----


def squad_v2(targets: Sequence[Sequence[str]], predictions: Sequence[str]) -> dict[str, float]:
    """Returns the numbers of SQuAD's official evaluate-v2.0.py, in percent; for SQuAD 1.1, too.

    `exact` and `f1` over all questions, HasAns_ and NoAns_ over those with and without an answer,
    where there are any; `total` is how many they are.

    Args:
      targets: for each question its answers as the file has them; none where it has none.
      predictions: for each question the predicted answer, "" for none.
    """
    scores = [(exact(a, p), f1(a, p)) for a, p in zip(targets, predictions, strict=True)]
    groups = {
        "": scores,
        "HasAns_": [score for score, answers in zip(scores, targets, strict=True) if answers],
        "NoAns_": [score for score, answers in zip(scores, targets, strict=True) if not answers],
    }
    numbers: dict[str, float] = {}
    for group, found in groups.items():
        if found:
            for name, values in zip(("exact", "f1"), zip(*found, strict=True), strict=True):
                numbers[f"{group}{name}"] = 100.0 * sum(values) / len(values)
            numbers[f"{group}total"] = len(found)
    return numbers


def exact(answers: Sequence[str], prediction: str) -> float:
    """1 if the prediction is one of the answers, by their words."""
    return float(any(words(answer) == words(prediction) for answer in _counted(answers)))


def f1(answers: Sequence[str], prediction: str) -> float:
    """The best F1 between the words of the prediction and of an answer; 1 if neither has any."""
    return max(_f1(words(answer), words(prediction)) for answer in _counted(answers))


def _f1(answer: list[str], prediction: list[str]) -> float:
    if not answer or not prediction:
        return float(answer == prediction)
    common = sum((collections.Counter(answer) & collections.Counter(prediction)).values())
    return 2 * common / (len(answer) + len(prediction))


def _counted(answers: Sequence[str]) -> Sequence[str]:
    """Returns the answers that have words; if none has, "": then saying nothing is right."""
    return [answer for answer in answers if words(answer)] or [""]


def words(text: str) -> list[str]:
    """Returns the words that count: lower case, without ASCII punctuation, and no articles."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def write_predictions(predictions: Mapping[str, str], path: str | os.PathLike) -> None:
    """Writes {id: answer} as the official scorer takes it, whole or not at all."""
    write_whole(path, json.dumps(dict(predictions), ensure_ascii=False, indent=1))
