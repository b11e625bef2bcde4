"""The lock on a MODEL_DIR at gs:// or s3://: held once, taken over from the dead, lost to another that took it."""

import json
import os
import re
import subprocess
import sys
import threading

import pytest

from t5x.embedded import folder_lock, store_lock
from t5xpg.base import files, stores


class Clock:
    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def write_holder(bucket: str, **changes) -> None:
    holder = {"id": "other", **store_lock.this_process(), "since": Clock.now, "renewed": Clock.now, **changes}
    files.write_whole(f"{bucket}/.lock", json.dumps(holder))


def test_one_run_to_a_folder_which_says_whose_it_is(bucket):
    pattern = rf"^Another run, process {os.getpid()} on {re.escape(os.uname().nodename)} since .*MODEL_DIR {bucket}; "
    with folder_lock.lock_folder(bucket), pytest.raises(ValueError, match=pattern) as caught:
        folder_lock.lock_folder(bucket)
    assert "\n" not in str(caught.value)
    assert files.names_in(bucket) == []
    with folder_lock.lock_folder(f"{bucket}/"):
        assert files.names_in(bucket) == [".lock"]


def test_a_dead_process_of_this_machine_holds_nothing(bucket):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_holder(bucket, pid=ended.pid)
    store_lock.StoreLock(f"{bucket}/.lock", Clock()).close()
    write_holder(bucket, start="another process with the same number")
    store_lock.StoreLock(f"{bucket}/.lock", Clock()).close()


@pytest.mark.parametrize("content", ["12345", "", "[]"])
def test_a_lock_that_came_with_a_folder_from_a_disk_holds_nothing(bucket, content):
    files.write_whole(f"{bucket}/.lock", content)
    store_lock.StoreLock(f"{bucket}/.lock", Clock()).close()
    assert files.names_in(bucket) == []


def test_another_machines_lock_is_taken_over_once_it_is_stale(bucket):
    clock = Clock()
    write_holder(bucket, machine="elsewhere", host="elsewhere")
    clock.now += store_lock.STALE - 1
    with pytest.raises(ValueError, match="on elsewhere since .* Its last sign of life was 69 s ago; after 70 s"):
        store_lock.StoreLock(f"{bucket}/.lock", clock)
    clock.now += 2
    with store_lock.StoreLock(f"{bucket}/.lock", clock) as lock:
        clock.now += 50
        lock.renew()
        lock.check()
        assert json.loads(files.read_text(f"{bucket}/.lock"))["renewed"] == clock.now


def test_a_lock_lost_to_another_ends_the_run_and_stays_the_others(bucket):
    with store_lock.StoreLock(f"{bucket}/.lock", Clock()) as lock:
        write_holder(bucket, host="elsewhere")
        lock.renew()
        with pytest.raises(ValueError, match=rf"{bucket}/.lock is no longer this run's: process .* on elsewhere"):
            lock.check()
    assert json.loads(files.read_text(f"{bucket}/.lock"))["id"] == "other"


def test_of_two_that_see_no_lock_one_gets_it(bucket, monkeypatch):
    read = store_lock.read_holder
    found = iter([{}])
    monkeypatch.setattr(store_lock, "read_holder", lambda path: next(found, None) or read(path))
    write_holder(bucket)
    with pytest.raises(ValueError, match="Another run"):
        store_lock.StoreLock(f"{bucket}/.lock", Clock())


def test_where_nothing_can_be_written_is_one_line(stores):
    for scheme in ("gs", "s3"):
        with pytest.raises(ValueError, match=rf"^MODEL_DIR {scheme}://no-such-bucket/run cannot be used: .* no bucket"):
            folder_lock.lock_folder(f"{scheme}://no-such-bucket/run")
    with pytest.raises(ValueError, match=r"^MODEL_DIR https://host/run: https:// can only be read"):
        folder_lock.lock_folder("https://host/run")


def test_a_lock_that_cannot_be_read_back_may_be_another_s_by_then(bucket, monkeypatch):
    def read_late(path):
        write_holder(bucket)
        raise stores.StoreError(f"{path}: the store failed")

    with monkeypatch.context() as patch, pytest.raises(stores.StoreError, match="the store failed"):
        patch.setattr(store_lock, "read_holder", read_late)
        store_lock.StoreLock(f"{bucket}/.lock", Clock())
    assert store_lock.read_holder(f"{bucket}/.lock")["id"] == "other"


