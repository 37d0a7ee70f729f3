# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What /proc tells about sockets and their owners. Reading only, and only what this user may see."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import struct
import typing as t

_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")
_PIPE = re.compile(r"pipe:\[(\d+)\]\Z")
_CONTAINER_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclasses.dataclass(frozen=True)
class Listener:
    """A TCP socket that waits for connections. An IPv4 address inside IPv6 is given as IPv4."""

    address: str
    port: int
    inode: int

    @property
    def wildcard(self) -> bool:
        """Bound to every address of the host (an IPv6 one takes IPv4 too, unless its owner said otherwise)."""
        return self.address in ("0.0.0.0", "::")

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def plain_address(address: str) -> str:
    """One spelling per address, so that they can be compared; a name is left as it is."""
    try:
        parsed = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return address
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def parse_listeners(table: str) -> list[Listener]:
    """The listening sockets in the text of /proc/net/tcp or tcp6.

    The kernel prints an address as 32-bit numbers in the byte order of the machine.
    """
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        digits, port = fields[1].rsplit(":", 1)
        words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
        packed = struct.pack(f"={len(words)}I", *words)
        found.append(Listener(plain_address(str(ipaddress.ip_address(packed))), int(port, 16), int(fields[9])))
    return found


def listeners() -> list[Listener]:
    """Every listening TCP socket of this network namespace."""
    found = []
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/net/{name}", encoding="ascii") as stream:
            found.extend(parse_listeners(stream.read()))
    return found


def _descriptors(pid: int, pattern: t.Pattern[str]) -> set[int]:
    folder = f"/proc/{pid}/fd"
    found = set()
    with contextlib.suppress(OSError):  # the process ended, or belongs to another user
        for entry in os.listdir(folder):
            with contextlib.suppress(OSError):
                match = pattern.match(os.readlink(f"{folder}/{entry}"))
                if match:
                    found.add(int(match.group(1)))
    return found


def sockets_of(pid: int) -> set[int]:
    """Inodes of the sockets that a process holds."""
    return _descriptors(pid, _SOCKET)


def pipes_of(pid: int) -> set[int]:
    """Inodes of the pipes that a process holds."""
    return _descriptors(pid, _PIPE)


def socket_owners(inodes: t.Collection[int]) -> dict[int, int]:
    """The pid that holds each of these sockets, as far as this user may see it."""
    wanted = set(inodes)
    owners: dict[int, int] = {}
    for entry in os.listdir("/proc") if wanted else ():
        if entry.isdigit():
            for inode in sockets_of(int(entry)) & wanted:
                owners.setdefault(inode, int(entry))
    return owners


def parse_container_ids(groups: str) -> set[str]:
    """The ids of containers, the engine's long ones, in the names of control groups (of either version).

    They are several where a host is itself a container.
    """
    return set(_CONTAINER_ID.findall(groups))


def container_ids(pid: int) -> set[str]:
    """The ids of the containers that a process is in."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cgroup", encoding="utf-8", errors="replace") as stream:
        return parse_container_ids(stream.read())
    return set()


def command_line(pid: int, limit: int = 120) -> str:
    """How a process was started, in one line of bounded length; its short name when it hides that."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            words = stream.read(4096).replace(b"\0", b" ").strip()
        if not words:
            with open(f"/proc/{pid}/comm", "rb") as stream:
                words = stream.read().strip()
        text = "".join(c if c.isprintable() else "?" for c in words.decode("utf-8", "replace"))
        return text if len(text) <= limit else text[: limit - 3] + "..."
    return "?"


def pid_namespace(pid: int) -> str:
    """Names the numbering of processes that a process sees; empty when it has ended or may not be looked at."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/pid")
    return ""


def innermost_pid(pid: int) -> int:
    """The pid of a process as it sees itself: another one than here when it runs in a container."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as stream:
        for line in stream:
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return pid
