"""Chromium without a window, told what to do over its pipe for debuggers (the Chrome DevTools Protocol)."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--disable-extensions", "--mute-audio", "--remote-debugging-pipe", "--force-color-profile=srgb"),
)


def find() -> str | None:
    """Returns the path of a Chromium; None where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextlib.contextmanager
def start(profile: str) -> Iterator[Page]:
    """Yields an empty page of a new browser, whose profile is made in the folder `profile`."""
    to_browser, commands = os.pipe()
    answers, from_browser = os.pipe()
    # The browser reads its file 3 and writes to 4; above them nothing can be in the way.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_browser, from_browser)]
    os.close(to_browser)
    os.close(from_browser)
    actions = [(os.POSIX_SPAWN_DUP2, high[0], 3), (os.POSIX_SPAWN_DUP2, high[1], 4)]
    actions += [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    path = find() or "chromium"
    command = [path, *SWITCHES, f"--user-data-dir={profile}", "about:blank"]
    environment = os.environ | {"HOME": profile, "XDG_CONFIG_HOME": profile, "XDG_CACHE_HOME": profile}
    process = os.posix_spawn(path, command, environment, file_actions=actions, setpgroup=0)
    for fd in high:
        os.close(fd)
    try:
        with os.fdopen(commands, "wb", 0) as writer, os.fdopen(answers, "rb", 0) as reader:
            yield Page(writer, reader)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)


class Page:
    """A tab. `complaints` are errors and warnings of its console, and what it asked of the network."""

    def __init__(self, writer, reader):
        self._writer, self._reader, self._rest, self._number = writer, reader, b"", 0
        self._session: str | None = None
        self.complaints: list[str] = []
        self._loaded = False
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(each["targetId"] for each in targets if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command; returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        self._writer.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._reader.read(1 << 20)
            assert more, "Chromium has ended"
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message = json.loads(line)
        self._notice(message.get("method"), message.get("params", {}))
        return message

    def _notice(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent" and not params["request"]["url"].startswith(("file:", "data:")):
            self.complaints.append(f"asked for {params['request']['url']}")

    def look(self, path: os.PathLike | str, width: int, dark: bool = False, script: bool = True) -> None:
        """Opens a file at a width in pixels, in the light or the dark, with its script or without."""
        self.complaints.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self._loaded = False
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}")
        while not self._loaded:
            self._next()

    def run(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39, "End": 35, "Home": 36}[key]
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def picture(self, whole: bool = True) -> bytes:
        """Returns a PNG, of the whole page or of its first screen."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
