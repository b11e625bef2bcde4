"""The half of a Hugging Face Hub that takes uploads, served over loopback.

It answers what `HfApi.create_repo` and `HfApi.upload_folder` ask when HF_ENDPOINT points here (found by logging it):

    POST  /api/repos/create                          makes a repository, or says that it is there
    GET   /api/models/<repo>                         who may see it
    POST  /api/validate-yaml                         looks at the model card's first lines
    POST  /api/models/<repo>/preupload/<revision>    how to send each file: in the commit itself, it says
    POST  /api/models/<repo>/commit/<revision>       JSON lines: a header, then files in base64
"""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading


class UploadServer(http.server.ThreadingHTTPServer):
    """A context manager; `repos` holds {repository: {path: bytes}}, `private` which of them are, {repository: bool},
    and `tokens` what the requests were signed with."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.endpoint = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> UploadServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc_info) -> None:
        self.shutdown()
        self.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    server: UploadServer

    def log_message(self, *args) -> None:
        """Keeps the test's output clean; `UploadServer.requests` has the record."""

    def do_GET(self) -> None:
        self.server.requests.append(f"GET {self.path}")
        repo = self.path.removeprefix("/api/models/")
        if repo in self.server.repos:
            self._send({"id": repo, "private": self.server.private[repo], "siblings": []})
        else:
            self._send({}, 404)

    def do_POST(self) -> None:
        self.server.requests.append(f"POST {self.path}")
        self.server.tokens.add(self.headers.get("Authorization"))
        body = self._body()
        if self.path == "/api/repos/create":
            request = json.loads(body)
            repo = "/".join(filter(None, (request.get("organization"), request["name"])))
            answer = {"url": f"{self.server.endpoint}/{repo}"}
            if repo in self.server.repos:
                self._send(answer | {"error": "You already created this model repo"}, 409)
            else:
                self.server.repos[repo], self.server.private[repo] = {}, request.get("visibility") == "private"
                self._send(answer)
        elif self.path == "/api/validate-yaml":
            self._send({"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/(.+)/preupload/main", self.path):
            files = json.loads(body)["files"]
            self._send({"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]})
        elif match := re.fullmatch(r"/api/models/(.+)/commit/main", self.path):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.server.repos[match[1]][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._send({"commitUrl": f"{self.server.endpoint}/{match[1]}/commit/1", "commitOid": "1", "success": True})
        else:
            self._send({}, 404)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _send(self, value: dict, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
