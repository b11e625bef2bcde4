"""What the command makes of gin's and SeqIO's messages."""

import gin
import pytest
import seqio
import tensorflow as tf

from t5x import utils
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
        "add FILES=VALUE MODEL_DIR=VALUE VOCABULARY_FILE=VALUE to the command line. "
        "`t5xpg tokenizer train` makes a VOCABULARY_FILE."
    )


def test_a_misspelt_recipe_is_answered_with_the_nearest():
    with pytest.raises(OSError) as refused:
        gin.parse_config_file("configs/byt5_tny.gin")
    told = errors.one_line(refused.value)
    assert "configs/byt5_tny.gin" in told and told.endswith("; did you mean configs/byt5_tiny.gin?")


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


def test_what_autograph_says_of_a_preprocessor_is_its_last_line():
    rows = seqio.map_over_dataset(lambda line: {"targets": line["text"]})
    with pytest.raises(TypeError) as refused:
        rows(tf.data.Dataset.from_tensor_slices(["a line"]))
    told = errors.one_line(refused.value)
    assert str(refused.value).startswith("in user code:")
    assert told.startswith("TypeError: Only integers") and "got 'text' (in a preprocessor of the task: File " in told


def test_a_vocabulary_that_cannot_be_reached_is_named():
    said = "libcurl code 6\n\t when reading metadata of gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model"
    told = errors.one_line(OSError(said))
    assert "gs://t5-data/vocabs/cc_all.32000.100extra/sentencepiece.model. T5X's" in told and "bind VOCABULARY" in told


def test_a_module_or_task_that_is_not_there_says_where_it_is_looked_for():
    with pytest.raises(ModuleNotFoundError) as refused:
        gin.parse_config(["from __gin__ import dynamic_registration", "import xyzzy_tasks"])
    assert "'xyzzy_tasks'. A module of yours is looked for in the working directory" in errors.one_line(refused.value)
    with pytest.raises(ValueError) as refused:
        seqio.get_mixture_or_task("xyzzy")
    assert errors.one_line(refused.value).endswith("MIXTURE_OR_TASK_MODULE?")


def test_a_split_that_a_source_has_not_is_answered_with_those_that_it_has():
    source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: None, ["train", "validation"])
    task = seqio.Task("two_splits", source, {"targets": seqio.Feature(seqio.ByteVocabulary())}, [])
    cfg = utils.DatasetConfig(task, {"targets": 8}, "test", 1, False, None)
    with pytest.raises(ValueError, match="two_splits has no split 'test', only train, validation; bind"):
        utils.get_dataset(cfg, 0, 1, seqio.LMFeatureConverter)


def test_a_source_that_names_no_splits_is_read_as_seqio_reads_it():
    rows = tf.data.Dataset.from_tensors({"targets": tf.constant([5, 6, 1])})
    source = seqio.FunctionDataSource(lambda split, shuffle_files, seed=None: rows, ())
    task = seqio.Task("no_splits", source, {"targets": seqio.Feature(seqio.ByteVocabulary())}, [])
    cfg = utils.DatasetConfig(task, {"targets": 4}, "train", 1, False, None)
    batch = next(utils.get_dataset(cfg, 0, 1, seqio.LMFeatureConverter, num_epochs=1).as_numpy_iterator())
    assert batch["decoder_target_tokens"].tolist() == [[5, 6, 1, 0]]
