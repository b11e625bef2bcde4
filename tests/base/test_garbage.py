"""Garbage is collected after the imports as before them, and not among what they made."""

import gc

import pytest

from t5xpg.base import garbage


def test_imports_collect_nothing_and_what_they_made_is_passed_over_later():
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), garbage.importing():
            assert not gc.isenabled()
            made = [[] for _ in range(10)]
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > frozen
        assert not {id(x) for x in made} & {id(x) for x in gc.get_objects()}
    finally:
        gc.unfreeze()


def test_a_start_collects_nothing_and_leaves_the_collector_as_it_was():
    with pytest.raises(ValueError), garbage.not_collecting():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage.not_collecting():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
