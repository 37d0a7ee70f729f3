# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""JSON lines over TCP: what simulators speak among themselves (KV side channel and data-parallel group)."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from typing import Any

_LONGEST_LINE = 1 << 20


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class LineReader:
    """Collects the complete messages of one socket, for a selector loop."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = b""

    def receive(self) -> list[dict[str, Any]] | None:
        """Messages completed by what has arrived; None when the peer is gone or does not speak this protocol."""
        try:
            data = self._sock.recv(65536)
        except OSError:
            return None
        lines = (self._buffer + data).split(b"\n")
        self._buffer = lines.pop()
        if not data or len(self._buffer) > _LONGEST_LINE:
            return None
        try:
            messages = [json.loads(line) for line in lines]
        except ValueError:
            return None
        return messages if all(isinstance(message, dict) for message in messages) else None
