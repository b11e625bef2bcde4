"""Garbage is collected after the imports as before them, and not among what they made."""

import gc

import pytest

from t5xpg.cli import starting


def test_imports_collect_nothing_and_what_they_made_is_passed_over_later():
    frozen = gc.get_freeze_count()
    try:
        with pytest.raises(ImportError), starting.not_collecting():
            assert not gc.isenabled()
            made = [[] for _ in range(10)]
            raise ImportError
        assert gc.isenabled() and gc.get_freeze_count() > frozen
        assert not {id(x) for x in made} & {id(x) for x in gc.get_objects()}
    finally:
        gc.unfreeze()
