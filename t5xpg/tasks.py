"""SeqIO tasks: JSONL files and an objective get a name that T5X's gin files can train on.

From Python: `tasks.jsonl_task("notes", "notes_{split}.jsonl")`. From gin, on either engine and
without any Python:

    from __gin__ import dynamic_registration
    from t5xpg import tasks
    MIXTURE_OR_TASK_NAME = @tasks.jsonl_task()
    tasks.jsonl_task.name = "notes"
    tasks.jsonl_task.files = "notes_{split}.jsonl"

Pairs of texts, scored as they are generated:

    from t5xpg import objectives
    tasks.jsonl_task:
        name = "questions"
        files = "questions_{split}.jsonl"
        objective = "supervised"
        inputs_key = "question"
        targets_key = "answer"
        metric_fns = ["squad"]
    objectives.Supervised.prefix = "question: "

Several tasks at once, three examples of notes to one of questions; a gin scope tells them apart:

    MIXTURE_OR_TASK_NAME = @tasks.mixture()
    tasks.mixture.name = "notes_and_questions"
    tasks.mixture.tasks = [(@notes/tasks.jsonl_task(), 3), (@questions/tasks.jsonl_task(), 1)]
    notes/tasks.jsonl_task.name = "notes"

Importing this module registers the tasks that ship, over the files that prepare_wikitext.py writes:
`wikitext_span_corruption` and `wikitext_byt5_span_corruption`. A relative file name is looked up in
the working directory, then in $T5XPG_DATA_DIR, when rows are asked for.
"""

from __future__ import annotations

import functools
import itertools
import math
import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import seqio
import tensorflow as tf
from absl import logging
from t5.data import postprocessors
from t5.evaluation import metrics

from t5xpg import objectives, vocabularies
from t5xpg.base import nearest
from t5xpg.data import finding, jsonl, sources
from t5xpg.data.jsonl_task import JsonlMixture, JsonlTask

MetricFn = Callable[[list, list], Mapping[str, float]]  # (targets, predictions)
MixtureRate = float | Callable[[seqio.Task], float]

TaskRegistry = seqio.TaskRegistry
MixtureRegistry = seqio.MixtureRegistry
vocabulary = seqio.ByteVocabulary(extra_ids=100)
DEFAULT_OUTPUT_FEATURES = {
    "inputs": seqio.Feature(vocabulary=vocabulary, add_eos=True, required=False),
    "targets": seqio.Feature(vocabulary=vocabulary, add_eos=True),
}

_WIKITEXT_FILES = "wikitext_{split}.jsonl"

# Of t5.evaluation.metrics, by what they compare.
_TEXT_METRICS = ("accuracy", "sequence_accuracy", "bleu", "rouge", "edit_distance")
_ANSWER_METRICS = ("squad", "trivia_qa", "coqa_f1")
_NUMBER_METRICS = ("pearson_corrcoef", "spearman_corrcoef")


