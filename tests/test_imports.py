"""Who may import whom: reads every file's imports and fails on a forbidden one; and what start-up may load."""

import ast
import subprocess
import sys

import pytest
from conftest import TESTS

PACKAGE = TESTS.parent / "t5xpg"
ENGINE = PACKAGE / "engine" / "t5x"
DATA_ROOMS = (
    *("compressed", "corpora", "sources", "lengths", "denoising", "objectives", "tasks", "vocabularies"),
    *("python_ops", "span_masks", "byte_level_bpe", "tokenizer_json", "offline_cache", "inspection", "inspection_page"),
    *("readable", "qa", "schedules"),
)
# Lowest first: a module imports only what stands before it.
ENGINE_LAYERS = (
    ("losses", "metrics", "decoding", "learning_rates", "schedule", "actions", "optimizers"),
    ("checkpoint_readers", "checkpoint_importer", "checkpoint_datasets", "best_checkpoints"),
    ("console", "packing", "checkpoint_folders", "checkpoint_restoring"),
    ("adafactor", "metrics_manager", "weight_metrics"),
    ("base_model", "train_state", "partitioning", "vocabulary_check", "safeguards"),
    ("models", "checkpoints", "datasets"),
    ("checkpoint_configs", "trainer", "model_info", "inference", "inference_files"),
    ("initialization",),
    ("utils", "gin_utils", "evaluation", "resuming"),
    ("programs",),
    ("train", "eval", "infer"),
    ("interactive_model",),
)


def imported(path, prefix: str) -> set[str]:
    """Returns the top-level modules below `prefix` that a file imports anywhere: {"losses"} for t5x.losses."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = [name.replace("t5x.embedded.", "t5x.").split(".") for name in names]
    return {p[1] if len(p) > 1 else p[0] for p in parts if p[0] == prefix}


@pytest.mark.parametrize("room", DATA_ROOMS)
def test_data_rooms_never_import_t5x(room):
    assert not imported(PACKAGE / f"{room}.py", "t5x")


@pytest.mark.parametrize("path", sorted(ENGINE.rglob("*.py")), ids=lambda p: str(p.relative_to(ENGINE)))
def test_the_engine_never_imports_the_package(path):
    assert imported(path, "t5xpg") <= {"base"}


@pytest.mark.parametrize("path", sorted([*ENGINE.glob("*.py"), *ENGINE.glob("embedded/*.py")]), ids=lambda p: p.stem)
def test_engine_arrows_run_one_way(path):
    level = {name: i for i, names in enumerate(ENGINE_LAYERS) for name in names}
    if path.stem == "__init__":
        return
    assert path.stem in level, f"{path.name} has no place in ENGINE_LAYERS"
    upwards = {name for name in imported(path, "t5x") if level[name] >= level[path.stem]}
    assert not upwards


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom t5xpg.cli.main import main\n"
        "try: main(['--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'tensorflow', 'jax', 'seqio', 'datasets', 'numpy', 'gin'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS.parent, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_training_step_needs_no_tensorflow():
    code = (
        "import t5xpg, sys\nfrom t5x import models, trainer, adafactor, partitioning\n"
        "from t5x.embedded import initialization\n"
        "from t5x.examples.t5 import network\nprint(sorted({'tensorflow', 'seqio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS.parent, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
