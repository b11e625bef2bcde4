"""A log at a URL: every start's lines stay, in whatever order they are sent, and the last ones before a sudden end."""

import logging
import threading

import pytest

from t5x.embedded import signals, store_log
from t5xpg.base import files, stores


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("run", logging.INFO, "", 0, message, (), None)


def test_two_starts_keep_each_other_s_lines(bucket):
    path = f"{bucket}/run/train.log"
    files.write_whole(path, "before\n")
    first = store_log.StoreLogHandler(path)
    first.emit(record("first"))
    second = store_log.StoreLogHandler(path)
    first.close()
    second.emit(record("second"))
    second.send()
    third = store_log.StoreLogHandler(path)
    third.emit(record("refused"))
    third.close()
    second.emit(record("second again"))
    second.close()
    assert files.read_text(path).splitlines() == ["before", "first", "second", "refused", "second again"]


def test_lines_that_came_while_others_were_written_stay(bucket, monkeypatch):
    path, read, others = f"{bucket}/train.log", files.read_bytes, [b"b\n", b"c\n"]
    files.write_whole(path, "a\n")

    def read_while_another_writes(path):
        content = read(path)
        if others:
            files.write_whole(path, content + others.pop(0))
        return content

    monkeypatch.setattr(files, "read_bytes", read_while_another_writes)
    files.append(path, "d\n")
    assert read(path) == b"a\nb\nc\nd\n"
    others.extend([b"x"] * 20)
    with pytest.raises(files.ChangedError):
        files.append(path, "e\n")


def test_what_a_store_does_not_take_comes_with_the_next_lines(monkeypatch):
    sent, answers = [], [stores.StoreError("gs://b/train.log: the store failed")]

    def append(path, text):
        if answers:
            raise answers.pop()
        sent.append(text)

    monkeypatch.setattr(files, "exists", lambda path: False)
    monkeypatch.setattr(files, "append", append)
    handler = store_log.StoreLogHandler("gs://b/train.log")
    handler.emit(record("one"))
    handler.try_to_send()
    handler.close()
    assert sent == ["one\ngs://b/train.log was not sent: gs://b/train.log: the store failed\n"]


def test_what_is_not_utf_8_keeps_no_line_from_the_log_and_closing_twice_is_nothing(bucket):
    path = f"{bucket}/train.log"
    files.write_whole(path, b"\xff\n")
    handler = store_log.StoreLogHandler(path)
    handler.emit(record("\ud800 é"))
    handler.close()
    handler.close()
    assert files.read_bytes(path) == b"\xff\n\\ud800 " + "é\n".encode()


def test_a_log_whose_request_is_never_answered_is_closed_all_the_same(monkeypatch):
    monkeypatch.setattr(files, "exists", lambda path: False)
    monkeypatch.setattr(store_log, "SEND_PERIOD", 0.1)
    asked, answer = threading.Event(), threading.Event()
    monkeypatch.setattr(files, "append", lambda path, text: (asked.set(), answer.wait()))
    handler = store_log.StoreLogHandler("gs://b/train.log")
    handler.emit(record("one"))
    assert asked.wait(60)
    closing = threading.Thread(target=handler.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    answer.set()


def test_the_log_is_sent_before_a_sudden_end_but_not_waited_for_long(bucket, monkeypatch):
    ends = []
    monkeypatch.setattr(signals.os, "_exit", ends.append)
    handler = store_log.StoreLogHandler(f"{bucket}/train.log")
    logging.getLogger().addHandler(handler)
    try:
        handler.emit(record("the last word"))
        signals.end_now(3)
        assert ends == [3] and files.read_text(f"{bucket}/train.log") == "the last word\n"
        with handler._sending:  # a request that is never answered
            store_log.send_rest(0.1)
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
