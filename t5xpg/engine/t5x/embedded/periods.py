"""When a training run stops to save, to evaluate, or to write its metrics."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator, Sequence


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The rounds of a run: every period (0 for never) from the step it starts at, and at its last step.

    As in T5X, a resumed run counts its periods from the step it was resumed at; save_steps are steps of the whole run.
    """

    total_steps: int
    first_step: int = 0
    save_period: int = 0
    eval_period: int = 0
    stats_period: int = 0
    gc_period: int = 0
    save_steps: Sequence[int] = ()

    @classmethod
    def of(cls, first_step, total_steps, save_cfg, eval_period, stats_period, gc_period) -> Schedule:
        """Returns the schedule of `train`'s arguments, where metrics come by default at the shortest other period."""
        save_period = (save_cfg.period if save_cfg else 0) or 0
        shortest = min([p for p in (save_period, eval_period, gc_period) if p], default=total_steps)
        return cls(
            total_steps=total_steps,
            first_step=first_step,
            save_period=save_period,
            eval_period=eval_period,
            stats_period=stats_period or shortest,
            gc_period=gc_period,
            save_steps=tuple((save_cfg.checkpoint_steps if save_cfg else None) or ()),
        )

    def next_stop(self, step: int) -> int:
        """Returns the next step after `step` at which something is due."""
        periods = (self.save_period, self.eval_period, self.stats_period, self.gc_period)
        done = step - self.first_step
        stops = [self.first_step + (done // period + 1) * period for period in periods if period]
        later = [save for save in self.save_steps if save > step]
        return min([*stops, *later, self.total_steps])

    def _is_due(self, period: int, step: int) -> bool:
        return bool(period) and ((step - self.first_step) % period == 0 or step == self.total_steps)

    def saves_at(self, step: int) -> bool:
        return self._is_due(self.save_period, step) or step in self.save_steps

    def evaluates_at(self, step: int) -> bool:
        return self._is_due(self.eval_period, step)

    def collects_garbage_at(self, step: int) -> bool:
        return self._is_due(self.gc_period, step)


@contextlib.contextmanager
def manual_gc(schedule: Schedule) -> Iterator[None]:
    """Collects garbage only when the schedule says so, if it does."""
    if schedule.gc_period:
        gc.disable()
    try:
        yield
    finally:
        gc.enable()
