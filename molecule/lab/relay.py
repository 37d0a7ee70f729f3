# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""``relay.py HOST PORT``: standard input and output as one TCP connection, for ssh's ProxyCommand."""

from __future__ import annotations

import os
import socket
import sys
import threading

# Give up after seconds without an answer: of data underway, and of a silent connection.
GONE = (
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 5000),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
)


def copy(source: int, target: int) -> None:
    while chunk := os.read(source, 65536):
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]


def main(host: str, port: str) -> None:
    try:
        connection = socket.create_connection((host, int(port)), timeout=5)
    except OSError as exc:
        sys.exit(f"relay: {host} port {port}: {exc}")
    connection.settimeout(None)

    def send() -> None:
        copy(0, connection.fileno())
        # Whoever asked has gone. A host that is gone too would never say so.
        for level, option, value in GONE:
            connection.setsockopt(level, option, value)
        connection.shutdown(socket.SHUT_WR)

    threading.Thread(target=send, daemon=True).start()
    try:
        copy(connection.fileno(), 1)
    except OSError as exc:
        sys.exit(f"relay: {host} port {port}: {exc}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
