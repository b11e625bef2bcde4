"""When a run stops for what."""

import gc

from t5x.embedded.periods import Schedule, manual_gc


def stops(schedule: Schedule, step: int = 0) -> list[int]:
    found = []
    while step < schedule.total_steps:
        step = schedule.next_stop(step)
        found.append(step)
    return found


def test_stops_at_multiples_at_named_steps_and_at_the_end():
    schedule = Schedule(25, save_period=10, eval_period=20, stats_period=10, save_steps=(7, 20))
    assert stops(schedule) == [7, 10, 20, 25]
    assert [step for step in stops(schedule) if schedule.saves_at(step)] == [7, 10, 20, 25]
    assert [step for step in stops(schedule) if schedule.evaluates_at(step)] == [20, 25]


def test_a_resumed_run_counts_its_periods_from_where_it_goes_on():
    """As T5X's loop does; checkpoint_steps are steps of the whole run."""
    schedule = Schedule(70, first_step=37, save_period=10, eval_period=20, save_steps=(7, 40))
    assert stops(schedule, 37) == [40, 47, 57, 67, 70]
    assert [step for step in stops(schedule, 37) if schedule.saves_at(step)] == [40, 47, 57, 67, 70]
    assert [step for step in stops(schedule, 37) if schedule.evaluates_at(step)] == [57, 70]


def test_no_period_means_one_round():
    assert stops(Schedule(100)) == [100]


def test_garbage_is_collected_at_its_period_alone():
    schedule = Schedule(25, gc_period=10)
    assert [step for step in range(1, 26) if schedule.collects_garbage_at(step)] == [10, 20, 25]
    with manual_gc(schedule):
        assert not gc.isenabled()
    assert gc.isenabled()
    with manual_gc(Schedule(25)):
        assert gc.isenabled()
