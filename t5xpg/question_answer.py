"""A fine-tuned model that answers questions, in a few lines of Python:

    from t5xpg.question_answer import QuestionAnswerer

    question_answer = QuestionAnswerer.restore("runs/squad")     # the latest checkpoint of a MODEL_DIR
    question_answer("Who wrote it?", "Anna wrote it in 1911.")   # -> "Anna"; "" where it finds no answer

It runs on the embedded engine, on the checkpoints of either.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import seqio
from tqdm import tqdm

from t5x.interactive_model import InteractiveModel
from t5xpg import qa


class QuestionAnswerer:
    """A model that was fine-tuned on a `qa.squad_task`.

    Args:
      model: with the settings of its run.
      batch_size: the model's, in questions.

    Attributes:
      batch_seconds: how long each batch of `answer` took, decoding included.

    Raises:
      ValueError: the model was trained on another kind of task.
    """

    def __init__(self, model: InteractiveModel, batch_size: int):
        cfg = model.settings["train_dataset_cfg"]
        task = seqio.get_mixture_or_task(cfg.mixture_or_task_name)
        if not isinstance(getattr(task, "source", None), qa.SquadSource):
            raise ValueError(f"{task.name} is no task of questions and answers. Fine-tune on a qa.squad_task first")
        self._model, self._source, self._batch_size = model, task.source, batch_size
        self._room = cfg.task_feature_lengths["inputs"]
        self._vocabulary = task.output_features["inputs"].vocabulary
        self.batch_seconds: list[float] = []
        model.predict_ids([[]])  # compiles, so that no answer waits for it

    @classmethod
    def restore(cls, model_dir: str, step: int | None = None, batch_size: int = 4) -> QuestionAnswerer:
        """Restores a run's model at `step` or its latest checkpoint."""
        return cls(InteractiveModel.restore(model_dir, step, batch_size), batch_size)

    def __call__(self, question: str, context: str) -> str:
        """The answer that the context gives, "" where the model finds none."""
        return self.answer([(question, context)])[0]

    def answer(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """The answer to each (question, context). What is beyond the model's lengths is not read: see `is_cut`."""
        answers = []
        starts = range(0, len(pairs), self._batch_size)
        for start in tqdm(starts, "answering", unit="batch", delay=2, leave=False, disable=None):
            batch, tick = pairs[start : start + self._batch_size], time.perf_counter()
            outputs = self._model.predict_ids([self._encode(*pair)[0] for pair in batch]).tolist()
            texts = map(self._vocabulary.decode, outputs)
            self.batch_seconds.append(time.perf_counter() - tick)
            answers += [self._source.answer(t, context) for t, (_, context) in zip(texts, batch, strict=True)]
        return answers

    def is_cut(self, question: str, context: str) -> bool:
        """Whether the context goes on beyond what the model reads."""
        return self._encode(question, context)[1]

    def _encode(self, question: str, context: str) -> tuple[list[int], bool]:
        """(ids that end in EOS, whether they were cut)."""
        ids = self._vocabulary.encode(self._source.inputs(question, context))
        return [*ids[: self._room - 1], self._vocabulary.eos_id], len(ids) >= self._room
