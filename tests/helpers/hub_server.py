"""A Hugging Face Hub small enough for a test: one dataset repository served over loopback.

It answers the requests that `datasets.load_dataset` makes when HF_ENDPOINT points here (found by
logging them), so that the real client code runs, with no network and nothing replaced:

    HEAD       /                                               whether the hub is there
    HEAD, GET  /datasets/<repo>/resolve/<revision>/<path>      a file, in ranges when asked
    GET        /api/datasets/<repo>[/revision/<revision>]      the repository's description
    GET        /api/datasets/<repo>/tree/<revision>[/<folder>] files by folder
"""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = hashlib.sha1(b"the only commit").hexdigest()


class HubServer(http.server.ThreadingHTTPServer):
    """Serves `files` ({path in the repository: bytes}) as the dataset repository `repo`.

    A context manager; `endpoint` is its address and `requests` what it was asked, in order.
    """

    def __init__(self, repo: str, files: dict[str, bytes]):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repo, self.files = repo, files
        self.requests: list[str] = []
        self.endpoint = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc_info) -> None:
        self.shutdown()
        self.server_close()

    def entries(self, folder: str = "") -> list[dict]:
        """What the Hub says of every file and folder below `folder`."""
        paths = [path for path in self.files if path.startswith(folder)]
        folders = {path.rsplit("/", 1)[0] for path in paths if "/" in path[len(folder) :]}
        return [
            *({"type": "directory", "path": path, "oid": COMMIT, "size": 0} for path in folders),
            *(
                {
                    "type": "file",
                    "path": path,
                    "oid": hashlib.sha1(self.files[path]).hexdigest(),
                    "size": len(self.files[path]),
                }
                for path in paths
            ),
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: HubServer

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_GET

    def log_message(self, *args) -> None:
        """Keeps the test's output clean; `HubServer.requests` has the record."""

    def _answer(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        repo = re.escape(self.server.repo)
        if path == "/":
            self._send(b"a hub")
        elif match := re.fullmatch(rf"/datasets/{repo}/resolve/[^/]+/(.+)", path):
            self._send_file(match[1])
        elif re.fullmatch(rf"/api/datasets/{repo}(/revision/[^/]+)?", path):
            siblings = [{"rfilename": name} for name in self.server.files]
            self._send_json({"id": self.server.repo, "sha": COMMIT, "siblings": siblings})
        elif match := re.fullmatch(rf"/api/datasets/{repo}/tree/[^/]+/?(.*)", path):
            self._send_json(self.server.entries(match[1]))
        else:
            self._send(b"", 404, {"X-Error-Code": "RepoNotFound"})

    def _send_file(self, name: str) -> None:
        content = self.server.files.get(name)
        if content is None:
            self._send(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            self._send(content, 200, headers)
            return
        first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(content[first : last + 1], 206, headers)

    def _send_json(self, value) -> None:
        self._send(json.dumps(value).encode(), 200, {"Content-Type": "application/json"})

    def _send(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
