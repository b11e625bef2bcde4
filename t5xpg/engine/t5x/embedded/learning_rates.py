"""Learning rate schedules by name: `utils.create_learning_rate_scheduler` of T5X's gin files."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def create_learning_rate_scheduler(
    factors: str = "constant * linear_warmup * rsqrt_decay",
    base_learning_rate: float = 0.5,
    warmup_steps: int = 1000,
    decay_factor: float = 0.5,
    steps_per_decay: int = 20000,
    steps_per_cycle: int = 100000,
    step_offset: int = 0,
    min_learning_rate: float = 1e-8,
) -> Callable[[jax.Array], jax.Array]:
    """Returns the schedule step -> learning rate (float32 scalar), a product of named factors.

    With s the steps since `step_offset` (0 before it) and w = `warmup_steps`:

      constant                base_learning_rate
      linear_warmup           min(1, s / w)
      linear_decay            base_learning_rate * min(s / w, 1 + decay_factor * (w - s)); takes the place of
                              constant and linear_warmup. decay_factor = 1 / (total - w) ends at 0.
      rsqrt_decay             1 / sqrt(max(s, w))
      rsqrt_normalized_decay  sqrt(w / max(s, w))
      decay_every             decay_factor ** (s // steps_per_decay)
      cosine_decay            (1 + cos(pi * p)) / 2, p the fraction of a cycle done since warmup

    The numbers are T5X's, except that T5X divides by zero when w = 0: here that means no warmup (s / w is 1, and
    the square roots take w as 1).

    Args:
      factors: names from the table, separated by `*`.
      base_learning_rate: the constant.
      warmup_steps: w.
      decay_factor: slope of linear_decay, base of decay_every.
      steps_per_decay: steps between two drops of decay_every.
      steps_per_cycle: length of one cosine cycle; the rate jumps back up at its end.
      step_offset: the step that counts as 0.
      min_learning_rate: the least rate returned, whatever the factors give.
    """
    rsqrt_start = float(max(warmup_steps, 1))

    def ramp(step):
        return step / warmup_steps if warmup_steps else jnp.float32(1)

    def rsqrt(step):
        return jax.lax.rsqrt(jnp.maximum(step, rsqrt_start))

    def cosine(step):
        cycles = jnp.maximum(0.0, (step - warmup_steps) / steps_per_cycle)
        return 0.5 * (1.0 + jnp.cos(jnp.pi * (cycles % 1.0)))

    known = {
        "constant": lambda step: base_learning_rate,
        "linear_warmup": lambda step: jnp.minimum(1.0, ramp(step)),
        "linear_decay": lambda step: (
            base_learning_rate * jnp.minimum(ramp(step), 1.0 + decay_factor * (warmup_steps - step))
        ),
        "rsqrt_decay": rsqrt,
        "rsqrt_normalized_decay": lambda step: rsqrt_start**0.5 * rsqrt(step),
        "decay_every": lambda step: decay_factor ** jnp.floor_divide(step, steps_per_decay),
        "cosine_decay": cosine,
    }
    names = [name.strip() for name in factors.split("*")]
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"factors {factors!r}: unknown {', '.join(unknown)}; known are {', '.join(known)}.")

    def schedule(step):
        step = jnp.maximum(jnp.asarray(step) - step_offset, 0).astype(jnp.float32)
        rate = jnp.float32(1)
        for name in names:
            rate = rate * known[name](step)
        return jnp.maximum(rate, min_learning_rate)

    schedule.rises_until = step_offset + warmup_steps if {"linear_warmup", "linear_decay"} & {*names} else 0  # type: ignore[attr-defined]
    return schedule


def why_still_rising(schedule: Callable | None, step: int, total_steps: int) -> str | None:
    """Returns a line where training from `step` to `total_steps` ends before a schedule of this file has risen."""
    top = getattr(schedule, "rises_until", 0)
    if not step < total_steps < top:
        return None
    return (
        f"The learning rate rises until step {top:,}, and this run ends at step {total_steps:,}; for a short trial add "
        f"utils.create_learning_rate_scheduler.warmup_steps={max(total_steps // 10, 1)}."
    )