def jsonl_task(
    name: str,
    files: Mapping[str, finding.Files] | finding.Files,
    objective: str | objectives.Objective = "span_corruption",
    vocabulary: seqio.Vocabulary | None = None,
    text_key: str | None = None,
    inputs_key: str | None = None,
    targets_key: str | None = None,
    metric_fns: str | MetricFn | Sequence[str | MetricFn] = (),
    postprocess_fn: Callable[..., object] | None = None,
    splits: Sequence[str] = ("train", "validation"),
    sequence_length: Mapping[str, int] | None = None,
    cacheable: bool = False,
) -> str:
    """Registers a SeqIO task over JSONL files and returns its name.

    A second call with the same arguments only returns the name: gin evaluates a macro at each use.

    A document beyond 65,536 tokens is cut into chunks of that length, all of which each epoch sees;
    `objectives.SpanCorruption(select_random_chunk=True)` takes one of them at random, as t5 does.

    Args:
      name: of the task; letters, digits and any of "_.:#".
      files: {split: files}, or files with "{split}" in each name; see `sources.JsonlDataSource`.
      objective: a name in `objectives.OBJECTIVES`, or an objective with its own settings.
      vocabulary: of inputs and targets, and of the model; None is `vocabularies.byte_vocabulary()`.
      text_key: the key of a row that holds its text; "text" if None.
      inputs_key: for objective="supervised", the key of the inputs' text; "inputs" if None.
      targets_key: likewise; "targets" if None.
      metric_fns: how generated text is scored: names (see `metric_fn`), or functions of
        (targets, predictions) as SeqIO takes them; one, or a list. T5X's infer_eval runs tasks that have some.
      postprocess_fn: SeqIO's: turns decoded text, and the target, into what metrics compare.
      splits: what "{split}" stands for; a mapping names its own.
      sequence_length: {feature: length} to check now; the same checks run where data is read.
      cacheable: let SeqIO read an offline cache of the tokenized rows where one is asked for.
        T5X's pretrain.gin asks (USE_CACHED_TASKS=True) and stops if a cacheable task has no cache;
        one that is not cacheable is prepared on the fly. A cacheable task draws different masks
        from the same seed, cached or not.

    Raises:
      ValueError: another task has the name, or an argument cannot work; with what to do.
    """
    objective = objectives.get(objective)
    vocabulary = vocabularies.byte_vocabulary() if vocabulary is None else vocabulary
    if not isinstance(vocabulary, seqio.Vocabulary):
        raise ValueError(
            f"{name}: vocabulary is a {type(vocabulary).__name__}, not a vocabulary. "
            "Pass vocabularies.byte_vocabulary() or vocabularies.sentencepiece(path)"
        )
    if sequence_length is not None:
        objective.check(sequence_length, vocabulary)
    keys = {"text": text_key, "inputs": inputs_key, "targets": targets_key}
    source = sources.JsonlDataSource(files, splits, _columns(name, objective, keys))
    if postprocess_fn is not None and not callable(postprocess_fn):
        raise ValueError(f"{name}: postprocess_fn={postprocess_fn!r} is not a function. Pass one")
    if isinstance(metric_fns, str) or not isinstance(metric_fns, Iterable):
        metric_fns = [metric_fns]
    found_fns = [metric_fn(metric) for metric in metric_fns]
    return _register(name, source, objective, vocabulary, cacheable, found_fns, postprocess_fn)


def _columns(name: str, objective: objectives.Objective, keys: Mapping[str, str | None]) -> dict[str, str]:
    """Returns {column: key of a row} for each column that the objective reads."""
    columns = [column for column in objective.key_map.values() if column]
    if unread := [f"{column}_key" for column in keys if keys[column] and column not in columns]:
        takes = " and ".join(f"{column}_key" for column in columns)
        raise ValueError(
            f"{name}: {objective} does not read {' and '.join(unread)}, only {takes}. "
            "Pairs of texts need objective='supervised'"
        )
    return {column: keys[column] or column for column in columns}


def metric_fn(metric: str | MetricFn) -> MetricFn:
    """Returns t5's metric of that name, on decoded texts; a function is returned unchanged.

    Texts: accuracy and sequence_accuracy (both the percentage of exact matches), bleu, rouge,
    edit_distance. Texts as answers: squad (exact match "em", and "f1"), trivia_qa, coqa_f1; where
    postprocess_fn turns a target into a list, the best of its answers counts. Texts that are numbers:
    pearson_corrcoef, spearman_corrcoef; -1 stands for any other text.

    Raises:
      ValueError: there is none of that name.
    """
    if callable(metric):
        return metric
    names = (*_TEXT_METRICS, *_ANSWER_METRICS, *_NUMBER_METRICS)
    if metric not in names:
        raise ValueError(f"no metric {metric!r}. Use a function, or one of {sorted(names)}")
    score = getattr(metrics, metric)

    @functools.wraps(score)
    def of_answers(targets: list[str | list[str]], predictions: list[str]) -> dict[str, float]:
        answers = [[target] if isinstance(target, str) else target for target in targets]
        return score(answers, predictions)

    @functools.wraps(score)
    def of_numbers(targets: list[str], predictions: list[str]) -> dict[str, float]:
        pairs = (targets, predictions)
        return score(*([postprocessors.string_to_float(t) for t in texts] for texts in pairs))

    if metric in _ANSWER_METRICS:
        return of_answers
    return of_numbers if metric in _NUMBER_METRICS else score


