"""docs/clusters.md: bash and YAML read its files, t5xpg its commands, and its batch job asks to be requeued."""

import math
import os
import re
import shlex
import subprocess

import gin
import pytest
import yaml
from conftest import TESTS

from t5xpg import name_value, recipes

PAGE = (TESTS.parent / "docs" / "clusters.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SCRIPTS = [text for kind, text in BLOCKS if kind == "bash"]
(JOB_SET,) = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml"]
(POD,) = [each["template"]["spec"]["template"]["spec"] for each in JOB_SET["spec"]["replicatedJobs"]]
(CONTAINER,) = POD["containers"]
COMMANDS = re.findall(r"\bt5xpg (train .*--multiprocess)", PAGE.replace("\\\n", ""))


def test_every_section_has_its_file():
    assert re.findall("^## (.*)", PAGE, re.MULTILINE) == ["SLURM", "A TPU VM slice", "GKE", "MPI"]
    assert len(SCRIPTS) == 6 and len(COMMANDS) == 5 and JOB_SET["kind"] == "JobSet"


@pytest.mark.parametrize("script", [*SCRIPTS, *CONTAINER["args"]])
def test_bash_reads_it(script):
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", COMMANDS)
def test_t5xpg_takes_it(command):
    verb, *arguments = shlex.split(command)
    assert "--multiprocess" in arguments and recipes.read(arguments).program == verb
    assert gin.query_parameter("%MODEL_DIR") == "gs://bucket/runs/books"
    assert gin.query_parameter("%FILES").startswith("gs://bucket/")


def test_the_flags_it_names_are_taken():
    flags = re.findall(r"(--(?:coordinator_address|process_count|process_index))=\S+", PAGE)
    assert sorted(set(flags)) == ["--coordinator_address", "--process_count", "--process_index"]
    assert set(flags) < set(name_value.DISTRIBUTED_FLAGS)


def test_the_job_set_has_a_pod_for_each_machine_of_the_slice():
    job = JOB_SET["spec"]["replicatedJobs"][0]["template"]["spec"]
    chips = math.prod(map(int, POD["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")))
    of_a_pod = CONTAINER["resources"]["limits"]["google.com/tpu"]
    assert job["parallelism"] == job["completions"] == chips // of_a_pod
    assert CONTAINER["resources"]["requests"] == CONTAINER["resources"]["limits"]
    assert CONTAINER["command"] == ["bash", "-c"] and "exec t5xpg" in CONTAINER["args"][0]  # so that it gets SIGTERM


@pytest.mark.parametrize("status", [0, 1, 143])
def test_the_batch_job_is_queued_again_after_sigterm_alone(status, tmp_path):
    (script,) = [text for text in SCRIPTS if "#SBATCH" in text]
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))
    assert options["requeue"] == "" and options["signal"] == "TERM@300"
    for name, body in {"srun": f'echo "$@" >> ran; exit {status}', "scontrol": 'echo "$@" >> asked'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "4711"}
    done = subprocess.run(["bash"], input=script, text=True, cwd=tmp_path, env=variables, check=False)
    assert done.returncode == status
    assert shlex.split((tmp_path / "ran").read_text())[:2] == ["t5xpg", "train"]
    asked = (tmp_path / "asked").read_text() if (tmp_path / "asked").exists() else ""
    assert asked == ("requeue 4711\n" if status == 143 else "")
