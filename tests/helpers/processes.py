"""The processes of one run, real ones of this machine: started by flags, or as SLURM's srun starts them."""

import random
import socket
import time
from pathlib import Path

from command import start_t5xpg

TIMEOUT = 600  # seconds; a machine with two busy cores needs some of it


class Processes:
    """The processes of one run; what they print goes to process_<i>.log.

    Args:
      folder: for what they print; a later run's is added.
      words: of the command.
      verb: its verb.
      count: how many processes.
      environments: variables of each of them in place of flags that say which one it is.
    """

    def __init__(self, folder, *words, verb: str = "train", count: int = 2, environments: list[dict] | None = None):
        self.logs = [Path(folder, f"process_{index}.log") for index in range(count)]
        self.processes = []
        flags = distributed_flags(count) if environments is None else [["--multiprocess"]] * count
        for log, own, environment in zip(self.logs, flags, environments or [{}] * count, strict=True):
            log.touch()
            self.processes.append(start_t5xpg(verb, *words, *own, stdout=log, stderr=log, **environment))

    @property
    def output(self) -> str:
        return "\n".join(log.read_text() for log in self.logs)

    def wait_until(self, condition) -> None:
        deadline = time.time() + TIMEOUT
        while not condition() and all(p.is_alive() for p in self.processes) and time.time() < deadline:
            time.sleep(0.1)
        assert condition(), self.output

    def end(self, timeout: float = TIMEOUT) -> list[int]:
        """Waits for all of them and returns their exit statuses."""
        deadline = time.time() + timeout
        for process in self.processes:
            process.join(max(0.0, deadline - time.time()))
        left = [index for index, process in enumerate(self.processes) if process.is_alive()]
        for process in self.processes:
            process.kill()
            process.join()
        assert not left, f"Of the processes, {left} go on after {timeout} s. {self.output}"
        return [process.exitcode for process in self.processes]


def distributed_flags(count: int) -> list[list[str]]:
    """T5X's flags for each of `count` processes; none where there is but one."""
    if count == 1:
        return [[]]
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    flags = ["--multiprocess_gpu", f"--coordinator_address=localhost:{port}", f"--process_count={count}"]
    return [[*flags, f"--process_index={index}"] for index in range(count)]


def slurm_step(count: int, **more: str) -> list[dict[str, str]]:
    """The variables that srun sets for each of `count` tasks on this machine, and `more`.

    JAX takes a port by the job's number, which is one at random whose port is free.
    """
    while True:
        job = random.randrange(10**6)
        with socket.socket() as probe:
            if probe.connect_ex(("localhost", 2**16 - 2**12 + job % 2**12)) != 0:
                break
    step = {"SLURM_JOB_ID": str(job), "SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_NUM_NODES": "1", **more}
    own = [{"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)} for index in range(count)]
    return [{**step, "SLURM_NTASKS": str(count), **each} for each in own]