def _register(
    name: str,
    source: sources.JsonlDataSource,
    objective: objectives.Objective,
    vocabulary: seqio.Vocabulary,
    cacheable: bool = False,
    metric_fns: Sequence[MetricFn] = (),
    postprocess_fn: Callable[..., object] | None = None,
) -> str:
    if name not in TaskRegistry.names() and "train" in source.splits and "validation" not in source.splits:
        logging.warning("%s: no validation split, so training runs without evaluation. Name one in files=", name)
    return register(
        name,
        source,
        task_cls=JsonlTask,
        objective=objective,
        cacheable=cacheable,
        output_features=objectives.output_features(objective, vocabulary),
        arguments={
            "source": repr(source),
            "objective": repr(objective),
            "vocabulary": vocabularies.describe(vocabulary),
            "cacheable": cacheable,
            "scoring": [seqio.utils.function_name(fn) for fn in (*metric_fns, postprocess_fn) if fn],
        },
        metric_fns=metric_fns,
        postprocess_fn=postprocess_fn,
    )


def register(name: str, source: seqio.DataSource, *, arguments: Mapping[str, object], **parts) -> str:
    """Registers a SeqIO task and returns its name; a second call with the same arguments only returns it.

    Args:
      name: of the task; letters, digits and any of "_.:#".
      source: its rows.
      arguments: what tells this task from another of the same name, in words.
      **parts: seqio.TaskRegistry.add's own.

    Raises:
      ValueError: another task has the name, or it is not a valid name.
    """
    if name in TaskRegistry.names():
        _check_same(name, arguments)
        return name
    _check_name(name)
    TaskRegistry.add(name, source=source, **parts).jsonl_arguments = arguments
    return name


def _check_same(name: str, arguments: Mapping[str, object]) -> None:
    registered = getattr(TaskRegistry.get(name), "jsonl_arguments", None)
    if registered is None:
        raise ValueError(f"{name}: a task that is not a jsonl_task has this name. Use another")
    differing = [key for key in arguments if arguments[key] != registered.get(key)]
    if differing:
        found = "; ".join(f"{key} was {registered.get(key)}, now {arguments[key]}" for key in differing)
        raise ValueError(f"{name}: registered before, and {found}. Use another name")


def _check_name(name: str) -> None:
    if name in {*TaskRegistry.names(), *MixtureRegistry.names()}:
        kind = "task" if name in TaskRegistry.names() else "mixture"
        raise ValueError(f"{name}: a {kind} has this name. Use another")
    if not re.fullmatch(r"[\w.:#]+", name):
        fixed = re.sub(r"[^\w.:#]+", "_", name).strip("_") or "my_task"
        raise ValueError(f'{name!r}: a name is letters, digits and "_.:#". Use {fixed!r}')


def mixture(name: str, tasks: Mapping[str, MixtureRate] | Sequence[tuple[str, MixtureRate]]) -> str:
    """Registers a SeqIO mixture of tasks and returns its name.

    A second call with the same arguments only returns the name.

    Args:
      name: of the mixture; letters, digits and any of "_.:#".
      tasks: [(name of a task or mixture, rate), …] or {name: rate}. A rate is how many examples are
        taken, relative to the other rates; or a function of the task that gives it, such as
        `seqio.mixing_rate_num_examples`.

    Raises:
      ValueError: another mixture has the name, or the tasks cannot be mixed; with what to do.
    """
    rates = _checked_rates(name, tasks.items() if isinstance(tasks, Mapping) else tasks)
    if name in MixtureRegistry.names():
        registered = dict(MixtureRegistry.get(name).rate_per_task_name)
        if registered != rates:
            found = f"tasks were {registered}, now {rates}"
            raise ValueError(f"{name}: registered before, and {found}. Use another name")
        return name
    _check_name(name)
    _check_alike(name, [task for part in rates for task in _tasks(part)])
    MixtureRegistry.add(name, list(rates.items()), mixture_cls=JsonlMixture)
    return name


