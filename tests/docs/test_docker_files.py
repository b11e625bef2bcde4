"""The Dockerfiles: the steps of the one for CPUs, run as a script where there is no Docker.

The script is every COPY, ENV, WORKDIR and RUN, in a folder in place of the image. What it leaves out: the base image;
adding the user, for which it would have to be root; and downloading: pip checks, without an index, that what is
installed here is what `-c constraints.txt` asks for, and installs t5xpg itself into the folder. The files for GPUs and
TPUs are the same but for an extra of JAX, which is all that is checked of them.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS

ROOT = TESTS.parent
FILES = {kind: ROOT / "docker" / f"{kind}.Dockerfile" for kind in ("cpu", "cuda", "tpu")}
SHIMS = {
    "python": 'exec {python} "$@"',
    "useradd": 'echo "useradd $*" >> {folder}/calls',
    "install": 'echo "install $*" >> {folder}/calls',
    "t5xpg": 'PYTHONPATH={folder}/site exec {python} -m t5xpg "$@"',
    "pip": """case "$*" in
*"-r requirements.txt") exec {python} -m pip "$@" --no-index ;;
*) exec {python} -m pip "$@" --no-index --no-build-isolation --target {folder}/site ;;
esac""",
}


def instructions(path: Path) -> list[tuple[str, str]]:
    """Returns [(instruction, its arguments)] of a Dockerfile, without comments."""
    text = re.sub(r"^#.*\n", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE).replace("\\\n", "")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line.strip())]


class Image:
    """A folder in place of an image."""

    def __init__(self, folder: Path):
        self.folder, self.here = folder, folder / "image"
        self.variables = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        (folder / "bin").mkdir()
        for name, text in SHIMS.items():
            shim = folder / "bin" / name
            shim.write_text(f"#!/bin/sh\n{text.format(folder=folder, python=sys.executable)}\n")
            shim.chmod(0o755)
        self.variables["PATH"] = f"{folder / 'bin'}:{self.variables['PATH']}"

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.here, env=self.variables, text=True, capture_output=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def take(self, instruction: str, arguments: str) -> None:
        if instruction == "ENV":
            self.variables |= dict(pair.split("=", 1) for pair in shlex.split(arguments))
        elif instruction == "WORKDIR":
            self.here = self.folder / "image" / arguments.lstrip("/")
            self.here.mkdir(parents=True, exist_ok=True)
        elif instruction == "COPY":
            *sources, target = arguments.split()
            for source in sources:
                copy(source, self.here / target)
        elif instruction == "RUN":
            self.here.mkdir(parents=True, exist_ok=True)
            print(self.run(arguments))
        else:
            assert instruction in ("FROM", "USER", "ENTRYPOINT", "CMD"), instruction


def copy(source: str, target: Path) -> None:
    """Does what COPY does with a file or folder of the context, which .dockerignore lets through."""
    let_through = (ROOT / ".dockerignore").read_text().splitlines()
    assert let_through[0] == "*" and f"!{source}" in let_through
    if (ROOT / source).is_dir():
        shutil.copytree(ROOT / source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(ROOT / source, target)


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    made = Image(tmp_path_factory.mktemp("docker"))
    for instruction, arguments in instructions(FILES["cpu"]):
        made.take(instruction, arguments)
    return made


def test_its_command_runs_from_what_was_installed(image):
    parts = dict(instructions(FILES["cpu"]))
    entry, words = (re.findall(r'"(.*?)"', parts[name]) for name in ("ENTRYPOINT", "CMD"))
    assert image.here == image.folder / "image" / "work"
    assert "From a pile of text" in image.run(shlex.join([*entry, *words]))
    assert "configs/byt5_tiny.gin" in image.run("t5xpg recipes")  # from the wheel: there is no checkout
    where = image.run("PYTHONPATH=../../site python -c 'import t5xpg; print(t5xpg.__file__)'")
    assert Path(where.strip()) == image.folder / "site" / "t5xpg" / "__init__.py"


def test_no_build_files_are_left(image):
    copied = {"LICENSE", "README.md", "configs", "constraints.txt", "pyproject.toml", "requirements.py", "setup.py"}
    assert set(os.listdir(image.folder / "image" / "opt" / "t5xpg")) == {*copied, "requirements.txt", "t5xpg"}


def test_the_layer_of_libraries_is_all_that_t5xpg_requires(image):
    made = (image.folder / "image" / "opt" / "t5xpg" / "requirements.txt").read_text().splitlines()
    (site,) = importlib.metadata.distributions(name="t5xpg", path=[str(image.folder / "site")])
    of_extras = {f"extra == {extra!r}".replace("'", '"') for extra in ("gcs", "s3")}
    required = [line.split("; ") for line in site.requires or ()]
    wanted = [line for line, *markers in required if not markers or markers[0] in of_extras]
    assert sorted(map(normal, made)) == sorted(map(normal, wanted))


def normal(requirement: str) -> tuple[str, frozenset[str]]:
    name, rest = re.fullmatch(r"([\w.\[\],-]+?)\s*([<>=!~].*)?", requirement).groups()
    return name.lower().replace("_", "-"), frozenset((rest or "").replace(" ", "").split(","))


@pytest.mark.parametrize("kind", FILES)
def test_it_does_not_run_as_root(kind, image):
    made = instructions(FILES[kind])
    words = [word for word, _ in made]
    assert words.index("USER") > max(i for i, word in enumerate(words) if word in ("RUN", "COPY"))
    assert dict(made)["USER"] == "t5xpg"
    assert (image.folder / "calls").read_text().splitlines() == [
        "useradd --create-home --uid 1000 t5xpg",
        "install --directory --owner t5xpg /work",
    ]


@pytest.mark.parametrize("kind", ["cuda", "tpu"])
def test_accelerators_add_an_extra_alone(kind):
    cpu = [(word, rest.replace("gcs s3 >", f"gcs s3 {kind} >")) for word, rest in instructions(FILES["cpu"])]
    assert instructions(FILES[kind]) == cpu
    printed = subprocess.run(
        [sys.executable, "docker/requirements.py", kind], cwd=ROOT, text=True, capture_output=True, check=True
    )
    assert re.search(r"^jax\[\w+\]$", printed.stdout, re.MULTILINE)
