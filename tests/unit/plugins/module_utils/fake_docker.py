# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A docker daemon's answers on a Unix socket, in a thread."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

IMAGE_ID = "sha256:" + "5" * 64


class FakeDocker:
    """What the daemon has; tests change it."""

    def __init__(self) -> None:
        self.containers: list[dict[str, Any]] = []
        self.images: set[str] = set()
        self.image_labels: dict[str, str] | None = None
        self.root_folder = "/var/lib/docker"
        self.asked: list[str] = []
        self.broken: dict[str, tuple[int, bytes]] = {}

    def add(
        self,
        name: str,
        *,
        chips: list[int] | None = None,
        cluster: str | None = None,
        privileged: bool = False,
        state: str = "running",
        id: str | None = None,
    ) -> str:
        """One more container; returns its id."""
        own_id = id or f"{len(self.containers) + 1:064x}"
        devices = [f"/dev/davinci{chip}" for chip in chips or []] + ["/dev/davinci_manager"]
        settings = {
            "Privileged": privileged,
            "Devices": [{"PathOnHost": device, "PathInContainer": "/dev/x"} for device in devices] if chips else None,
        }
        labels = {"pd_serving.cluster": cluster} if cluster is not None else None
        listed = {"Id": own_id, "Names": [f"/other/{name}", f"/{name}"], "Labels": labels, "State": state}
        self.containers.append({"listed": listed, "inspected": {"Id": own_id, "HostConfig": settings}})
        return own_id

    def answer(self, place: str) -> tuple[int, bytes]:
        """Status and body of one question."""
        self.asked.append(place)
        parts = urlsplit(place)
        if parts.path in self.broken:
            return self.broken[parts.path]
        if parts.path == "/_ping":
            return 200, b"OK"
        found = self._find(unquote(parts.path), parts.query)
        return (404, b'{"message":"no such thing"}') if found is None else (200, json.dumps(found).encode())

    def _find(self, path: str, query: str) -> Any:
        if path == "/version":
            return {"Version": "28.2.2", "ApiVersion": "1.50"}
        if path == "/info":
            return {"DockerRootDir": self.root_folder}
        if path == "/containers/json":
            assert query == "all=1"
            return [one["listed"] for one in self.containers]
        if path.startswith("/images/"):
            image = {"Id": IMAGE_ID, "Config": {"Labels": self.image_labels}}
            return image if path[len("/images/") : -len("/json")] in self.images else None
        for one in self.containers:
            if path == f"/containers/{one['listed']['Id']}/json":
                return one["inspected"]
        return None


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextlib.contextmanager
def serving(path: Path) -> Iterator[FakeDocker]:
    """Run a daemon behind a socket."""
    daemon = FakeDocker()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = daemon.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *args: Any) -> None:
            pass

    path.parent.mkdir(parents=True, exist_ok=True)
    with _Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield daemon
        finally:
            server.shutdown()
            thread.join()
    path.unlink()
