import time
from types import SimpleNamespace

from t5x.embedded import peers, programs
from t5xpg.base import clusters, private


def test_a_process_says_that_it_waits_for_the_others(monkeypatch, capsys):
    flags = SimpleNamespace(
        **{"multiprocess": True, "multiprocess_gpu": False, "coordinator_address": "host:1", "process_count": 2},
        **{"process_index": 1, "initialization_timeout": 7},
    )
    joined, printed = [], []

    def join(*where):
        joined.append(where)
        deadline = time.monotonic() + 60
        while not printed and time.monotonic() < deadline:
            printed.extend(capsys.readouterr().err.splitlines())
            time.sleep(0.01)

    monkeypatch.setattr(programs, "FLAGS", flags)
    monkeypatch.setattr(programs, "PATIENCE", 0.0)
    monkeypatch.setattr(clusters, "join", join)
    monkeypatch.setattr(private, "coordinator_address", lambda: "host:1")
    monkeypatch.setattr(peers, "join", joined.append)
    programs.join_processes()
    assert joined == [("host:1", 2, 1, 7), "host"]
    assert printed == ["Waiting for the other processes to start, for 7 s (--initialization_timeout)."]
