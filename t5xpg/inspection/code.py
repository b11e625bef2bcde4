"""What `t5xpg inspect` says about the code: what a run does to data and model, and the file and line that do it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from t5xpg.base import private


class Answer(NamedTuple):
    """The answer to one question about a run.

    Attributes:
      question: about the run.
      words: the answer.
      place: where the code is, "file:line".
    """

    question: str
    words: str
    place: str


def of_data(provider, lengths: Mapping[str, int] | None) -> list[Answer]:
    """Returns how the examples of a task are made; `lengths` as the model is given them."""
    from seqio import feature_converters

    from t5xpg import objectives
    from t5xpg.batchwise import noise
    from t5xpg.inspection import measurements

    objective = measurements.objective_of(provider)
    if isinstance(objective, objectives.SpanCorruption):
        made = objective.lengths((lengths or measurements.default_lengths(provider))["inputs"])
        mask = f"{made.noise_tokens} of {made.tokens} tokens, in {made.spans} random spans; new ones in each epoch"
        told = "inputs: the text, one sentinel for each span; labels: each sentinel and its span; both end in EOS"
        found = [
            Answer("how is the mask made?", mask, place(noise.span_mask)),
            Answer("what are inputs and labels?", told, place(noise.with_sentinels)),
        ]
    else:
        steps = getattr(provider, "preprocessors", ())
        code = type(objective).convert if objective else steps[0] if steps else type(provider).get_dataset
        words = f"made by {objective}" if objective else "made by the task's preprocessors"
        found = [Answer("what are inputs and labels?", words, place(code))]
    if "inputs" in provider.output_features and not isinstance(objective, objectives.MaskedLM):  # which has no decoder
        shifted = "the labels, shifted right by one; it starts with id 0"
        found.append(Answer("what does the decoder read?", shifted, place(feature_converters.autoregressive_inputs)))
    return found


def of_batches(cfg, converter_cls) -> Answer:
    """Returns how the batches that `cfg` asks for, a DatasetConfig of training, are made."""
    import seqio

    from t5xpg import t5x_finder
    from t5xpg.batchwise import reading
    from t5xpg.inspection import measurements

    question, one_by_one = "how are batches made?", "by SeqIO, one example after the other"
    if not t5x_finder.is_embedded():
        return Answer(question, one_by_one, place(seqio.get_dataset))
    found = reading.unknown(measurements.find(cfg.mixture_or_task_name), cfg, converter_cls)
    if found is not None:
        return Answer(question, f"{one_by_one}: only it knows {found}", place(seqio.get_dataset))
    return Answer(question, "in arrays, of many examples at a time", place(reading.batches))


def of_training(settings: Mapping) -> list[Answer]:
    """Returns how a model is trained; `settings` are arguments of the train program."""
    from t5x import utils

    model = settings["model"]
    loss = private.loss_settings(model)
    factor = loss["loss_normalizing_factor"]
    divided = f" and divided by {getattr(factor, 'name', factor)}" if factor else ""
    parts = [
        f"cross entropy of the labels, summed{divided}",
        f"z-loss {loss['z_loss'] or 0:g}, label smoothing {loss['label_smoothing'] or 0:g}",
    ]
    found = [Answer("how is the loss computed?", "; ".join(parts), place(type(model).loss_fn))]
    if module := getattr(model, "module", None):
        name = f"{type(module).__module__}.{type(module).__name__}"
        found.insert(0, Answer("what is the model?", name, place(type(module).__call__)))
    optimizer = type(model.optimizer_def)
    found += [
        of_batches(settings["train_dataset_cfg"], model.FEATURE_CONVERTER_CLS),
        Answer("what is the optimizer?", optimizer.__name__, place(optimizer)),
        Answer("what does the learning rate do?", "see below", place(utils.create_learning_rate_scheduler)),
        Answer(
            "which metrics are logged?", "in MODEL_DIR, for TensorBoard", place(private.metrics_function(type(model)))
        ),
    ]
    return found


def learning_rates(settings: Mapping) -> np.ndarray:
    """Returns float32 [steps + 1], the rate at each step from 0 to total_steps, or to relative_steps without those."""
    import gin
    import jax

    from t5x import trainer

    rate = gin.get_bindings(trainer.Trainer)["learning_rate_fn"]
    steps = settings["total_steps"] or settings["relative_steps"]
    return np.asarray(jax.vmap(lambda step: jax.numpy.float32(rate(step)))(np.arange(steps + 1)))


def notable(rates: np.ndarray) -> list[tuple[int, float]]:
    """Returns [(step, rate)] at the start, the first highest, the end, and between."""
    last = len(rates) - 1
    steps = {0, min(1, last), int(rates.argmax()), *(last * i // 8 for i in range(9))}
    return [(step, float(rates[step])) for step in sorted(steps)]


def place(code: Callable) -> str:
    """Returns where the source of a function or class begins, "file:line"; its module's name if it has no source."""
    code = inspect.unwrap(getattr(code, "func", code))
    try:
        return f"{inspect.getsourcefile(code)}:{inspect.getsourcelines(code)[1]}"
    except (OSError, TypeError):
        return getattr(code, "__module__", type(code).__name__)
