"""The command `t5xpg` in a process of its own, forked from one that has imported what it imports and done nothing else.

Importing TensorFlow and JAX is most of what a small run takes. How the command starts from nothing, `micro_run` tests.
"""

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["command", "tensorflow", "t5.data", "t5xpg.tasks", "t5x.utils", "t5x.trainer", "t5x.examples.t5.network"]
)


def start_t5xpg(
    *arguments, stdout: Path, stderr: Path, folder: Path = REPO, stdin: Path | None = None, **environment: str
) -> multiprocessing.Process:
    """Starts the command in a folder; what it prints is added to two files, and it reads a third one.

    Variables that TensorFlow, JAX or Python read as they are imported come too late, but for JAX_NUMPY_…_PROMOTION and
    JAX_COMPILATION_CACHE_DIR, which is as good as not there where it is empty.
    """
    words = [str(argument) for argument in arguments]
    variables = {**os.environ, **environment}
    process = PROCESSES.Process(target=_command, args=(words, folder, (stdin, stdout, stderr), variables))
    process.start()
    return process


def run_t5xpg(*arguments, timeout: int = 300, **settings) -> subprocess.CompletedProcess:
    """Runs the command to its end; returns it with its output as text. See `start_t5xpg`."""
    with tempfile.TemporaryDirectory() as printed:
        out, err = Path(printed, "out"), Path(printed, "err")
        process = start_t5xpg(*arguments, stdout=out, stderr=err, **settings)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())


def run_fresh_t5xpg(*arguments, timeout: int = 300, **environment: str) -> subprocess.CompletedProcess:
    """Runs the command as a user does, all imports included."""
    words, variables = [sys.executable, "-m", "t5xpg", *map(str, arguments)], {**os.environ, **environment}
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, cwd=REPO, env=variables, check=False)


def _command(arguments: list[str], folder: Path, paths: tuple[Path | None, ...], environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for descriptor, path in enumerate(paths):
        if path is not None:
            with open(path, "ab" if descriptor else "rb") as file:
                os.dup2(file.fileno(), descriptor)
    import jax

    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR") or None)
    for name in ("jax_numpy_dtype_promotion", "jax_numpy_rank_promotion"):
        jax.config.update(name, os.environ[name.upper()])
    if arguments[0] == "python":
        sys.path.append("")  # as the command's, which finds users' modules last in the working directory
        runpy.run_path(arguments[1], run_name="__main__")
        sys.exit()
    from t5xpg.cli.main import main

    sys.exit(main(arguments))
