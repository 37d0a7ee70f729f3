# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Whether hosts reach one another on planned ports: short-lived listeners on one side, TCP connections on the other.

A listener takes connections and drops them; nothing is sent either way. It has left its caller's session, holds no file
of the host, and ends by itself when the time of every run that uses it is over. Runs find it through a Unix socket with
an abstract name, which has no file that could be left behind and goes with the process.

Both sides end a connection by a reset. An ordinary close would leave the port in the state TIME_WAIT for a minute, in
which an engine that starts right afterwards might not be able to bind it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import ipaddress
import os
import selectors
import signal
import socket
import struct
import sys
import time
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import procfs

PREFIX = "pd_serving.listen."

ENDPOINT_LIMIT = 256
"""Ports of one listener. A plan has about a dozen per host."""
PROBE_LIMIT = 16384
LIFETIME_LIMIT = 600
TIMEOUT_LIMIT = 60.0
CONCURRENCY_LIMIT = 512
"""A process may open 1024 files where nobody has changed that."""

BACKLOG = 1024
CONTROL_PATIENCE = 2.0
START_PATIENCE = 10.0
"""Seconds for a listener to answer; it has all it needs when it starts, but the host may be busy."""
LINE_LIMIT = 256

_RESET = struct.pack("=ii", 1, 0)
_CREDENTIALS = struct.Struct("=iII")

_UNREACHABLE = frozenset(
    (
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        # Routes of the kinds prohibit and blackhole, and a firewall of the own host.
        errno.EACCES,
        errno.EPERM,
        errno.EINVAL,
    )
)


class ProbeError(Exception):
    """What was asked for makes no sense; the message can be read alone."""


FAULTS = (ProbeError, OSError)
"""What answer() raises, each with a message that can be read alone."""


class Endpoint(t.NamedTuple):
    """A TCP port on an address."""

    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class Target(t.NamedTuple):
    """An endpoint on another host, *to* being that host's name."""

    to: str
    address: str
    port: int


