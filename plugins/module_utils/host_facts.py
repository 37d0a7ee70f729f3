# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What a host is: kernel, memory, huge pages, disks, network cards, clock, model folders, its own processes.

Reading only. What cannot be read is left out, and why is told: nothing that is unknown is ever made up. Paths are given
as they are on the host and are looked for below *root*; /proc and the network are always the real ones.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import os
import socket
import stat
import struct
import time
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import host_check, launcher, procfs, units

if t.TYPE_CHECKING:
    from ansible_collections.ascend.pd_serving.plugins.module_utils.docker_socket import Container

MIB = 1024 * 1024

WEIGHTS = (".safetensors", ".bin")
INDEX = ".index.json"
USUAL_INDEX = "model.safetensors.index.json"

TEXT_LIMIT = 256 * MIB
"""No config.json and no index is larger; what is goes unread, since weights may have been given any name."""

NETLINK_PATIENCE = 3.0
NETLINK_TRIES = 5

_MEMINFO = {
    "MemTotal": ("memory_total_mb", 1024),
    "MemAvailable": ("memory_available_mb", 1024),
    "HugePages_Total": ("hugepages_total", 1),
    "HugePages_Free": ("hugepages_free", 1),
    "Hugepagesize": ("hugepage_kb", 1),
}


class Gathered(t.NamedTuple):
    """What is known, and a sentence for each thing that could not be read."""

    facts: dict[str, t.Any]
    troubles: list[str]


def gather(
    site: units.Site,
    models: t.Iterable[str] = (),
    disks: t.Iterable[str] = (),
    containers: t.Sequence[Container] = (),
) -> Gathered:
    """Everything but docker, which the caller has asked already; *containers* are those that it knows of."""
    facts: dict[str, t.Any] = {"kernel": os.uname().release}
    troubles: list[str] = []
    parts: tuple[tuple[str, t.Callable[[], dict[str, t.Any]]], ...] = (
        ("the memory", memory),
        ("the network cards", lambda: {"nics": nics()}),
        ("this cluster's own processes", lambda: {"own_pids": own_pids(site, containers)}),
    )
    for what, read in parts:
        try:
            facts.update(read())
        except (OSError, ValueError, struct.error) as error:
            troubles.append(f"{what} cannot be read: {error}")
    facts["disks"] = {}
    for path in disks:
        try:
            facts["disks"][path] = free_mb(units.under(site.root, path))
        except OSError as error:
            facts["disks"][path] = None
            troubles.append(f"the room in {path} cannot be read: {error}")
    facts["models"] = {}
    for path in models:
        facts["models"][path], trouble = model(units.under(site.root, path))
        troubles += [f"the model in {path} cannot be read: {trouble}"] if trouble else []
    # Last, so that it is as close as can be to the moment at which the controller gets it.
    facts["clock"] = {"host": time.time()}
    return Gathered(facts, troubles)


# ---------------------------------------------------------------------------------------------------------------------
# Memory and disks
# ---------------------------------------------------------------------------------------------------------------------


def memory() -> dict[str, int]:
    """Memory and huge pages as the kernel counts them now."""
    with open("/proc/meminfo", encoding="ascii") as stream:
        return parse_meminfo(stream.read())


def parse_meminfo(text: str) -> dict[str, int]:
    """Sizes are in MiB, that of a huge page in KiB. A kernel without huge pages has no such lines, so no such keys."""
    found = {}
    for line in text.splitlines():
        name, _colon, rest = line.partition(":")
        words = rest.split()
        if name in _MEMINFO and words and words[0].isdigit():
            key, divisor = _MEMINFO[name]
            found[key] = int(words[0]) // divisor
    return found


def free_mb(path: str) -> int:
    """MiB that a user may still write to where *path* is, or would be made: its nearest parent that exists."""
    while True:
        try:
            found = os.statvfs(path)
        except (FileNotFoundError, NotADirectoryError):
            parent = os.path.dirname(path.rstrip("/")) or "/"
            if parent == path:
                raise
            path = parent
        else:
            return found.f_bavail * found.f_frsize // MIB


# ---------------------------------------------------------------------------------------------------------------------
# Network cards
# ---------------------------------------------------------------------------------------------------------------------
#
# Asked of the kernel itself over netlink. The command `ip` need not be installed, /sys/class/net has no addresses and
# shows the network namespace that it was mounted in, which is not always the one of this process, and /proc/net has no
# IPv4 address together with its card.

