"""The nearest known name to a misspelt one."""

import pytest

from t5xpg.base import nearest


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("TRAIN_STEP", "; did you mean TRAIN_STEPS?"),
        ("train_steps", "; did you mean TRAIN_STEPS?"),
        ("batchsize", "; did you mean BATCH_SIZE?"),
        ("vocabulary", ""),
        ("", ""),
    ],
)
def test_the_nearest_name_ends_a_message_whatever_its_case(name, hint):
    assert nearest.hint(name, {"TRAIN_STEPS", "BATCH_SIZE"}) == hint


def test_without_names_there_is_nothing_to_hint_at():
    assert nearest.hint("TRAIN_STEPS", []) == ""
