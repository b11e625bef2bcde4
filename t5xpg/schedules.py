"""Arithmetic of learning rate schedules, which gin cannot do; for recipes on either engine.

from t5xpg import schedules
utils.create_learning_rate_scheduler:
  factors = 'linear_decay'
  warmup_steps = %WARMUP_STEPS
  decay_factor = @schedules.linear_decay_factor()
schedules.linear_decay_factor:
  total_steps = %TRAIN_STEPS
  warmup_steps = %WARMUP_STEPS
"""

from t5xpg.base import run_settings


def linear_decay_factor(total_steps: int, warmup_steps: int) -> float:
    """Returns the `decay_factor` with which T5X's "linear_decay" is 0 at `total_steps`.

    Raises:
      ValueError: one of them is not a whole number, there is no decay, or no warmup, for which T5X divides by zero.
    """
    for name, value in (("TRAIN_STEPS (total_steps)", total_steps), ("WARMUP_STEPS (warmup_steps)", warmup_steps)):
        run_settings.check_whole(name, value, least=0)
    if not 0 < warmup_steps < total_steps:
        raise ValueError(
            f"{warmup_steps} warmup steps of {total_steps}: take at least 1, and fewer than all. "
            f"For a short trial add WARMUP_STEPS={max(total_steps // 10, 1)}"
        )
    return 1 / (total_steps - warmup_steps)
