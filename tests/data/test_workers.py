"""Processes that share work: what one cannot begin is told as it is."""

import pytest

from t5xpg.data import workers


def refuse() -> None:
    raise ValueError("gin does not know books.gin")


def test_what_a_process_cannot_begin_is_what_the_work_raises():
    with pytest.raises(ValueError, match=r"gin does not know books\.gin"), workers.Workers(2, refuse) as pool:
        pool.do(abs, [1, 2, 3])
    with pytest.raises(ValueError, match=r"gin does not know books\.gin"), workers.Workers(2, refuse) as pool:
        list(pool.map(abs, [1, 2, 3]))
