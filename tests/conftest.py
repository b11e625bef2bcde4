"""Shared set-up: the embedded engine answers `import t5x`, and JAX is strict about ranks and dtypes."""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

os.environ["T5XPG_ENGINE"] = os.environ.get("T5XPG_ENGINE", "embedded")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
# Compiled programs are kept for the other processes of the tests: compiling is most of a micro model's run.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Compiling for speed takes thrice as long. What is held to other programs' numbers, T5X's, optax's or transformers', is
# compiled as users' programs are, by the fixture `compiled_for_speed`; the rest compares runs with each other.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import emulators
import pytest
from command import run_fresh_t5xpg, run_t5xpg

import t5xpg  # noqa: F401

# A shell's jobs in the background start with Ctrl-C ignored, and so would the programs that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
SHARED_DATA = TESTS.parents[1] / "shared" / "data"
PROSE = (
    "The lighthouse keeper wrote down the weather every morning, and every evening he read what he had written. "
    "On clear days the far shore was a thin grey line; on others there was only the sound of the water below. "
)


@pytest.fixture(scope="session")
def stores():
    """Emulators of gs:// and s3://; this process's environment leads to them, and that of programs it starts."""
    with emulators.gcs() as gcs, emulators.s3() as s3, pytest.MonkeyPatch.context() as environment:
        for name, value in {**emulators.gcs_environment(gcs), **emulators.s3_environment(s3)}.items():
            environment.setenv(name, value)
        yield {"gs": gcs, "s3": s3}


@pytest.fixture(params=["gs", "s3"])
def bucket(request, stores) -> str:
    """The URL of a new, empty bucket."""
    return emulators.new_bucket(request.param)


@pytest.fixture
def nothing_here(tmp_path, monkeypatch, request):
    """No code path makes a local folder of a URL, or leaves one in the temporary folder.

    A module may name in LEFT_BY_LIBRARIES what the names begin with that libraries leave there.
    """
    others = getattr(request.module, "LEFT_BY_LIBRARIES", ())
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path)
    yield
    assert os.listdir(tmp_path) == ["tmp"]
    assert [name for name in os.listdir(tmp_path / "tmp") if not name.startswith(others)] == []


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> str:
    """A small corpus's file pattern, with {split} in it: real text where it is at hand, made-up prose elsewhere."""
    folder = tmp_path_factory.mktemp("corpus")
    for split, rows in (("train", 200), ("validation", 40)):
        source = SHARED_DATA / f"wikitext_{split}.jsonl"
        if source.exists():
            lines = source.read_text(encoding="utf-8").splitlines()[:rows]
        else:
            lines = [json.dumps({"text": f"{i}. " + PROSE * (i % 3 + 1)}) for i in range(rows)]
        (folder / f"corpus_{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder / "corpus_{split}.jsonl")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with wikitext_{train,validation,test}.jsonl."""
    from wikitext_tasks import TEXTS

    for split, texts in (("train", TEXTS), ("validation", TEXTS[:6]), ("test", TEXTS[:3])):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (tmp_path / f"wikitext_{split}.jsonl").write_text(lines, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def forget_tasks_and_bindings(tmp_path_factory):
    """Removes the tasks that a module registered over its temporary files, and what it bound in gin."""
    yield
    if "gin" in sys.modules:
        sys.modules["gin"].clear_config()
    if "seqio" not in sys.modules:
        return
    import seqio

    for name in list(seqio.TaskRegistry.names()):
        files = getattr(seqio.TaskRegistry.get(name).source, "files", {})
        if str(tmp_path_factory.getbasetemp()) in str(files):
            seqio.TaskRegistry.remove(name)


@pytest.fixture(scope="module")
def compiled_for_speed():
    """In this module, programs are compiled as users' are."""
    import jax

    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def micro_run(tmp_path_factory, corpus):
    """A finished run of tests/micro.gin: (its MODEL_DIR, the finished process)."""
    model_dir = tmp_path_factory.mktemp("micro") / "run"
    done = run_fresh_t5xpg("train", TESTS / "micro.gin", f"FILES={corpus}", f"MODEL_DIR={model_dir}")
    assert done.returncode == 0, done.stderr
    return model_dir, done


def program_settings(program, *recipes_and_bindings: str) -> dict:
    """Returns the arguments of one of T5X's programs (train.train, …) as recipes and then bindings bind them."""
    import gin

    import __main__

    setattr(__main__, program.__name__, program)  # in the program itself, __main__ is its module; here it is pytest
    recipes = [text for text in map(str, recipes_and_bindings) if text.endswith(".gin") and "=" not in text]
    with gin.unlock_config():
        gin.clear_config()
        gin.add_config_file_search_path(str(TESTS.parent))
        gin.parse_config_files_and_bindings(recipes, [str(b) for b in recipes_and_bindings if str(b) not in recipes])
        return gin.get_bindings(program)


def write_pairs(folder: Path) -> str:
    """Writes pairs that a tiny model learns in seconds (are there more than three words?); returns their pattern."""
    words = PROSE.replace(",", "").replace(".", "").split()
    for split, rows in (("train", 200), ("validation", 37)):
        with open(folder / f"pairs_{split}.jsonl", "w", encoding="utf-8") as file:
            for i in range(rows):
                chosen = words[i % len(words) :][: 2 + i % 4]
                answer = "é yes" if len(chosen) > 3 else "no"
                file.write(json.dumps({"inputs": " ".join(chosen), "targets": answer}) + "\n")
    return str(folder / "pairs_{split}.jsonl")


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> str:
    return write_pairs(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="session")
def finetuned(tmp_path_factory, micro_run, pairs):
    """The micro run fine-tuned on `pairs` by the recipe that ships: (its MODEL_DIR, the finished process)."""
    model_dir = tmp_path_factory.mktemp("finetuned") / "run"
    done = run_t5xpg(
        *("train", "configs/byt5_tiny_finetune.gin", TESTS / "micro_model.gin", f"FILES={pairs}"),
        *(f"MODEL_DIR={model_dir}", f"INITIAL_CHECKPOINT_PATH={micro_run[0]}"),
        *("TRAIN_STEPS_RELATIVE=40", "EVAL_PERIOD=20", "utils.SaveCheckpointConfig.period=20"),
        *("utils.create_learning_rate_scheduler.base_learning_rate=0.01", "train.stats_period=20"),
        "TASK_FEATURE_LENGTHS={'inputs': 64, 'targets': 16}",
    )
    assert done.returncode == 0, done.stderr
    return model_dir, done


def pytest_collection_modifyitems(items):
    """Puts the longest files first, so that no process ends up alone with one of them."""
    longest = ("test_resume", "test_processes", "test_other_numbers", "test_train", "test_stopping", "test_survival")
    longest += ("test_partitioning", "test_golden", "test_commands", "test_runs_on_stores", "test_savedmodel")
    items.sort(key=lambda item: item.path.stem not in longest)
