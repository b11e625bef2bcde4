"""The connections between the processes of a run, made in one process. Real ones: tests/faults/test_processes.py."""

import json
import socket
import threading
import time

import jax
import numpy as np
import pytest
import tensorflow as tf

from t5x.embedded import peers


@pytest.fixture
def three(monkeypatch):
    """Process 0 of three: (its connections, the others' ends of them by process)."""
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    connections, others = peers._Connections(), {}
    for index in (1, 2):
        connections.sockets[index], others[index] = socket.socketpair()
    connections.start_readers()
    monkeypatch.setattr(peers, "GRACE", 0.1)
    yield connections, others
    for one in (*connections.sockets.values(), *others.values()):
        one.close()


def heard(connection: socket.socket) -> dict:
    connection.settimeout(10)
    with connection.makefile("rb") as lines:
        return json.loads(lines.readline())


def test_the_first_failure_is_passed_on_to_all(three):
    connections, others = three
    failure = {"process": 2, "line": "the disk is full", "code": 1}
    others[2].sendall(json.dumps(failure).encode() + b"\n")
    assert connections.known.wait(10) and connections.first == failure
    others[1].sendall(json.dumps({"process": 1, "line": "process 2 does not answer", "code": 1}).encode() + b"\n")
    assert heard(others[1]) == heard(others[2]) == failure


def test_one_that_leaves_is_no_failure_and_one_that_is_gone_is(three):
    connections, others = three
    others[1].sendall(b'{"leaves": true}\n')
    others[1].close()
    assert not connections.known.wait(0.5)
    others[2].close()
    assert connections.known.wait(10) and connections.first["process"] == 2 and connections.first["line"] == peers.GONE


def test_a_line_that_a_kill_has_cut_is_one_that_is_gone(three):
    connections, others = three
    others[2].sendall(b'{"process": 2, "li')
    others[2].close()
    assert connections.known.wait(10) and connections.first["process"] == 2 and connections.first["line"] == peers.GONE


@pytest.mark.parametrize("own", [True, False])
def test_process_0_ends_after_the_others(three, monkeypatch, own):
    connections, others = three
    gone, ends = [], []

    def leave():
        for index in others:
            assert heard(others[index])["line"] == "the disk is full"
            time.sleep(0.2)
            gone.append(index)
            others[index].close()

    monkeypatch.setattr(peers, "GRACE", 60)
    monkeypatch.setattr(peers, "_connections", connections)
    monkeypatch.setattr(peers.signals, "end_now", lambda code: ends.append((code, list(gone))))
    leaving = threading.Thread(target=leave, daemon=True)
    leaving.start()
    if own:
        peers.tell_before_the_end("the disk is full", 3)
        peers.signals.end_now(3)
    else:
        connections.fail({"process": 2, "line": "the disk is full", "code": 3})
        connections.end_with_the_first()
    assert ends == [(3, [1, 2])]


def test_a_process_that_cannot_say_who_failed_first_ends_all_the_same(three, monkeypatch):
    def fail(*args, **settings):
        raise BrokenPipeError

    ends = []
    monkeypatch.setattr(peers.console, "say", fail)
    monkeypatch.setattr(peers.signals, "end_now", ends.append)
    connections, _ = three
    connections.fail({"process": 2, "line": "the disk is full", "code": 3})
    with pytest.raises(BrokenPipeError):
        connections.end_with_the_first()
    assert ends == [3]


@pytest.mark.parametrize(
    ("code", "status", "line"), [(3, 3, "it exited with 3"), ("the disk is full", 1, "the disk is full")]
)
def test_an_exit_that_is_no_success_is_a_failure(three, monkeypatch, code, status, line):
    connections, others = three
    said = []
    monkeypatch.setattr(peers, "_connections", connections)
    monkeypatch.setattr(peers.signals, "say_once", said.append)
    monkeypatch.setattr(peers.signals, "end_within", lambda seconds, code, line: None)
    with pytest.raises(SystemExit) as end, peers.reporting(), peers.reporting():
        raise SystemExit(code)
    assert end.value.code == status and said == [f"t5xpg: error: {line}"]
    peers.leave(end.value)
    others[2].settimeout(0.5)
    with others[2].makefile("rb") as lines:
        assert json.loads(lines.readline()) == {"process": 0, "line": line, "code": status}
        with pytest.raises(TimeoutError):
            lines.readline()


@pytest.mark.parametrize(("code", "stopping"), [(0, None), (None, None), (143, 15)])
def test_an_exit_that_all_agreed_on_is_none(three, monkeypatch, code, stopping):
    connections, others = three
    monkeypatch.setattr(peers, "_connections", connections)
    monkeypatch.setattr(peers.signals, "stopping", lambda: stopping)
    with pytest.raises(SystemExit) as end, peers.reporting():
        raise SystemExit(code)
    peers.leave(end.value)
    assert heard(others[1]) == heard(others[2]) == {"leaves": True}


def test_process_0_is_reached_by_either_kind_of_address():
    assert [peers.host_of(each) for each in ("[::1]:1234", "10.0.0.1:80", "host:1")] == ["::1", "10.0.0.1", "host"]
    with peers.listen() as listener:
        for host in ["127.0.0.1", "::1"][: 1 + socket.has_dualstack_ipv6()]:
            socket.create_connection((host, listener.getsockname()[1]), timeout=10).close()


def test_whoever_does_not_know_the_word_is_not_let_in(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    listener = socket.create_server(("localhost", 0))
    hellos = [b"GET / HTTP/1.1", json.dumps({"word": "guess", "process": 1}).encode(), b'["word"]', b""]
    strangers = []
    for hello in hellos:
        strangers.append(socket.create_connection(listener.getsockname()))
        strangers[-1].sendall(hello.ljust(peers.HELLO_LENGTH) if hello else b"")
    strangers[-1].close()
    member = socket.create_connection(listener.getsockname())
    member.sendall(json.dumps({"word": "secret", "process": 1}).encode().ljust(peers.HELLO_LENGTH))
    sockets: dict[int, socket.socket] = {}
    peers.accept(listener, "secret", sockets)
    assert sockets.keys() == {1} and sockets[1].getpeername() == member.getsockname()
    for one in (*strangers, member, *sockets.values()):
        one.close()


def test_an_error_in_the_data_is_told_without_tf_data_s_wrapping():
    def rows():
        yield 1
        raise ValueError("corpus.jsonl:7: no key 'text'\nand more")

    ds = tf.data.Dataset.from_generator(rows, output_signature=tf.TensorSpec((), tf.int32))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(ds)
    assert peers.first_line(caught.value) == "corpus.jsonl:7: no key 'text'"
    assert peers.first_line(ValueError("one\ntwo")) == "one"
    assert peers.first_line(KeyError()) == "KeyError"


def test_one_process_alone_has_no_connections_and_its_errors_pass(monkeypatch):
    peers.join()
    assert peers._connections is None
    peers.leave()
    with pytest.raises(ZeroDivisionError), peers.reporting():
        np.divmod(1, 1)
        1 / 0  # noqa: B018