def _checked_rates(name: str, pairs: Iterable[tuple[str, MixtureRate]]) -> dict[str, MixtureRate]:
    rates: dict[str, MixtureRate] = {}
    for pair in pairs:
        if isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"{name}: {pair!r} has no rate. Pass (name, rate) pairs")
        task, rate = pair
        if task in rates:
            raise ValueError(f"{name}: {task} is listed twice. Add up its rates")
        if not callable(rate) and not (isinstance(rate, numbers.Real) and 0 < rate < math.inf):
            raise ValueError(f"{name}: the rate of {task} is {rate!r}. Pass a number above 0")
        if task not in {*TaskRegistry.names(), *MixtureRegistry.names()}:
            hint = nearest.hint(task, {*TaskRegistry.names(), *MixtureRegistry.names()})
            raise ValueError(f"{name}: no task or mixture {task!r}. Register it first, with tasks.jsonl_task{hint}")
        rates[task] = rate
    if not rates:
        raise ValueError(f"{name}: a mixture of no tasks. Pass (name, rate) pairs")
    return rates


def _tasks(name: str) -> list[seqio.Task]:
    """Returns the task of that name, or all tasks of the mixture."""
    found = seqio.get_mixture_or_task(name)
    return [found] if isinstance(found, seqio.Task) else found.tasks


def _check_alike(name: str, tasks: Sequence[seqio.Task]) -> None:
    """A model reads all examples alike: same features, same vocabularies."""

    def features(task: seqio.Task) -> dict[str, str]:
        return {key: vocabularies.describe(f.vocabulary) for key, f in task.output_features.items()}

    first, *others = tasks
    for task in others:
        if features(task) != features(first):
            raise ValueError(
                f"{name}: {first.name} has {features(first)}, {task.name} has {features(task)}. "
                "Give them one vocabulary, and objectives with the same features"
            )


# ---- Names of the first t5xpg, for code written against it ----


def dataset_rows_generator(split: str, limit_rec: int | None = None) -> Iterator[str]:
    """Yields the texts of wikitext_{split}.jsonl once, in order; the first `limit_rec` of them."""
    rows = jsonl.read_rows(_WIKITEXT_FILES.format(split=split))
    return (row["text"] for row in itertools.islice(rows, limit_rec))


def dataset_generator(
    split: str,
    shuffle_files: bool,
    seed: int | None = None,
    dataset_params: object = None,
    limit_rec: int | None = None,
) -> tf.data.Dataset:
    """Returns the texts of wikitext_{split}.jsonl once, as scalar strings; for seqio.FunctionDataSource.

    Args:
      split: part of the file's name.
      shuffle_files: shuffle the rows; else they come in the file's order.
      seed: of the shuffling.
      dataset_params: not used.
      limit_rec: rows at most.
    """
    del dataset_params
    source = sources.JsonlDataSource({split: _WIKITEXT_FILES.format(split=split)})
    texts = source.get_dataset(split, shuffle_files, seed).map(lambda row: row["text"])
    return texts if limit_rec is None else texts.take(limit_rec)


@seqio.map_over_dataset
def target_to_key(x: tf.Tensor, key_map: Mapping[str, object], target_key: str) -> dict:
    """Returns `key_map` with the text `x` at `target_key`; None becomes "", which tokenizes to nothing."""
    return {key: "" if value is None else value for key, value in key_map.items()} | {target_key: x}


for _name, _extra_ids, _mean_span in (
    ("wikitext_span_corruption", 100, 3.0),
    ("wikitext_byt5_span_corruption", 0, 20.0),
):
    _register(
        _name,
        sources.JsonlDataSource(_WIKITEXT_FILES, ("train", "validation", "test")),
        objectives.SpanCorruption(0.15, _mean_span),
        seqio.ByteVocabulary(_extra_ids),
    )
