# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The HTTP/1.1 that an OpenAI server needs. ``http.server`` would cost each process 8 MB and 40 ms of CPU."""

from __future__ import annotations

import json
import socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_LONGEST_LINE = 65536
_MOST_HEADERS = 256
_LARGEST_BODY = 64 << 20


class BadRequest(Exception):
    """What arrived is not an HTTP request that this server understands."""


class Request:
    __slots__ = ("body", "headers", "method", "path")

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self.method = method
        self.path = path
        self.headers = headers
        self.body = body


class Exchange:
    """One request and the way to answer it."""

    def __init__(self, request: Request, sock: socket.socket, peer: str) -> None:
        self.request = request
        self.peer = peer
        self.answered: int | None = None
        self._sock = sock

    def send(self, status: int, body: bytes | str | dict[str, Any], kind: str = "application/json") -> None:
        data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
        self._head(status, f"content-type: {kind}\r\ncontent-length: {len(data)}\r\n", data)

    def start_stream(self) -> None:
        self._head(200, "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n", b"")

    def event(self, data: str | dict[str, Any]) -> None:
        line = f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()
        self._sock.sendall(b"%x\r\n%s\r\n" % (len(line), line))

    def end_stream(self) -> None:
        self._sock.sendall(b"0\r\n\r\n")

    def _head(self, status: int, headers: str, data: bytes) -> None:
        self.answered = status
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nserver: uvicorn\r\n{headers}\r\n"
        self._sock.sendall(head.encode("latin-1") + data)


class Server:
    """Keep-alive connections, one thread each; a thread that waits costs nothing here."""

    def __init__(self, sock: socket.socket, handle: Callable[[Exchange], None]) -> None:
        self._sock = sock
        self._handle = handle

    def serve_forever(self) -> None:
        while True:
            sock, address = self._sock.accept()
            threading.Thread(target=self._converse, args=(sock, f"{address[0]}:{address[1]}"), daemon=True).start()

    def _converse(self, sock: socket.socket, peer: str) -> None:
        with sock, sock.makefile("rb") as reader:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self._one(sock, reader, peer):
                    pass
            except ConnectionError:  # the client left; what it asked for was already accounted for
                return

    def _one(self, sock: socket.socket, reader: BinaryIO, peer: str) -> bool:
        """Serve one request. Returns whether the connection stays open."""
        try:
            request = read_request(sock, reader)
        except BadRequest as exc:
            text = f"Invalid HTTP request received: {exc}.\n".encode()
            head = b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            sock.sendall(head % len(text) + text)
            return False
        if request is None:
            return False
        self._handle(Exchange(request, sock, peer))
        return request.headers.get("connection", "").lower() != "close"


def read_request(sock: socket.socket, reader: BinaryIO) -> Request | None:
    """The next request of a connection, None when the client is done."""
    line = reader.readline(_LONGEST_LINE)
    if not line:
        return None
    words = line.decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest("request line")
    headers = _read_headers(reader)
    if words[2] == "HTTP/1.0":
        headers.setdefault("connection", "close")
    if headers.get("expect", "").lower() == "100-continue":
        sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(words[0], words[1].partition("?")[0], headers, _read_body(reader, headers))


def _read_headers(reader: BinaryIO) -> dict[str, str]:
    headers: dict[str, str] = {}
    for _ in range(_MOST_HEADERS):
        line = reader.readline(_LONGEST_LINE)
        if line in (b"\r\n", b"\n"):
            return headers
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise BadRequest("header line")
        headers[name.strip().lower()] = value.strip()
    raise BadRequest("too many headers")


def _read_body(reader: BinaryIO, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        return _read_chunks(reader)
    length = headers.get("content-length", "0")
    if not length.isdigit() or int(length) > _LARGEST_BODY:
        raise BadRequest("content-length")
    return _read_exactly(reader, int(length))


def _read_chunks(reader: BinaryIO) -> bytes:
    body = b""
    while True:
        try:
            size = int(reader.readline(_LONGEST_LINE).partition(b";")[0], 16)
        except ValueError:
            raise BadRequest("chunk size") from None
        if size < 0 or len(body) + size > _LARGEST_BODY:
            raise BadRequest("chunk size")
        body += _read_exactly(reader, size)
        reader.readline(_LONGEST_LINE)
        if not size:
            return body


def _read_exactly(reader: BinaryIO, length: int) -> bytes:
    data = reader.read(length)
    if len(data) != length:
        raise BadRequest("the body is shorter than announced")
    return data


def _split_url(url: str) -> tuple[str, str, str]:
    """Host, port and path of a plain http address. Raises ValueError."""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    host, _, port = place.rpartition(":")
    if scheme != "http" or not host or not port.isdigit():
        raise ValueError(f"not a http://host:port/ address: {url!r}")
    return host.strip("[]"), port, slash + path


def url_host(url: str) -> str:
    return _split_url(url)[0]


def post_json(url: str, body: dict[str, Any], timeout: float) -> int:
    """POST a JSON body and return the status of the answer. Raises OSError, or ValueError for what is no answer."""
    host, port, path = _split_url(url)
    data = json.dumps(body).encode()
    head = (
        f"POST {path or '/'} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout) as sock:
        sock.sendall(head.encode("latin-1") + data)
        with sock.makefile("rb") as reader:
            words = reader.readline(_LONGEST_LINE).split()
            reader.read()
    if len(words) < 2 or not words[1].isdigit():
        raise ValueError(f"{host}:{port} does not answer in HTTP")
    return int(words[1])
