"""What the command makes of gin's and SeqIO's messages."""

import gin
import pytest
import seqio

from t5xpg import tasks
from t5xpg.cli import errors

IMPORTS = ["from __gin__ import dynamic_registration", "from t5xpg.cli import errors"]


@pytest.fixture
def parsed():
    """Parses lines as those of a recipe, and then others as the command line's."""
    gin.clear_config()

    def parse(recipe: list[str], given: list[str]) -> None:
        gin.parse_config([*IMPORTS, *recipe])
        gin.parse_config(given)
        gin.finalize()

    with gin.unlock_config():
        yield parse
        gin.clear_config()


KNOWN = "errors.show_warning.category = 1"


@pytest.mark.parametrize(
    ("recipe", "given", "said"),
    [
        ([KNOWN], ["errors.show_warning.catgory = 2"], "named 'catgory'; did you mean category?"),
        ([KNOWN], ["train/errors.show_warning.catgory = 2"], "named 'catgory'; did you mean category?"),
        ([KNOWN], ["errors.show_warning.xyzzy = 2"], "doesn't have a parameter named 'xyzzy'."),
        (
            [KNOWN],
            ["errors.show_waning.category = 2"],
            "matching 'errors.show_waning'; did you mean errors.show_warning?",
        ),
        (
            [KNOWN],
            ["error.show_warning.category = 2"],
            "matching 'error.show_warning'; did you mean errors.show_warning?",
        ),
        ([KNOWN], ["show_waning.category = 2"], "matching 'show_waning'; did you mean show_warning?"),
        (["errors.show_waning.category = 1"], [], "has no attribute show_waning; did you mean show_warning?"),
        (["errors.one_line.eror = 1"], [], "parameter named 'eror'; did you mean error?"),
    ],
)
def test_gins_unknown_names_are_answered_with_the_nearest(recipe, given, said, parsed):
    with pytest.raises((ValueError, AttributeError)) as refused:
        parsed(recipe, given)
    assert errors.one_line(refused.value).endswith(said)


def test_all_values_that_are_missing_are_named_at_once(parsed):
    macros = ["VOCABULARY_FILE", "FILES", "STEPS", "MODEL_DIR"]
    with pytest.raises(ValueError) as refused:
        parsed([f"{name} = %gin.REQUIRED" for name in macros], ["STEPS = 3"])
    assert errors.one_line(refused.value) == (
        "FILES, MODEL_DIR, VOCABULARY_FILE are not set; "
        "add FILES=VALUE MODEL_DIR=VALUE VOCABULARY_FILE=VALUE to the command line."
    )


def test_seqios_unknown_task_is_answered_with_the_nearest():
    assert "wikitext_span_corruption" in tasks.TaskRegistry.names()
    with pytest.raises(ValueError) as refused:
        seqio.get_mixture_or_task("wikitext_spam_corruption")
    assert errors.one_line(refused.value).endswith("'wikitext_spam_corruption'; did you mean wikitext_span_corruption?")


def test_a_device_out_of_memory_is_told_what_needs_less():
    said = (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 55.53GiB with allocator GPU_0_bfc on device 0. "
        "[executable_name='jit_train_step'] [tf-allocator-allocation-error='']"
    )
    told = errors.one_line(RuntimeError(said))
    assert told.startswith(said) and "lower BATCH_SIZE" in told and "num_partitions" in told
