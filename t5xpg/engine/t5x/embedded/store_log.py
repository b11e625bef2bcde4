"""A log file at a URL, which gets what is new in it once a minute and at the end."""

from __future__ import annotations

import logging
import threading

from t5xpg.base import files

SEND_PERIOD = 60.0  # seconds


class StoreLogHandler(logging.Handler):
    """Adds log records to a text file at a URL; a kill loses those of the last minute.

    What the file holds already stays, also what another run adds meanwhile: one that ends as this one begins, or that
    is refused.

    Args:
      path: of the file.

    Raises:
      StoreError: the store cannot be asked for it.
    """

    def __init__(self, path: str):
        super().__init__()
        files.exists(path)
        self._path, self._lines = path, list[str]()
        self._sending = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_sending, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{self.format(record)}\n")

    def send(self) -> None:
        """Adds to the file what is new."""
        with self._sending:
            if count := len(self._lines):
                files.append(self._path, "".join(self._lines[:count]))
                del self._lines[:count]

    def close(self) -> None:
        """Sends the rest, for a minute at most; to be called while threads can be started, before Python ends."""
        self._ended.set()
        self._thread.join(SEND_PERIOD)
        super().close()

    def _keep_sending(self) -> None:
        while not self._ended.wait(SEND_PERIOD):
            self.try_to_send()
        self.try_to_send()

    def try_to_send(self) -> None:
        try:
            self.send()
        except OSError as error:  # the log is no reason to end a run; the next minute brings all of it
            self._lines.append(f"{self._path} was not sent: {error}\n")


def send_rest(seconds: float = 5.0) -> None:
    """Sends what the logs of this process hold, for so long at most: it is about to end at once."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, StoreLogHandler):
            thread = threading.Thread(target=handler.try_to_send, name="last log", daemon=True)
            thread.start()
            thread.join(seconds)
