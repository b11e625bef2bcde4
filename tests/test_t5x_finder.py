"""Which package answers `import t5x`."""

import os
import subprocess
import sys

import pytest
from conftest import TESTS


def run_python(code: str, cwd, **environment) -> str:
    """Runs code in a fresh interpreter that sees this checkout after `cwd`; returns what it printed."""
    return run_interpreter("-c", code, cwd=cwd, **environment)


def run_interpreter(*arguments: str, cwd, **environment) -> str:
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent), **environment}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, env=env, check=False)
    return (done.stdout + done.stderr).strip()


REPORT = "import t5xpg, t5x; print(t5x.__file__)"


@pytest.fixture
def other_t5x(tmp_path):
    """A folder that holds a package t5x with a file, as an installed T5X has."""
    (tmp_path / "site" / "t5x").mkdir(parents=True)
    (tmp_path / "site" / "t5x" / "__init__.py").write_text("")
    return tmp_path / "site"


def test_embedded_engine_answers_where_nothing_is_installed(tmp_path):
    assert run_python(REPORT, tmp_path, T5XPG_ENGINE="auto").endswith("t5xpg/engine/t5x/__init__.py")


def test_an_installed_t5x_wins(other_t5x):
    assert run_python(REPORT, other_t5x, T5XPG_ENGINE="auto") == str(other_t5x / "t5x" / "__init__.py")


def test_embedded_can_be_forced(other_t5x):
    assert run_python(REPORT, other_t5x, T5XPG_ENGINE="embedded").endswith("t5xpg/engine/t5x/__init__.py")


def test_a_bare_clone_in_the_working_directory_does_not_count(tmp_path):
    (tmp_path / "t5x" / "t5x").mkdir(parents=True)
    assert run_python(REPORT, tmp_path, T5XPG_ENGINE="auto").endswith("t5xpg/engine/t5x/__init__.py")


def test_what_is_put_on_the_path_later_wins(other_t5x, tmp_path):
    code = f"import t5xpg, sys; sys.path.insert(0, {str(other_t5x)!r}); import t5x; print(t5x.__file__)"
    assert run_python(code, tmp_path, T5XPG_ENGINE="auto") == str(other_t5x / "t5x" / "__init__.py")


def test_installed_without_one_is_an_import_error(tmp_path):
    assert "No module named 't5x'" in run_python(REPORT, tmp_path, T5XPG_ENGINE="installed")


def test_an_unknown_choice_is_named(tmp_path):
    assert "T5XPG_ENGINE is 'both'; set it to one of" in run_python(REPORT, tmp_path, T5XPG_ENGINE="both")


def test_the_engine_has_one_name_only(tmp_path):
    output = run_python("import t5xpg.engine.t5x", tmp_path, T5XPG_ENGINE="embedded")
    assert "write `import t5xpg` and then `import t5x`" in output


def test_submodules_load_when_asked_for(tmp_path):
    code = "import t5xpg, sys, t5x; assert 'jax' not in sys.modules; print(t5x.losses.__name__)"
    assert run_python(code, tmp_path, T5XPG_ENGINE="embedded") == "t5x.losses"


def test_an_unknown_submodule_is_an_attribute_error(tmp_path):
    assert "module 't5x' has no attribute 'nothing'" in run_python(
        "import t5xpg, t5x; t5x.nothing", tmp_path, T5XPG_ENGINE="embedded"
    )


# ---- python -m t5xpg.t5x: what begins with `import t5x` and does not know of t5xpg ----

SHOW = "import sys, t5x\nprint(__name__, *sys.argv, t5x.__file__, sep='|')\n"


def run_t5x(*arguments: str, cwd, **environment) -> str:
    return run_interpreter("-m", "t5xpg.t5x", *arguments, cwd=cwd, **environment)


def test_a_script_runs_as_python_runs_it(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "beside.py").write_text("")
    (tmp_path / "mine" / "script.py").write_text(f"import beside\n{SHOW}")
    shown = run_t5x("mine/script.py", "--a", "b", cwd=tmp_path, T5XPG_ENGINE="embedded").split("|")
    assert shown[:4] == ["__main__", "mine/script.py", "--a", "b"]
    assert shown[4].endswith("t5xpg/engine/t5x/__init__.py")


def test_a_module_runs_as_python_runs_it(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "module.py").write_text(SHOW)
    shown = run_t5x("mine.module", "--a", cwd=tmp_path, T5XPG_ENGINE="embedded").split("|")
    assert shown[0] == "__main__" and shown[1].endswith("mine/module.py") and shown[2] == "--a"


def test_an_installed_program_runs_by_its_name(other_t5x):
    (other_t5x / "t5x" / "train.py").write_text(SHOW)
    shown = run_t5x("train", "--gin_file=a.gin", cwd=other_t5x, T5XPG_ENGINE="auto").split("|")
    assert shown == ["__main__", f"{other_t5x}/t5x/train.py", "--gin_file=a.gin", f"{other_t5x}/t5x/__init__.py"]


def test_the_embedded_program_says_how_it_is_run(tmp_path):
    usage = run_t5x("train", "--help", cwd=tmp_path, T5XPG_ENGINE="embedded")
    assert "python -m t5xpg.t5x train --gin_file=" in usage.partition("\n")[0]


def test_a_program_that_is_none_is_named(tmp_path):
    assert "No module named t5x.trian" in run_t5x("trian", cwd=tmp_path, T5XPG_ENGINE="embedded")


@pytest.mark.parametrize(("arguments", "status"), [([], 2), (["--help"], 0)], ids=["alone", "help"])
def test_it_says_what_it_runs(arguments, status):
    done = subprocess.run([sys.executable, "-m", "t5xpg.t5x", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == status and "python -m t5xpg.t5x my_script.py" in done.stdout