_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLM_F_REQUEST, _NLM_F_DUMP, _NLM_F_DUMP_INTR = 0x1, 0x300, 0x10
_RTM_NEWLINK, _RTM_GETLINK, _RTM_NEWADDR, _RTM_GETADDR = 16, 18, 20, 22
_IFLA_IFNAME, _IFLA_MTU, _IFLA_OPERSTATE = 3, 4, 16
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_IFF_UP = 0x1
# Down, and what means it: not present, the layer below is down. "unknown" is what drivers without carrier say, lo too.
_OPERSTATES = {1: "down", 2: "down", 3: "down", 6: "up"}

_MESSAGE = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")
_ATTRIBUTE = struct.Struct("=HH")


class _Interrupted(Exception):
    """Something changed while the kernel told its list, so that entries may be missing."""


def nics() -> dict[str, dict[str, t.Any]]:
    """Every network card of this network namespace: addresses with prefix length, MTU, state."""
    for _attempt in range(NETLINK_TRIES):
        try:
            with _netlink() as kernel:
                links = list(_dump(kernel, _RTM_GETLINK))
                return parse_nics(links, list(_dump(kernel, _RTM_GETADDR)))
        except _Interrupted:
            continue
    raise OSError(errno.EAGAIN, "the list of network cards changes all the time")


def _netlink() -> socket.socket:
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)  # 0: NETLINK_ROUTE
    kernel.settimeout(NETLINK_PATIENCE)
    kernel.bind((0, 0))
    return kernel


def _dump(kernel: socket.socket, question: int) -> t.Iterator[tuple[int, bytes]]:
    """Type and content of every entry of one of the kernel's lists."""
    content = b"\0" * (_LINK if question == _RTM_GETLINK else _ADDRESS).size  # of all address families
    kernel.send(
        _MESSAGE.pack(_MESSAGE.size + len(content), question, _NLM_F_REQUEST | _NLM_F_DUMP, question, 0) + content
    )
    while True:
        done = False
        for kind, flags, body in split_messages(kernel.recv(65536)):
            if flags & _NLM_F_DUMP_INTR:
                raise _Interrupted
            if kind == _NLMSG_ERROR:
                code = -struct.unpack_from("=i", body)[0]
                raise OSError(code, os.strerror(code))
            if kind == _NLMSG_DONE:
                done = True
            else:
                yield kind, body
        if done:
            return


def split_messages(data: bytes) -> list[tuple[int, int, bytes]]:
    """(type, flags, content) of the netlink messages in what one read gave."""
    found = []
    while len(data) >= _MESSAGE.size:
        length, kind, flags, _sequence, _port = _MESSAGE.unpack_from(data)
        if not _MESSAGE.size <= length <= len(data):
            raise ValueError(f"a netlink message of {length} bytes in {len(data)}")
        found.append((kind, flags, data[_MESSAGE.size : length]))
        data = data[(length + 3) & ~3 :]
    return found


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if not _ATTRIBUTE.size <= length <= len(data):
            raise ValueError(f"a netlink attribute of {length} bytes in {len(data)}")
        # The two highest bits are flags.
        found[kind & 0x3FFF] = data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]
    return found


def parse_nics(
    links: t.Iterable[tuple[int, bytes]], addresses: t.Iterable[tuple[int, bytes]]
) -> dict[str, dict[str, t.Any]]:
    """Cards by name out of the kernel's two lists."""
    names: dict[int, str] = {}
    found: dict[str, dict[str, t.Any]] = {}
    for kind, body in links:
        if kind == _RTM_NEWLINK:
            _family, _type, index, flags, _change = _LINK.unpack_from(body)
            told = _attributes(body[_LINK.size :])
            name = os.fsdecode(told[_IFLA_IFNAME].split(b"\0", 1)[0])
            state = _OPERSTATES.get(told[_IFLA_OPERSTATE][0], "unknown") if _IFLA_OPERSTATE in told else "unknown"
            card: dict[str, t.Any] = {"addresses": [], "state": state if flags & _IFF_UP else "down"}
            if _IFLA_MTU in told:
                card["mtu"] = struct.unpack("=I", told[_IFLA_MTU])[0]
            names[index] = name
            found[name] = card
    for kind, body in addresses:
        if kind == _RTM_NEWADDR:
            _family, prefix, _flags, _scope, index = _ADDRESS.unpack_from(body)
            told = _attributes(body[_ADDRESS.size :])
            # On a point-to-point card IFA_ADDRESS is the other end.
            packed = told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS)
            if packed is not None and index in names:
                found[names[index]]["addresses"].append(f"{ipaddress.ip_address(packed)}/{prefix}")
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Models
# ---------------------------------------------------------------------------------------------------------------------


