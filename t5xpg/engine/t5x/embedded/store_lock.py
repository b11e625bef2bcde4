"""The lock on a folder of an object store: a small object that says whose it is, renewed while its run lives."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from absl import logging

from t5xpg.base import files, stores

RENEWAL, STALE = 20.0, 70.0  # seconds between renewals, and after which an owner that missed three is taken for dead


class StoreLock:
    """Holds a lock object from its making to `close`.

    The object has the host, the process and the time of the last renewal. Where the store knows conditions, it is
    created on condition that there is none, and overwritten on condition that it is still what was read. Between
    machines whose clocks differ by less than a minute, a lock that was not renewed for 70 s is taken over; one of a
    process of this machine that has ended is at once.

    Args:
      path: the object's URL.
      clock: gives the time in seconds.

    Raises:
      ValueError: another run holds it.
      StoreError: the store cannot be written to.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.time):
        self._path, self._clock = path, clock
        self._owner = {"id": uuid.uuid4().hex, **this_process(), "since": clock()}
        self._renewed, self._lost = 0.0, ""
        for _ in range(2):  # once more where the lock was removed meanwhile
            with contextlib.suppress(FileExistsError, files.ChangedError):
                self._take()
            if holder := read_holder(path):
                break
        if not self._owns(holder):
            raise self._refusal(holder or {})
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lock", daemon=True)
        self._thread.start()

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(self, *exc_info) -> None:
        self.close()

    def check(self) -> None:
        """Raises ValueError once another run has taken the lock: what this one writes would be mixed with its files."""
        if self._lost:
            raise ValueError(self._lost)

    def check_now(self) -> None:
        """As `check`; renews the lock first if that is overdue, as after a request without an answer or a sleep.

        Raises:
          StoreError: the store cannot be asked.
        """
        if self._clock() - self._renewed > STALE - RENEWAL:
            self.renew()
        self.check()

    def renew(self) -> None:
        """Writes the time into the lock, if it is still this run's."""
        found, holder = look(self._path)
        if found and self._owns(holder):
            with contextlib.suppress(files.ChangedError):
                return self._write(functools.partial(files.replace, found=found))
            holder = read_holder(self._path)
            if self._owns(holder):  # an earlier renewal, whose answer was lost, or the other thread's
                return
        whose = describe(holder) if holder else "it is not there any more"
        self._lost = f"The lock {self._path} is no longer this run's: {whose}. Start the command again later."

    def close(self) -> None:
        """Ends the renewals and removes the lock, if it is still this run's."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._thread.join(RENEWAL)
        try:
            if not self._lost and self._owns(read_holder(self._path)):
                files.remove(self._path)
        except OSError as error:  # the run is over, however it ended
            logging.warning("%s was not removed, and counts as dead after %.0f s: %s", self._path, STALE, error)

    def _take(self) -> None:
        """Creates the lock or takes over a dead run's; another that does so first makes the store refuse."""
        found, holder = look(self._path)
        if found is None:
            self._write(files.create)
        else:
            if holder:  # otherwise it came with a folder from a disk, whose lock is of another kind
                self._check_dead(holder)
            self._write(functools.partial(files.replace, found=found))

    def _write(self, write: Callable[[str, bytes], None]) -> None:
        now = self._clock()
        write(self._path, json.dumps(self._owner | {"renewed": now}).encode())
        self._renewed = now

    def _owns(self, holder: Mapping[str, Any] | None) -> bool:
        return holder is not None and holder.get("id") == self._owner["id"]

    def _keep(self) -> None:
        while not self._closed.wait(RENEWAL) and not self._lost:
            self._try_to_renew()

    def _try_to_renew(self) -> None:
        try:
            self.renew()
        except OSError as error:  # the next renewal is soon; until the lock is stale nothing is lost
            logging.warning("%s was not renewed: %s", self._path, error)

    def _check_dead(self, holder: Mapping[str, Any]) -> None:
        """Raises ValueError unless the run that holds the lock has ended, as far as can be known."""
        ended = holder.get("machine") == self._owner["machine"] and process_start(holder["pid"]) != holder["start"]
        if not ended and self._clock() - holder.get("renewed", 0) < STALE:
            raise self._refusal(holder)

    def _refusal(self, holder: Mapping[str, Any]) -> ValueError:
        folder, seen = os.path.dirname(self._path), self._clock() - holder.get("renewed", 0)
        return ValueError(
            f"Another run, {describe(holder)}, writes to MODEL_DIR {folder}; let it end, stop it, or take another "
            f"MODEL_DIR. Its last sign of life was {max(seen, 0):.0f} s ago; after {STALE:.0f} s it counts as dead."
        )


def look(path: str) -> tuple[files.Status | None, dict[str, Any] | None]:
    """Returns (what the store knows the lock by, what it says or something newer); (None, None) where there is none."""
    try:
        found = files.status(path)
    except stores.MissingError:
        return None, None
    return found, read_holder(path)


def read_holder(path: str) -> dict[str, Any] | None:
    """Returns what a lock says; None where there is none, {} where it is not of this kind."""
    with contextlib.suppress(FileNotFoundError):
        text = files.read_text(path)
        with contextlib.suppress(json.JSONDecodeError):
            found = json.loads(text)
            return found if isinstance(found, dict) else {}
        return {}
    return None


def describe(holder: Mapping[str, Any]) -> str:
    """Returns "process 12 on host since 2026-11-22 07:41"."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(holder.get("since", 0)))
    return f"process {holder.get('pid', '?')} on {holder.get('host', '?')} since {since}"


def this_process() -> dict[str, Any]:
    """Returns {"host", "machine", "pid", "start"}; "machine" differs between boots, and between containers."""
    parts = [platform.node()]
    with contextlib.suppress(OSError):  # not Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    machine = " ".join(parts)
    return {"host": platform.node(), "machine": machine, "pid": os.getpid(), "start": process_start(os.getpid())}


def process_start(pid: int) -> str:
    """Returns when a process of this machine started, in the kernel's ticks; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def hold(model_dir: str, name: str) -> StoreLock:
    """Returns the lock `name` of a folder at a URL; raises ValueError in one line where it cannot be had."""
    try:
        return StoreLock(f"{stores.absolute(model_dir)}/{name}")
    except stores.StoreError as error:
        raise ValueError(f"MODEL_DIR {model_dir} cannot be used: {error}") from error
