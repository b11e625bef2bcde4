"""Only t5xpg/base opens, lists, renames and removes files: elsewhere a URL would become a local folder of that name."""

import ast
from pathlib import Path

import pytest
import syntax_trees

ROOT = Path(__file__).parents[1]
FUNCTIONS = {
    *("open", "os.open", "io.open", "os.listdir", "os.scandir", "os.walk", "os.replace", "os.rename", "os.remove"),
    *("os.unlink", "os.mkdir", "os.makedirs", "os.rmdir", "os.stat", "os.path.exists", "os.path.isfile"),
    *("os.path.isdir", "os.path.getsize", "glob.glob", "glob.iglob", "tf.io.TFRecordWriter"),
    *("epath.Path", "gzip.open", "bz2.open", "lzma.open", "np.load", "np.save"),
}
MODULES = ("shutil", "tempfile", "tf.io.gfile")
METHODS = {
    *(
        "read_text",
        "read_bytes",
        "write_text",
        "write_bytes",
        "mkdir",
        "unlink",
        "rmdir",
        "iterdir",
        "rglob",
        "is_file",
    ),
    *("is_dir", "exists", "touch", "stat"),
}
# What opens local files alone, and why that is right.
ALLOWED = {
    "cli/recipes.py": "the recipes that ship, and one copied beside where the user is",
    "cli/quiet.py": "what goes to the terminal",
    "pages/__init__.py": "the package's own page.html and style.css",
    "report/page.py": "the package's own page.js",
    "data/preparing.py": "rows that wait on the local disk",
    "data/sharding.py": "rows that wait on the local disk",
    "data/working_folder.py": "the folder on the local disk where they wait",
    "data/offline_cache.py": "the lock and the records of a cache on a local disk",
    "data/jsonl_task.py": "a cache where TensorFlow can open it",
    "data/corpora.py": "whether a data set's name is a local folder",
    "data/python_sources.py": "Python's own sources",
    "recipes.py": "the recipes that ship",
    "hf/card.py": "a folder that is sent once it is whole",
    "hf/checkpoints.py": "reads by recipes.read_text, which knows URLs",
    "hf/compare.py": "a local copy of a folder",
    "hf/folder.py": "a local copy of a folder",
    "hf/to_hf.py": "a folder that is sent once it is whole",
    "hf/tokenizer.py": "a local copy of a folder, and one that is sent once it is whole",
    "engine/t5x/checkpoints.py": "Orbax's paths, which know URLs",
    "engine/t5x/infer.py": "TensorFlow's records, which TensorFlow reads",
    "engine/t5x/embedded/checkpoint_datasets.py": "the folder that Orbax gives",
    "engine/t5x/embedded/checkpoint_readers.py": "Orbax's paths, which know URLs",
    "engine/t5x/embedded/contract.py": "the package's own contract.txt",
    "engine/t5x/embedded/folder_lock.py": "the lock of a folder on a local disk",
    "engine/t5x/embedded/inference_files.py": "copies between files that are open",
    "engine/t5x/embedded/store_lock.py": "this machine's own name in /proc",
    "engine/t5x/embedded/tf_memory.py": "TensorFlow's files in memory",
}


def name_of(node: ast.expr) -> str:
    """ "os.path.exists" for that attribute; what it is an attribute of is left out where it is not a name."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def local_calls(source: str) -> list[str]:
    found = []
    for node in ast.walk(syntax_trees.parse(source)):
        if isinstance(node, ast.Call):
            name = name_of(node.func)
            module, _, function = name.rpartition(".")
            is_local = name in FUNCTIONS or module in MODULES
            if is_local or (function in METHODS and module not in ("files", "base_files", "stored", "stores")):
                found.append(f"line {node.lineno}: {name}")
    return found


FILES = [path.relative_to(ROOT / "t5xpg") for path in sorted((ROOT / "t5xpg").rglob("*.py"))]
CHECKED = [str(path) for path in FILES if str(path) not in ALLOWED and path.parts[0] != "base"]


@pytest.mark.parametrize("path", CHECKED)
def test_only_base_opens_files(path):
    assert local_calls((ROOT / "t5xpg" / path).read_text(encoding="utf-8")) == []


def test_the_exceptions_are_needed():
    for path in ALLOWED:
        assert local_calls((ROOT / "t5xpg" / path).read_text(encoding="utf-8")), path


@pytest.mark.parametrize("call", ["open(p)", "shutil.rmtree(p)", "tf.io.gfile.exists(p)", "Path(p).read_text()"])
def test_a_local_call_is_found(call):
    assert len(local_calls(call)) == 1 and not local_calls("files.exists(p)")
