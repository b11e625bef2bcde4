"""A log file at a URL: objects cannot be added to, so that the log is sent whole, once a minute and at the end."""

from __future__ import annotations

import logging
import threading

from t5xpg.base import files

SEND_PERIOD = 60.0  # seconds


class StoreLogHandler(logging.Handler):
    """Adds log records to a text file at a URL; a kill loses those of the last minute.

    Args:
      path: of the file; what it holds already stays.
    """

    def __init__(self, path: str):
        super().__init__()
        self._path, self._lines = path, [files.read_text(path)] if files.exists(path) else []
        self._sent = len(self._lines)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_sending, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(f"{self.format(record)}\n")

    def send(self) -> None:
        """Writes the file, if there is something new."""
        count = len(self._lines)
        if count > self._sent:
            files.write_whole(self._path, "".join(self._lines[:count]))
            self._sent = count

    def close(self) -> None:
        """Sends the rest; to be called while threads can still be started, before Python ends."""
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            self._try_to_send()
        super().close()

    def _keep_sending(self) -> None:
        while not self._closed.wait(SEND_PERIOD):
            self._try_to_send()

    def _try_to_send(self) -> None:
        try:
            self.send()
        except OSError as error:  # the log is no reason to end a run; the next minute brings all of it
            self._lines.append(f"{self._path} was not sent: {error}\n")
