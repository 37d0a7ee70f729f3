# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Stands in for memcache's MetaService: takes connections where the real one does, and holds nothing."""

from __future__ import annotations

import os
import selectors
import socket
import sys

CONFIG = "MMC_META_CONFIG_PATH"
URLS = ("ock.mmc.meta_service_url", "ock.mmc.meta_service.config_store_url")


def listeners() -> list[socket.socket]:
    """Sockets on the two addresses that the configuration names. Exits with what is wrong."""
    path = os.environ.get("PD_REHEARSAL_ROOT", "") + os.environ.get(CONFIG, "")
    try:
        with open(path, encoding="utf-8") as file:
            pairs = [line.partition("=") for line in file if "=" in line and not line.startswith("#")]
    except OSError as problem:
        sys.exit(f"memcache: {CONFIG}={os.environ.get(CONFIG, '')} cannot be read: {problem}")
    settings = {key.strip(): value.strip() for key, _, value in pairs}
    out = []
    for name in URLS:
        host, _, port = settings.get(name, "").removeprefix("tcp://").rpartition(":")
        try:
            out.append(socket.create_server((host, int(port))))
        except (OSError, ValueError, OverflowError) as problem:
            sys.exit(f"memcache: cannot listen on {name} {settings.get(name)!r}: {problem}")
    return out


class MetaService:
    """The service that the real package starts in the calling process."""

    @staticmethod
    def main() -> None:
        """Serve until the process is ended."""
        selector = selectors.DefaultSelector()
        for server in listeners():
            selector.register(server, selectors.EVENT_READ)
        print("meta service started (simulated)", flush=True)
        while True:
            for key, _events in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.accept()[0].close()