def test_a_lock_that_its_run_removes_as_another_takes_it_is_the_other_s(bucket, monkeypatch):
    look = store_lock.look
    removals = iter([files.remove])

    def look_while_it_is_removed(path):
        seen = look(path)
        next(removals, str)(path)
        return seen

    write_holder(bucket, machine="elsewhere", renewed=Clock.now - store_lock.STALE)
    monkeypatch.setattr(store_lock, "look", look_while_it_is_removed)
    store_lock.StoreLock(f"{bucket}/.lock", Clock()).close()


def test_a_run_that_slept_looks_whose_the_lock_is_before_it_saves(bucket):
    """Nothing has renewed it meanwhile, or a renewal has got no answer yet."""
    clock = Clock()
    with store_lock.StoreLock(f"{bucket}/.lock", clock) as lock:
        clock.now += store_lock.RENEWAL
        lock.check_now()
        assert store_lock.read_holder(f"{bucket}/.lock")["renewed"] == Clock.now
        clock.now += store_lock.STALE
        lock.check_now()
        assert store_lock.read_holder(f"{bucket}/.lock")["renewed"] == clock.now
        clock.now += store_lock.STALE
        write_holder(bucket, host="elsewhere")
        lock.check()
        with pytest.raises(ValueError, match="is no longer this run's: process .* on elsewhere"):
            lock.check_now()


def test_a_renewal_that_overtakes_an_earlier_one_of_the_same_run_loses_nothing(bucket, monkeypatch):
    replace = files.replace
    with store_lock.StoreLock(f"{bucket}/.lock", Clock()) as lock:

        def replace_after_a_late_request(path, content, found):
            replace(path, content + b" ", found)
            replace(path, content, found)

        monkeypatch.setattr(files, "replace", replace_after_a_late_request)
        lock.renew()
        lock.check()
    assert files.names_in(bucket) == []


def test_a_lock_that_cannot_be_removed_fails_no_run_and_is_free_once_stale(bucket, monkeypatch, caplog):
    path, clock = f"{bucket}/.lock", Clock()

    def fail(path):
        raise stores.StoreError(f"{path}: the store failed")

    with monkeypatch.context() as patch:
        patch.setattr(files, "remove", fail)
        store_lock.StoreLock(path, clock).close()
    assert f"{path} was not removed, and counts as dead after 70 s: {path}: the store failed" in caplog.text
    with pytest.raises(ValueError, match=rf"^Another run, process {os.getpid()} on "):
        store_lock.StoreLock(path, clock)
    clock.now += store_lock.STALE
    store_lock.StoreLock(path, clock).close()


def test_a_renewal_without_an_answer_keeps_no_run_from_ending(bucket, monkeypatch):
    asked, answer = threading.Event(), threading.Event()
    monkeypatch.setattr(store_lock, "RENEWAL", 0.1)
    monkeypatch.setattr(store_lock.StoreLock, "renew", lambda lock: (asked.set(), answer.wait()))
    lock = store_lock.StoreLock(f"{bucket}/.lock")
    assert asked.wait(60)
    closing = threading.Thread(target=lock.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    answer.set()


def test_of_two_that_take_over_the_same_dead_run_s_lock_one_gets_it(bucket, monkeypatch):
    path, check, first = f"{bucket}/.lock", store_lock.StoreLock._check_dead, []

    def check_while_another_takes_it(self, holder):
        if not first:
            first.append("it is being made")
            first[:] = [store_lock.StoreLock(path, Clock())]
        check(self, holder)

    write_holder(bucket, machine="elsewhere", renewed=Clock.now - store_lock.STALE)
    monkeypatch.setattr(store_lock.StoreLock, "_check_dead", check_while_another_takes_it)
    with pytest.raises(ValueError, match=rf"^Another run, process {os.getpid()} on "):
        store_lock.StoreLock(path, Clock())
    with first[0] as lock:
        lock.renew()
        lock.check()


def test_a_renewal_overwrites_nobody_who_came_after_it_was_begun(bucket, monkeypatch):
    read = store_lock.read_holder
    with store_lock.StoreLock(f"{bucket}/.lock", Clock()) as lock:
        monkeypatch.setattr(store_lock, "read_holder", lambda path: (read(path), write_holder(bucket))[0])
        lock.renew()
        with pytest.raises(ValueError, match="no longer this run's"):
            lock.check()
    assert read(f"{bucket}/.lock")["id"] == "other"
