"""The command `t5xpg` in a process of its own, forked from one that has imported what it imports and done nothing else.

Importing TensorFlow and JAX is most of what a small run takes. How the command starts from nothing, `micro_run` tests.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).parents[2]
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(
    ["command", "tensorflow", "t5.data", "t5xpg.tasks", "t5x.utils", "t5x.trainer", "t5x.examples.t5.network"]
)


def start_t5xpg(*arguments, stdout: Path, stderr: Path, **environment: str) -> multiprocessing.Process:
    """Starts the command; what it prints is added to two files.

    Variables that TensorFlow, JAX or Python read as they are imported come too late, but for JAX_COMPILATION_CACHE_DIR;
    that is as good as not there where it is empty.
    """
    words = [str(argument) for argument in arguments]
    process = PROCESSES.Process(target=_command, args=(words, stdout, stderr, {**os.environ, **environment}))
    process.start()
    return process


def run_t5xpg(*arguments, timeout: int = 300, **environment: str) -> subprocess.CompletedProcess:
    """Runs the command to its end; returns it with its output as text. See `start_t5xpg`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = start_t5xpg(*arguments, stdout=out, stderr=err, **environment)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            raise subprocess.TimeoutExpired(arguments, timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess(arguments, process.exitcode, out.read_text(), err.read_text())


def run_fresh_t5xpg(*arguments, timeout: int = 300, **environment: str) -> subprocess.CompletedProcess:
    """Runs the command as a user does, all imports included."""
    words, variables = [sys.executable, "-m", "t5xpg", *map(str, arguments)], {**os.environ, **environment}
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, cwd=REPO, env=variables, check=False)


def _command(arguments: list[str], stdout: Path, stderr: Path, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(REPO)
    for path, descriptor in ((stdout, 1), (stderr, 2)):
        with open(path, "ab") as file:
            os.dup2(file.fileno(), descriptor)
    import jax

    from t5xpg.cli.main import main

    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR") or None)
    sys.exit(main(arguments))
