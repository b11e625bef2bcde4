"""A trainer for gin that keeps a record of what it trained on: works with either engine."""

import os
import zlib
from collections.abc import Iterator

import numpy as np

from t5x import trainer


class RecordingTrainer(trainer.Trainer):
    """Appends a line `step crc32` to MODEL_DIR/batches.txt before each training step."""

    def __init__(self, *, summary_dir, **kwargs):
        self._record = os.path.join(summary_dir, "batches.txt")
        super().__init__(summary_dir=summary_dir, **kwargs)

    def train(self, batch_iter, num_steps, start_step=None, *args, **kwargs):
        return super().train(self._recorded(batch_iter, start_step), num_steps, start_step, *args, **kwargs)

    def _recorded(self, batches, step: int) -> Iterator:
        for batch in batches:
            checksum = 0
            for name in sorted(batch):
                checksum = zlib.crc32(np.asarray(batch[name]).tobytes(), checksum)
            with open(self._record, "a") as file:  # one line at one go: a kill leaves whole lines
                file.write(f"{step} {checksum:08x}\n")
            yield batch
            step += 1
