"""Who may import whom: reads every file's imports and fails on a forbidden one; and what start-up may load."""

import ast
import subprocess
import sys

import pytest
import syntax_trees
from conftest import TESTS

PACKAGE = TESTS.parent / "t5xpg"
ENGINE = PACKAGE / "engine" / "t5x"
# {what a path in t5xpg begins with: what its room may not import}. Every file has a room; the longest beginning counts.
ROOMS = {
    "base/": {"t5x", "seqio", "t5xpg"},
    "objectives/": {"t5x"},
    "vocabularies/": {"t5x"},
    "data/": {"t5x"},
    "batchwise/": {"t5x"},
    **{f"{name}.py": {"t5x"} for name in ("tasks", "qa", "roberta", "schedules", "trust")},
    # T5X, whichever answers: of it only what both have.
    **{name: {"t5x.embedded"} for name in ("inspection/", "hf/", "mlm.py", "model.py", "recipes.py", "name_value.py")},
    **{name: {"t5x.embedded"} for name in ("search.py", "savedmodel.py")},
    **{name: {"t5x", "tensorflow", "jax", "seqio"} for name in ("__init__.py", "__main__.py", "t5x_finder.py")},
    **{name: {"t5x", "tensorflow", "jax", "seqio"} for name in ("gin_text.py", "t5x.py", "report/", "pages/")},
    "engine/": {"t5xpg"},
    "cli/": set(),
}
ALLOWED = {"t5xpg.base"}  # to the engine and to base itself
# Of the engine, lowest first: a module imports only what stands before it.
ENGINE_LAYERS = (
    ("embedded.contract", "embedded.checksums", "embedded.store_lock", "embedded.store_log"),
    ("embedded.tensorstore_specs", "embedded.tf_memory", "embedded.json_lines", "embedded.run_starts"),
    ("binary_search", "embedded.beams", "embedded.masks", "embedded.platforms", "embedded.vocab_axis"),
    ("embedded.fused_attention", "embedded.residuals", "embedded.metric_lines"),
    ("losses", "metrics", "decoding", "optimizers"),
    ("embedded.learning_rates", "embedded.periods", "embedded.loss_watch", "embedded.actions"),
    ("embedded.console",),
    ("embedded.checkpoint_paths",),
    ("embedded.checkpoint_readers", "embedded.compiling", "embedded.signals"),
    ("embedded.waiting", "embedded.peers"),
    ("checkpoint_importer", "embedded.checkpoint_datasets", "embedded.best_checkpoints"),
    ("embedded.packing", "embedded.natural_text", "embedded.notebook_gin"),
    ("embedded.checkpoint_restoring",),
    ("embedded.run_changes",),
    ("embedded.trackers",),
    ("adafactor", "embedded.metrics_manager", "embedded.weight_metrics", "train_state"),
    ("embedded.base_model", "partitioning", "embedded.vocabulary_check", "embedded.folder_lock"),
    ("models", "checkpoints", "embedded.datasets"),
    ("embedded.checkpoint_configs", "trainer", "embedded.model_info", "embedded.inference", "embedded.inference_files"),
    ("embedded.initialization", "embedded.data_position"),
    ("utils", "gin_utils", "embedded.evaluation", "embedded.resuming", "embedded.predictions"),
    ("embedded.programs",),
    ("train", "eval", "infer", "precompile"),
    ("interactive_model",),
)


def imported(path) -> set[str]:
    """Returns what a file imports anywhere, each name of `from a import b` as a.b."""
    names = set()
    for node in ast.walk(syntax_trees.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def is_in(name: str, package: str) -> bool:
    return f"{name}.".startswith(f"{package}.")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_room_imports_what_it_may(path):
    inside = path.relative_to(PACKAGE).as_posix()
    rooms = [room for room in ROOMS if inside.startswith(room)]
    assert rooms, f"{inside} has no room; ROOMS says who may import whom"
    forbidden = ROOMS[max(rooms, key=len)]
    names = {name for name in imported(path) if not any(is_in(name, allowed) for allowed in ALLOWED)}
    assert not {name for name in names if any(is_in(name, package) for package in forbidden)}


@pytest.mark.parametrize(
    "path", sorted([*ENGINE.glob("*.py"), *ENGINE.glob("embedded/*.py")]), ids=lambda p: str(p.relative_to(ENGINE))
)
def test_engine_arrows_run_one_way(path):
    level = {name: i for i, names in enumerate(ENGINE_LAYERS) for name in names}
    module = ".".join(path.relative_to(ENGINE).with_suffix("").parts)
    if path.stem == "__init__":
        return
    assert module in level, f"{module} has no place in ENGINE_LAYERS"
    used = {other for other in level for name in imported(path) if is_in(name, f"t5x.{other}")}
    assert not {other for other in used if level[other] >= level[module]}


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
        "from t5x.embedded import initialization\nfrom t5x.examples.t5 import network\n"
        "print(sorted({'tensorflow', 'seqio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=TESTS.parent, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