def model(folder: str) -> tuple[dict[str, t.Any], str]:
    """A model's folder, and why it cannot be read, if so. Weights are counted and their sizes added, never read.

    A link to nothing, where the weights themselves are gone, is not counted.
    """
    try:
        with os.scandir(folder) as entries:
            files = {entry.name: entry.stat() for entry in entries if _is_wanted(entry) and entry.is_file()}
        index = index_name(files)
        weights = [found.st_size for name, found in files.items() if name.endswith(WEIGHTS)]
        return {
            "state": "ok",
            "config_digest": digest(os.path.join(folder, "config.json")) if "config.json" in files else None,
            "index_digest": None if index is None else digest(os.path.join(folder, index)),
            "count": len(weights),
            "bytes": sum(weights),
        }, ""
    except (FileNotFoundError, NotADirectoryError):
        return {"state": "missing"}, ""
    except OSError as error:
        return {"state": "unreadable"}, str(error)


def _is_wanted(entry: os.DirEntry[str]) -> bool:
    return entry.name == "config.json" or entry.name.endswith((INDEX, *WEIGHTS))


def index_name(names: t.Iterable[str]) -> str | None:
    """The index of the weights; quantised models give theirs other names. The same of several on every host."""
    found = sorted(name for name in names if name.endswith(INDEX))
    of_safetensors = [name for name in found if name.endswith(".safetensors" + INDEX)]
    return USUAL_INDEX if USUAL_INDEX in found else next(iter(of_safetensors or found), None)


def digest(path: str) -> str:
    """SHA-256 of a small file. Raises OSError, also for what is no plain file or too large to be one of words."""
    # Should it have been replaced by a pipe since it was seen, opening must not wait for somebody to write.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "no plain file", path)
        if found.st_size > TEXT_LIMIT:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        sha = hashlib.sha256()
        for block in iter(lambda: stream.read(MIB), b""):
            sha.update(block)
    return sha.hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# Processes of this cluster
# ---------------------------------------------------------------------------------------------------------------------


def own_pids(site: units.Site, containers: t.Sequence[Container] = ()) -> list[int]:
    """Every process of this cluster on this host, by the host's own count, which is also that of npu-smi.

    Those are what its launchers supervise and all that descends from it, what runs in its containers, and what a
    launcher that was killed has left behind. Raises OSError where the cluster's folder may not be read.
    """
    ours = host_check.own_processes(site)
    leftovers = host_check.left_behind(site)
    inside = [one.id for one in containers if one.held and host_check.is_own(one, site.cluster)]
    if not (ours or leftovers or inside):
        return []
    stats = {pid: found for pid, found in launcher.all_stats().items() if not found.dead}
    # A pid as its container counts costs one more read: only those are asked that were started at such a moment.
    starts = {start for _pid, start in ours}
    roots = {
        pid
        for pid, found in stats.items()
        if found.start in starts and (procfs.innermost_pid(pid), found.start) in ours
    }
    contained = (pid for pid in stats if inside and not procfs.container_ids(pid).isdisjoint(inside))
    return sorted(family(stats, {*roots, *(pid for pid in leftovers if pid in stats), *contained}))


def family(stats: t.Mapping[int, launcher.Stat], roots: t.Collection[int]) -> set[int]:
    """These processes, all that descend from them, and all in a session that one of them leads."""
    known = {pid: True for pid in roots}
    for pid in stats:
        path: list[int] = []
        while pid in stats and pid not in known and pid not in path:
            path.append(pid)
            if stats[pid].session in roots:
                known[pid] = True
            else:
                pid = stats[pid].parent
        known.update(dict.fromkeys(path, known.get(pid, False)))
    return {pid for pid, ours in known.items() if ours}