def answer(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What comes of these options: the answer of module port_probe."""
    if params["state"] == "done":
        return {"ended": done(params["cluster"], params["root"], params["run"])}
    if params["state"] == "probe":
        endpoints = check(params["probes"], "probes", PROBE_LIMIT)
        check_range("timeout", params["timeout"], 0.1, TIMEOUT_LIMIT)
        check_range("concurrency", params["concurrency"], 1, CONCURRENCY_LIMIT)
        check_range("budget", params["budget"], 0.1, LIFETIME_LIMIT)
        targets = [Target(entry["to"], *endpoint) for entry, endpoint in zip(params["probes"], endpoints)]
        return {"probes": probe(targets, params["timeout"], params["concurrency"], params["budget"])}
    endpoints = check(params["endpoints"], "endpoints", ENDPOINT_LIMIT)
    check_range("lifetime", params["lifetime"], 1, LIFETIME_LIMIT)
    found = listen(params["cluster"], params["root"], params["run"], endpoints, params["lifetime"])
    return {
        "bound": [endpoint._asdict() for endpoint in found.bound],
        "live": [endpoint._asdict() for endpoint in found.live],
        # Not "failed": of that name Ansible makes a failed task.
        "not_bound": [{**endpoint._asdict(), "why": why} for endpoint, why in found.failed],
        "listeners": found.listeners,
        "python": sys.executable,
    }


def check(entries: t.Iterable[t.Mapping[str, t.Any]], what: str, limit: int) -> list[Endpoint]:
    """Addresses and ports as given, in one spelling. Raises ProbeError with all that is wrong."""
    endpoints, wrong = [], []
    for entry in entries:
        address, port = str(entry["address"]), entry["port"]
        try:
            plain = str(ipaddress.ip_address(address))
        except ValueError:
            wrong.append(f"{address!r} is no IP address")
            continue
        if not 1 <= port <= 65535:
            wrong.append(f"port {port} of {address} is not within 1-65535")
        endpoints.append(Endpoint(plain, port))
    if len(endpoints) > limit:
        wrong.append(f"{len(endpoints)} entries are more than {limit}")
    if wrong:
        raise ProbeError(f"{what}: {'; '.join(wrong)}")
    return endpoints


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Raises ProbeError for a number outside of its bounds."""
    if not least <= value <= most:
        raise ProbeError(f"{name} is {value:g}, it must be {least:g} to {most:g}")


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


# ---------------------------------------------------------------------------------------------------------------------
# Listeners that there are, and what they are told
# ---------------------------------------------------------------------------------------------------------------------


def site_name(cluster: str, root: str) -> str:
    """How the names of this cluster's listeners on this host begin. Simulated hosts differ by their root."""
    return f"{PREFIX}{hashlib.sha256(os.fsencode(cluster + chr(0) + root)).hexdigest()[:16]}."


def parse_unix(table: str, prefix: str) -> dict[str, int]:
    """Listening Unix sockets with an abstract name that begins so, by name, with their inodes; from /proc/net/unix."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        # The kernel shows the zero byte in front of an abstract name as @. Connections to it carry its name, too, but
        # not the flag of a socket that listens.
        if len(fields) == 8 and fields[7].startswith("@" + prefix) and int(fields[3], 16) & 0x10000:
            found[fields[7][1:]] = int(fields[6])
    return found


def _controls(prefix: str) -> dict[str, int]:
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as stream:
        return parse_unix(stream.read(), prefix)


def listener_pids(cluster: str, root: str) -> set[int]:
    """Processes that listen for this cluster's probes just now, of root or of this user: their ports are not taken."""
    owners = procfs.socket_owners(set(_controls(site_name(cluster, root)).values()))
    found = set()
    for pid in owners.values():
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{pid}").st_uid in (0, os.geteuid()):
                found.add(pid)
    return found


def _tell(name: str, line: str, patience: float) -> bool:
    """Say something to a listener and wait until it has done so; False when there is none (any more), or no trusted one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.settimeout(patience)
        try:
            control.connect("\0" + name)
            if not _trusted(control):
                return False
            control.sendall(line.encode() + b"\n")
            return control.recv(1) == b""
        except OSError:
            return False


def _trusted(control: socket.socket) -> bool:
    _pid, uid, _gid = _CREDENTIALS.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return uid in (0, os.geteuid())


def done(cluster: str, root: str, run: str) -> int:
    """End this run's listeners, unless another run still uses them. Gives the number of those that were told."""
    line = f"done {_run_name(run)}"
    return sum(_tell(name, line, CONTROL_PATIENCE) for name in sorted(_controls(site_name(cluster, root))))


def _run_name(run: str) -> str:
    """A run's name as one word."""
    return hashlib.sha256(os.fsencode(run)).hexdigest()[:16]


# ---------------------------------------------------------------------------------------------------------------------
# Listening
# ---------------------------------------------------------------------------------------------------------------------


class Listening(t.NamedTuple):
    """What came of it: bound by a new listener; live, somebody listens there already; failed, with the reason.

    *listeners*: names of the control sockets of those that wait for this run's end, a new one and earlier runs'.
    """

    bound: list[Endpoint]
    live: list[Endpoint]
    failed: list[tuple[Endpoint, str]]
    listeners: list[str]


def listen(cluster: str, root: str, run: str, endpoints: t.Iterable[Endpoint], lifetime: float) -> Listening:
    """Start a listener on what nobody listens on, which lives for *lifetime* seconds at most.

    A listener of an earlier run that is still there is kept for this one. When this returns, connections are taken.
    Raises ProbeError when the listener does not come up.
    """
    prefix = site_name(cluster, root)
    hold = f"hold {_run_name(run)} {lifetime:.3f}"
    held = [name for name in sorted(_controls(prefix)) if _tell(name, hold, CONTROL_PATIENCE)]
    with contextlib.ExitStack() as stack:
        result, sockets = bind(dict.fromkeys(endpoints))
        result.listeners.extend(held)
        for each in sockets:
            stack.enter_context(each)
        if sockets:
            control = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            name = prefix + os.urandom(4).hex()
            control.bind("\0" + name)
            control.listen(BACKLOG)
            _detach(lambda: _Listener(control, sockets, _run_name(run), lifetime).serve(), [control, *sockets])
            if not _tell(name, hold, START_PATIENCE):
                raise ProbeError("the listener did not come up: this host has no room for another process, or ended it")
            result.listeners.append(name)
    return result


def bind(endpoints: t.Iterable[Endpoint]) -> tuple[Listening, list[socket.socket]]:
    """Listen on all that nobody listens on.

    Only the kernel can tell that nobody does without somebody coming in between: it refuses to bind then.
    """
    result = Listening([], [], [], [])
    sockets = []
    for endpoint in endpoints:
        try:
            sockets.append(_bound(endpoint))
            result.bound.append(endpoint)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and is_live(endpoint, procfs.listeners()):
                result.live.append(endpoint)
            else:
                result.failed.append((endpoint, _why(endpoint, error)))
    return result, sockets


def is_live(endpoint: Endpoint, listeners: t.Iterable[procfs.Listener]) -> bool:
    """Whether somebody listens there, on this address or on all."""
    plain = procfs.plain_address(endpoint.address)
    return any(one.port == endpoint.port and (one.wildcard or one.address == plain) for one in listeners)


def _bound(endpoint: Endpoint) -> socket.socket:
    listener = socket.socket(_family(endpoint.address), socket.SOCK_STREAM)
    try:
        # Connections of an engine that ended a moment ago must not be in the way. It does not let two listen at once.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((endpoint.address, endpoint.port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _why(endpoint: Endpoint, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"{endpoint} is in use without anybody listening there: an outgoing connection has it (reserve the planned "
            f"ports: net.ipv4.ip_local_reserved_ports)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{endpoint.address} is no address of this host"
    return f"{endpoint} cannot be bound: {error.strerror or error}"


def _detach(work: t.Callable[[], None], kept: t.Iterable[socket.socket]) -> None:
    """Run *work* in a process that neither this one nor its session, terminal or pipes know any more."""
    keep = {each.fileno() for each in kept}
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    # From here on nothing may return into the caller's code, whatever happens.
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        os.chdir("/")
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Ansible waits for its pipes to be closed, and so does sudo.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in keep:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(null)
        with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as stream:
            stream.write("pd-listen")
        work()
    finally:
        os._exit(0)


class _Listener:
    """Takes connections and drops them, as long as a run wants it to."""

    def __init__(self, control: socket.socket, sockets: t.Sequence[socket.socket], run: str, lifetime: float) -> None:
        self._control = control
        self._sockets = sockets
        self._ends = {run: time.monotonic() + lifetime}
        self._selector = selectors.DefaultSelector()

    def serve(self) -> None:
        """Until the time of every run is over, or each has said that it is done."""
        self._control.setblocking(False)
        for each in (self._control, *self._sockets):
            self._selector.register(each, selectors.EVENT_READ)
        while self._ends:
            left = max(self._ends.values()) - time.monotonic()
            if left <= 0:
                return
            for key, _events in self._selector.select(left):
                listener = t.cast(socket.socket, key.fileobj)
                if listener is self._control:
                    self._obey()
                else:
                    with contextlib.suppress(OSError):
                        _reset(listener.accept()[0])

    def _obey(self) -> None:
        try:
            control, _peer = self._control.accept()
        except OSError:
            return
        with control:
            # Whoever has something to say says it at once; meanwhile the kernel takes connections for us.
            control.settimeout(0.2)
            with contextlib.suppress(OSError, ValueError):
                if not _trusted(control):
                    return
                words = control.recv(LINE_LIMIT).decode("ascii").split()
                if words[:1] == ["done"] and len(words) == 2:
                    self._ends.pop(words[1], None)
                elif words[:1] == ["hold"] and len(words) == 3:
                    end = time.monotonic() + min(float(words[2]), LIFETIME_LIMIT)
                    self._ends[words[1]] = max(end, self._ends.get(words[1], 0.0))
            if not self._ends:
                # Before the other side is told by the end of its connection: then ports and name are free.
                for each in (self._control, *self._sockets):
                    each.close()


# ---------------------------------------------------------------------------------------------------------------------
# Probing
# ---------------------------------------------------------------------------------------------------------------------


def probe(targets: t.Iterable[Target], timeout: float, concurrency: int, budget: float) -> list[dict[str, t.Any]]:
    """Connect to each target once, in the order given; one entry for each in that order.

    *timeout* is for each connection, *budget* for all, in seconds. What could not be tried in time is unknown.
    """
    wanted = list(targets)
    states = ["unknown"] * len(wanted)
    end = time.monotonic() + budget
    pending: dict[int, tuple[socket.socket, float]] = {}
    position = 0
    with selectors.DefaultSelector() as selector:
        try:
            while (position < len(wanted) or pending) and time.monotonic() < end:
                while position < len(wanted) and len(pending) < concurrency:
                    state, connection = _begin(wanted[position])
                    if connection is None:
                        states[position] = state
                    else:
                        pending[position] = (connection, time.monotonic() + timeout)
                        selector.register(connection, selectors.EVENT_WRITE, position)
                    position += 1
                if not pending:
                    continue
                # In the order they were begun, and so of their ends.
                first = next(iter(pending.values()))[1]
                for key, _events in selector.select(max(0.0, min(first, end) - time.monotonic())):
                    connection, _late = pending.pop(key.data)
                    states[key.data] = _state(connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
                    selector.unregister(connection)
                    _reset(connection)
                now = time.monotonic()
                for place in [place for place, (_connection, late) in pending.items() if late <= now]:
                    connection, _late = pending.pop(place)
                    states[place] = "timeout"
                    selector.unregister(connection)
                    _reset(connection)
        finally:
            for connection, _late in pending.values():
                _reset(connection)
    return [
        {"to": one.to, "address": one.address, "port": one.port, "state": state} for one, state in zip(wanted, states)
    ]


def _begin(target: Target) -> tuple[str, socket.socket | None]:
    """A connection that is being made, or how it has ended already."""
    try:
        connection = socket.socket(_family(target.address), socket.SOCK_STREAM)
    except OSError:
        return "unknown", None
    try:
        connection.setblocking(False)
        code = connection.connect_ex((target.address, target.port))
    except OSError as error:
        code = error.errno or errno.EIO
    if code == errno.EINPROGRESS:
        return "", connection
    _reset(connection)
    return _state(code), None


def _state(code: int) -> str:
    """How a connection has ended, by the kernel's number."""
    if code in (0, errno.ECONNRESET, errno.EPIPE):
        # The answer to a first packet can only be a refusal: what is reset has been taken before, as listeners do.
        return "open"
    if code == errno.ECONNREFUSED:
        return "refused"
    if code == errno.ETIMEDOUT:
        return "timeout"
    return "unreachable" if code in _UNREACHABLE else "unknown"
