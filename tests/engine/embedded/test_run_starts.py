"""starts.jsonl: what a run says of its command, machine and versions."""

import importlib.metadata
import json
import platform
import shlex
import sys
import time

import jax
import pytest

from t5x.embedded import run_starts


def test_each_start_adds_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "/usr/bin/t5xpg", "train", "a b.gin", "N=1"])
    run_starts.add(str(tmp_path), 0)
    run_starts.add(str(tmp_path), 20)
    first, second = map(json.loads, (tmp_path / "starts.jsonl").read_text(encoding="utf-8").splitlines())
    assert (first["step"], second["step"]) == (0, 20)
    assert shlex.split(first["command"]) == ["t5xpg", "train", "a b.gin", "N=1"]
    assert first["versions"]["python"] == platform.python_version()
    assert first["versions"]["jax"] == importlib.metadata.version("jax")
    assert first["machine"]["devices"] == f"{jax.device_count()} × {jax.devices()[0].device_kind}"
    assert abs(first["time"] - time.time()) < 3600


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["python3", "-m", "t5x.train", "--gin_file=x.gin"], "python -m t5x.train --gin_file=x.gin"),
        (["python3", "-X", "dev", "/bin/t5xpg", "train"], "python -X dev /bin/t5xpg train"),
    ],
)
def test_a_module_is_named_as_python_runs_it(words, command, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", words)
    assert run_starts.command() == command


def test_only_the_first_process_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    run_starts.add(str(tmp_path), 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("text", "name"), [("model name\t: Two Cores 9\nflags: x\n", "Two Cores 9"), ("x: 1\n", None)])
def test_a_processor_without_a_name_has_its_kind(text, name, tmp_path):
    (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    assert run_starts.processor(tmp_path / "cpuinfo") == (name or platform.processor() or platform.machine())
