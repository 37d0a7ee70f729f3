# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Supervise the processes of one unit: every rank of a placement, or the proxy.

One file, standard library only, because it runs in two places: as a script beside the engine (in its container or on
the host) and as a module that the collection's own modules import, so that a launch spec is judged by the same code
before and at the start.

    python3 launcher.py run    --unit-dir DIR --log-dir DIR [--root ROOT]
    python3 launcher.py check  --unit-dir DIR [--log-dir DIR] [--root ROOT]
    python3 launcher.py health --unit-dir DIR [--root ROOT]

It exists because upstream's launch_online_dp.py drops the exit codes of its children, leaves their grandchildren alive
when it is ended, keeps no logs and lets every rank share one shell script. A data-parallel group cannot live without a
member, so here one process that ends, however it ends, ends the unit.

Three things keep a rank from outliving its unit. The kernel kills a rank when the launcher dies (PR_SET_PDEATHSIG).
A small guard process, told of every process group, then kills what the ranks themselves had started. And the launcher
is the reaper of everything below it (PR_SET_CHILD_SUBREAPER), so processes that left their group are found at a stop.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
import typing as t
import urllib.parse

SCHEMA = 1
SPEC_FILE = "launch.json"
STATE_FILE = "state.json"
STATE_CHECK_MILLISECONDS = 1000
"""How often a lost or damaged state.json is noticed and written anew: all that others know of a unit is in it."""
LOCK_FILE = "launcher.lock"

EXIT_REFUSED = 2
"""Exit code for a unit that was not started at all; the one line on stderr says why."""

ANNOUNCEMENT = "[launcher]"
"""Begins the launcher's own lines in a process's log."""

LOCK_PATIENCE = 1.0
"""Seconds to wait for the lock: those who only look whether a unit runs hold it for an instant."""

KILL_PATIENCE = 10.0
"""Seconds that a killed process may take to go: the driver frees a chip's memory before the process ends."""

HEALTH_TIMEOUT = 2.0
HEALTH_WORKERS = 32

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

READ_SIZE = 65536
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REFERENCE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?::-)?\})\Z")
_ELEMENT_END = re.compile(r":(?!-\})")  # not the colon within ${NAME:-}
PRELOAD = "LD_PRELOAD"
_EXPANDED_NAMES = frozenset((PRELOAD,))
_VISIBLE_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"

Say = t.Callable[[str], None]


class SpecError(ValueError):
    """The unit cannot be started as asked; the message is the one line a user reads."""


# ---------------------------------------------------------------------------------------------------------------------
# The launch spec
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Process:
    """One process of the unit, as the spec gives it."""

    name: str
    label: str
    argv: tuple[str, ...]
    env: t.Mapping[str, str | None]
    health_url: str | None
    other_health_urls: tuple[str, ...] = ()
    """For a process that starts servers of its own, as upstream's launcher does."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """A launch spec that has passed every check that needs no host."""

    unit: str
    stop_grace: float
    fail_grace: float
    log_max_bytes: int
    log_keep: int
    processes: tuple[Process, ...]
    sha256: str
    files: tuple[str, ...] = ()
    """What must be plain files in the container of the unit; empty without one."""


_SPEC_KEYS = (
    "schema",
    "unit",
    "stop_grace_seconds",
    "fail_grace_seconds",
    "log_max_bytes",
    "log_keep",
    "processes",
    "container",
)
_PROCESS_KEYS = ("name", "label", "argv", "env", "health_url", "other_health_urls")


def canonical(raw: t.Any) -> str:
    """The one text of a spec that its checksum is taken of: independent of key order, blanks and escapes."""
    return json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def spec_sha256(raw: t.Any) -> str:
    """Two specs with the same checksum start the same processes."""
    return hashlib.sha256(canonical(raw).encode("ascii")).hexdigest()


def parse_spec(text: str | bytes) -> Spec:
    """Read and check the text of a launch spec."""
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"not JSON: {error}") from error
    return build_spec(raw)


def build_spec(raw: t.Any) -> Spec:
    """Check a decoded launch spec; raises SpecError with one line that names the place and the value."""
    if not isinstance(raw, dict):
        raise SpecError(f"the spec must be an object, not {_kind(raw)}")
    schema = raw.get("schema")
    if schema != SCHEMA or isinstance(schema, bool):
        raise SpecError(f"schema {_show(schema)} is not known to this launcher, which reads schema {SCHEMA}")
    _refuse_unknown_keys(raw, _SPEC_KEYS, "the spec")
    unit = _identifier(raw.get("unit"), "unit")
    # The settings of the unit's container. They count for the checksum, so that a unit whose container has to change is
    # not current; beyond that only the files that must be in it are looked at.
    container = raw.get("container", {})
    if not isinstance(container, dict):
        raise SpecError(f"container must be an object, not {_kind(container)}")
    files = container.get("files", [])
    if not isinstance(files, list) or not all(isinstance(path, str) for path in files):
        raise SpecError(f"files of the container must be a list of paths, not {_show(files)}")
    entries = raw.get("processes")
    if not isinstance(entries, list) or not entries:
        raise SpecError("processes must be a list with at least one process")
    processes = tuple(_build_process(entry, f"process {i + 1}") for i, entry in enumerate(entries))
    _refuse_duplicate_names(processes)
    _refuse_bad_devices(processes)
    return Spec(
        unit=unit,
        stop_grace=_seconds(raw, "stop_grace_seconds", 60.0),
        fail_grace=_seconds(raw, "fail_grace_seconds", 3.0),
        log_max_bytes=_integer(raw, "log_max_bytes", 104857600, 1024),
        log_keep=_integer(raw, "log_keep", 3, 0),
        processes=processes,
        sha256=spec_sha256(raw),
        files=tuple(files),
    )


def _build_process(raw: t.Any, where: str) -> Process:
    if not isinstance(raw, dict):
        raise SpecError(f"{where} must be an object, not {_kind(raw)}")
    name = _identifier(raw.get("name"), f"{where}: name")
    where = f"{where} ({name})"
    _refuse_unknown_keys(raw, _PROCESS_KEYS, where)
    argv = raw.get("argv")
    if not isinstance(argv, list) or not argv:
        raise SpecError(f"{where}: argv must be a list with at least the command")
    for i, word in enumerate(argv):
        if not isinstance(word, str):
            raise SpecError(f"{where}: argv[{i}] must be a text, not {_show(word)}")
        if not word and i == 0:
            raise SpecError(f"{where}: argv[0] is the command and must not be empty")
        _refuse_unusable_text(word, f"{where}: argv[{i}]")
    label = raw.get("label", name)
    if not isinstance(label, str) or not label or not label.isprintable():
        raise SpecError(f"{where}: label must be one line of text, not {_show(label)}")
    env = _build_env(raw.get("env", {}), where)
    return Process(name, label, tuple(argv), env, _build_url(raw, where), _build_other_urls(raw, where))


def _build_env(raw: t.Any, where: str) -> dict[str, str | None]:
    if not isinstance(raw, dict):
        raise SpecError(f"{where}: env must be an object, not {_kind(raw)}")
    for name, value in raw.items():
        if not _ENV_NAME.match(name):
            raise SpecError(f"{where}: {_show(name)} is no name for an environment variable")
        if value is None:
            continue
        if not isinstance(value, str):
            raise SpecError(f"{where}: env {name} must be a text or null, not {_show(value)}")
        _refuse_unusable_text(value, f"{where}: env {name}")
    return dict(raw)


def _build_other_urls(raw: t.Mapping[str, t.Any], where: str) -> tuple[str, ...]:
    urls = raw.get("other_health_urls", [])
    if not isinstance(urls, list):
        raise SpecError(f"{where}: other_health_urls must be a list, not {_show(urls)}")
    return tuple(_check_url(url, where) for url in urls)


def _build_url(raw: t.Mapping[str, t.Any], where: str) -> str | None:
    url = raw.get("health_url")
    return None if url is None else _check_url(url, where)


def _check_url(url: t.Any, where: str) -> str:
    try:
        parts = urllib.parse.urlsplit(url) if isinstance(url, str) else None
        usable = (
            parts is not None and parts.scheme in ("http", "tcp") and bool(parts.hostname) and parts.port is not None
        )
    except ValueError:
        usable = False
    if not usable:
        raise SpecError(f"{where}: health_url must be http://host:port/path, tcp://host:port or null, not {_show(url)}")
    return str(url)


def _refuse_unknown_keys(raw: t.Mapping[str, t.Any], known: t.Sequence[str], where: str) -> None:
    unknown = sorted(set(raw) - set(known))
    if unknown:
        names = ", ".join(known)
        raise SpecError(f"{where}: unknown key {_show(unknown[0])}; known are {names}")


def _refuse_duplicate_names(processes: t.Sequence[Process]) -> None:
    seen: set[str] = set()
    for process in processes:
        if process.name in seen:
            raise SpecError(f"two processes are named {process.name}")
        seen.add(process.name)


def _refuse_bad_devices(processes: t.Sequence[Process]) -> None:
    """A visible device belongs to one process; an empty list would make the runtime take every chip or none."""
    owner: dict[int, str] = {}
    for process in processes:
        value = process.env.get(_VISIBLE_DEVICES)
        if value is None:
            continue
        where = f"process {process.name}: {_VISIBLE_DEVICES}={_show(value)}"
        elements = value.split(",")
        if not all(element.isascii() and element.isdigit() for element in elements):
            raise SpecError(f"{where} must be numbers with commas between")
        for device in [int(element) for element in elements]:
            if device in owner:
                other = "itself" if owner[device] == process.name else f"process {owner[device]}"
                raise SpecError(f"{where}: device {device} is already taken by {other}")
            owner[device] = process.name


def _refuse_unusable_text(text: str, where: str) -> None:
    if "\0" in text:
        raise SpecError(f"{where} holds a NUL byte, which no process can be given")
    try:
        encode(text)
    except UnicodeEncodeError as error:
        raise SpecError(f"{where} is no text that can be encoded: {error.reason}") from error


def _identifier(value: t.Any, where: str) -> str:
    if not isinstance(value, str) or not _NAME.match(value):
        raise SpecError(f"{where} must be made of letters, digits, '_', '.' and '-', not {_show(value)}")
    return value


def _seconds(raw: t.Mapping[str, t.Any], key: str, default: float) -> float:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        raise SpecError(f"{key} must be a number of seconds, 0 or more, not {_show(value)}")
    return float(value)


def _integer(raw: t.Mapping[str, t.Any], key: str, default: int, least: int) -> int:
    value = raw.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(f"{key} must be a whole number, {least} or more, not {_show(value)}")
    return value


def _kind(value: t.Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _show(value: t.Any) -> str:
    """A value for a message: one line, quoted, of bounded length."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


# ---------------------------------------------------------------------------------------------------------------------
# What a process is given
# ---------------------------------------------------------------------------------------------------------------------


def encode(text: str) -> bytes:
    """The bytes of a text in argv or env: UTF-8 whatever the locale, bytes that are no UTF-8 as they came in."""
    return text.encode("utf-8", "surrogateescape")


def decode_environment(environ: t.Mapping[bytes, bytes]) -> dict[str, str]:
    """The launcher's own environment as text that encode() turns back into the same bytes."""
    return {
        name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for name, value in environ.items()
    }


def is_path_list(name: str) -> bool:
    """Whether $NAME is replaced in the value of this variable; everywhere else it is literal."""
    return name in _EXPANDED_NAMES or name.endswith("PATH")


def expand(
    name: str,
    value: str,
    environ: t.Mapping[str, str],
    exists: t.Callable[[str], bool] = os.path.exists,
) -> str | None:
    """The value of one environment variable; None when nothing is left and the variable is to be unset.

    ``LD_LIBRARY_PATH=/a:$LD_LIBRARY_PATH`` needs the container's own value, which only the launcher sees. An element
    that is empty would mean the current folder to the loader, so none is ever left behind. Of LD_PRELOAD only what is
    there stays: where jemalloc lies depends on the image's distribution and architecture, and the loader complains at
    every command about a library that it cannot find.
    """
    if not is_path_list(name):
        return value
    elements = _ELEMENT_END.split(value)
    references = [_REFERENCE.match(element) for element in elements]
    if not any(references) and name != PRELOAD:
        return value
    result: list[str] = []
    for element, reference in zip(elements, references):
        text = environ.get(reference.group(1) or reference.group(2), "") if reference else element
        result.extend(part for part in text.split(":") if part)
    if name == PRELOAD:
        result = [part for part in result if not part.startswith("/") or exists(part)]
    return ":".join(result) or None


def child_environment(environ: t.Mapping[str, str], overrides: t.Mapping[str, str | None]) -> dict[str, str]:
    """The launcher's environment with a process's own variables laid over it; null takes one away."""
    result = dict(environ)
    for name, value in overrides.items():
        expanded = None if value is None else expand(name, value, environ)
        if expanded is None:
            result.pop(name, None)
        else:
            result[name] = expanded
    return result


def find_command(command: str, path: str | None, cwd: str) -> str | None:
    """Where execvp would find the command for a process with this PATH, or None."""
    places = [""] if "/" in command else (os.defpath if path is None else path).split(os.pathsep)
    for place in places:
        candidate = os.path.join(cwd, place, command)
        if os.path.isfile(encode(candidate)) and os.access(encode(candidate), os.X_OK):
            return candidate
    return None


def find_commands(spec: Spec, environ: t.Mapping[str, str], cwd: str) -> dict[str, str]:
    """The file of every process's command, by process name; refuses the first that is not there."""
    found: dict[str, str] = {}
    for process in spec.processes:
        path = child_environment(environ, process.env).get("PATH")
        command = find_command(process.argv[0], path, cwd)
        if command is None:
            looked = "" if "/" in process.argv[0] else f" in PATH={path}"
            raise SpecError(f"process {process.name}: command {process.argv[0]} not found{looked}")
        found[process.name] = command
    return found


def without_preload(spec: Spec, environ: t.Mapping[str, str]) -> str | None:
    """What was to be preloaded, where nothing of it is there: some libraries abort without it, and do not say why."""
    wanted = next((process.env[PRELOAD] for process in spec.processes if process.env.get(PRELOAD)), None)
    return wanted if wanted is not None and expand(PRELOAD, wanted, environ) is None else None


def check_files(spec: Spec) -> None:
    """Refuse a container that lacks a mounted file: without hccn.conf engines start, and answer wrongly."""
    for path in spec.files:
        if not os.path.isfile(path):
            found = (
                "a folder, as docker makes one where a mounted file was missing" if os.path.isdir(path) else "missing"
            )
            raise SpecError(f"{path} in the container of {spec.unit} is {found}; put the file on the host")


def check_folder(path: str, what: str) -> None:
    """Refuse a folder that cannot be written; one that is missing counts by the nearest folder that is there."""
    place = os.path.abspath(path)
    while not os.path.lexists(place):
        place = os.path.dirname(place)
    if not os.path.isdir(place):
        raise SpecError(f"{what} {path} cannot be made: {place} is no folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise SpecError(f"{what} {path} is not writable")


def check(text: str | bytes, environ: t.Mapping[str, str], cwd: str, log_dir: str | None) -> Spec:
    """Everything that can be judged without starting anything; raises SpecError with the one line."""
    spec = parse_spec(text)
    find_commands(spec, environ, cwd)
    if log_dir is not None:
        check_folder(log_dir, "log folder")
    return spec


# ---------------------------------------------------------------------------------------------------------------------
# How processes end
# ---------------------------------------------------------------------------------------------------------------------


def exit_code(status: int) -> int:
    """A wait status as a shell would report it: 128 + n for signal n."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def signal_name(number: int) -> str:
    """SIGKILL for 9; a real-time signal has only its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def describe_status(status: int) -> str:
    """How a process ended, in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"was killed by signal {number} ({signal_name(number)})"
    return f"exited with code {os.WEXITSTATUS(status)}"


def end_reason(label: str, pid: int, status: int, others: int) -> str:
    """The sentence that state.json, stderr and every message to a user carry."""
    tail = f"; ending the other {others}" if others else ""
    return f"{label} (pid {pid}) {describe_status(status)}{tail}"


def unit_exit_code(status: int) -> int:
    """A unit whose process ended is never a success, even when that process thought so."""
    return exit_code(status) or 1


def blame(statuses: t.Sequence[int]) -> int:
    """Index of the status to report when several processes ended at once: a signal, then an error, then success."""
    return min(range(len(statuses)), key=lambda i: (not os.WIFSIGNALED(statuses[i]), statuses[i] == 0))


# ---------------------------------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------------------------------


def write_atomically(path: str, data: bytes, mode: int = 0o600) -> None:
    """Readers see the old content or the new one, never a half; the mode is exact, whatever the umask."""
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(fd, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(data)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def file_mark(path: str) -> tuple[int, int, int] | None:
    """What tells that a file is still the one that was written; None when there is none."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def split_at_limit(chunk: bytes, room: int, within_line: bool, most: int) -> int:
    """How many bytes of *chunk* go into the current log file; 0 means that the file is to be rotated first.

    Lines are kept whole: the file is changed only between two of them, so one may run over the limit (*room*). Output
    without any line end (a progress bar) would never let go, hence *most*, past which a line is cut.
    """
    if len(chunk) <= room:
        return len(chunk)
    whole_lines = chunk.rfind(b"\n", 0, max(room, 0)) + 1
    if whole_lines or not within_line:
        return whole_lines
    rest_of_line = chunk.find(b"\n") + 1 or len(chunk)
    return max(0, min(rest_of_line, most))


class RotatingLog:
    """The log of one process: its bytes unchanged, in files of bounded size.

    A disk that is full must not stop an engine that serves: what cannot be written is dropped and counted, stderr says
    so once, and the log itself says how much is missing when it can be written again.
    """

    def __init__(self, path: str, max_bytes: int, keep: int, say: Say) -> None:
        self.path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._say = say
        self._said = False
        self._lost = 0
        self._within_line = False
        self._fd = -1
        self._size = 0
        self._open()

    def announce(self, message: str) -> None:
        """A line of the launcher's own, which parts the output of one run from that of the run before."""
        start = "\n" if self._within_line else ""
        self.write(f"{start}{ANNOUNCEMENT} {message}\n".encode("utf-8", "backslashreplace"))

    def write(self, chunk: bytes) -> None:
        """Append, rotating where a line ends."""
        while chunk:
            count = split_at_limit(
                chunk,
                self._max_bytes - self._size,
                self._within_line or self._size == 0,
                2 * self._max_bytes - self._size,
            )
            if count:
                self._append(chunk[:count])
                self._within_line = not chunk.endswith(b"\n", 0, count)
                chunk = chunk[count:]
            else:
                self._rotate()

    def close(self) -> None:
        """Nothing is buffered here, so nothing can be lost."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._within_line = self._size > 0 and os.pread(self._fd, 1, self._size - 1) != b"\n"

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            if self._fd < 0:
                self._open()
            if self._lost:
                note = f"\n{ANNOUNCEMENT} {self._lost} bytes of output were lost here\n"
                self._size += os.write(self._fd, note.encode("ascii"))
                self._lost = 0
            while left:
                count = os.write(self._fd, left)
                self._size += count
                left = left[count:]
        except OSError as error:
            self._lost += len(left)
            self._complain("cannot be written", error)

    def _rotate(self) -> None:
        self.close()
        try:
            self._shift()
            self._open()
        except OSError as error:
            self._complain("cannot be rotated", error)
            self._size = 0  # try again after as much output as makes a file

    def _shift(self) -> None:
        for number in range(self._keep, 0, -1):
            older = f"{self.path}.{number}"
            newer = f"{self.path}.{number - 1}" if number > 1 else self.path
            if os.path.exists(newer):
                os.rename(newer, older)
        if not self._keep:
            os.unlink(self.path)

    def _complain(self, what: str, error: OSError) -> None:
        if not self._said:
            self._said = True
            self._say(f"log {self.path} {what}: {error.strerror}; the processes go on without it")


# ---------------------------------------------------------------------------------------------------------------------
# The kernel
# ---------------------------------------------------------------------------------------------------------------------

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, argument: int | bytes) -> None:
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclasses.dataclass(frozen=True)
class Stat:
    """What /proc/<pid>/stat says of a process. A pid together with its start is never used twice in one boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int

    @property
    def dead(self) -> bool:
        """A zombie only waits for its parent; it runs nothing and holds nothing."""
        return self.state in ("Z", "X")


def parse_stat(text: str) -> Stat:
    """Read the line of /proc/<pid>/stat; the command in it may hold blanks and brackets."""
    pid, rest = text.split(" ", 1)
    fields = rest[rest.rindex(")") + 2 :].split()
    return Stat(int(pid), fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """The process as the kernel sees it now, or None when there is none (or it may not be seen)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return parse_stat(stream.read())
    except (OSError, ValueError):
        return None


def all_stats() -> dict[int, Stat]:
    """Every process that can be seen, by pid."""
    found = (read_stat(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return {stat.pid: stat for stat in found if stat is not None}


def boot_id() -> str:
    """Names this boot of the machine: pids and start times of another one say nothing."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def pid_namespace() -> str:
    """Names the numbering of processes that this process sees: those of a container are not the host's."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def descendants(stats: t.Mapping[int, Stat], root: int) -> set[int]:
    """Every process below *root*, at any depth."""
    children: dict[int, list[int]] = collections.defaultdict(list)
    for stat in stats.values():
        children[stat.parent].append(stat.pid)
    found: set[int] = set()
    waiting = list(children[root])
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting.extend(children[pid])
    return found


def group_exists(group: int) -> bool:
    """Whether any process is left in a process group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _send(kill: t.Callable[[int, int], None], target: int, number: int) -> None:
    """A target that has just gone is what was wanted; one of another user is reported by the wait that follows."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        kill(target, number)


# ---------------------------------------------------------------------------------------------------------------------
# The guard
# ---------------------------------------------------------------------------------------------------------------------


class Guard:
    """A child that kills the process groups when the launcher is killed and cannot do so itself.

    It learns of the groups through a pipe; the pipe's end without a farewell means that the launcher is gone. It keeps
    the launcher's lock, which it was forked with, until nothing is left: so nobody starts the unit again too early.
    """

    FAREWELL = b"done\n"

    def __init__(self) -> None:
        reader, self._writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._writer)
                self._watch(reader)
            finally:
                os._exit(0)
        os.close(reader)

    def add(self, group: int) -> None:
        """Tell of a process group."""
        self._tell(f"{group}\n".encode("ascii"))

    def dismiss(self) -> None:
        """Nothing is left to guard."""
        self._tell(self.FAREWELL)
        os.close(self._writer)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def _tell(self, message: bytes) -> None:
        # A guard that was killed is reported when it is reaped; the launcher goes on without it.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._writer, message)

    @classmethod
    def _watch(cls, reader: int) -> None:
        os.setsid()
        for number in STOP_SIGNALS + FORWARDED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        _prctl(PR_SET_NAME, b"pd-guard")
        with os.fdopen(reader, "rb") as stream:
            told = stream.read()
        if not told.endswith(cls.FAREWELL):
            cls._clean_up({int(line) for line in told.split()})

    @staticmethod
    def _clean_up(groups: set[int]) -> None:
        # A group also exists as long as nobody has reaped its last zombie, and the init of a container may never do so.
        deadline = time.monotonic() + KILL_PATIENCE
        while time.monotonic() < deadline:
            stats = all_stats().values()
            left = [stat.pid for stat in stats if not stat.dead and groups & {stat.group, stat.session}]
            if not left:
                return
            for pid in left:
                _send(os.kill, pid, signal.SIGKILL)
            time.sleep(0.02)


# ---------------------------------------------------------------------------------------------------------------------
# The supervisor
# ---------------------------------------------------------------------------------------------------------------------


class Child:
    """A process that was started, the group it leads and its log."""

    def __init__(self, process: Process, popen: subprocess.Popen[bytes], output: int, log: RotatingLog) -> None:
        self.process = process
        self.pid = popen.pid
        self.output = output
        self.log = log
        self.output_inode = os.fstat(output).st_ino
        stat = read_stat(popen.pid)
        self.start = stat.start if stat else 0
        self.status: int | None = None
        self.ended_at: float | None = None
        self.group_alive = True
        self._popen = popen

    def reaped(self, status: int) -> None:
        """Note the end; Popen is told too, since it was not the one to wait."""
        self.status = status
        self.ended_at = time.time()
        self._popen.returncode = exit_code(status)

    def describe(self) -> dict[str, t.Any]:
        """This process in state.json."""
        return {
            "name": self.process.name,
            "label": self.process.label,
            "pid": self.pid,
            "start_ticks": self.start,
            "output_inode": self.output_inode,
            "log": self.log.path,
            "health_url": self.process.health_url,
            "other_health_urls": list(self.process.other_health_urls),
            "code": None if self.status is None else exit_code(self.status),
            "ended_at": self.ended_at,
        }


@dataclasses.dataclass
class End:
    """Why and how the unit comes to its end."""

    code: int
    reason: str
    deadline: float
    killed: bool = False


class Supervisor:
    """Starts the processes of one spec, serves them, and ends with them. One thread, one poll loop."""

    def __init__(self, spec: Spec, commands: t.Mapping[str, str], unit_dir: str, log_dir: str, say: Say) -> None:
        self._spec = spec
        self._commands = commands
        self._state_path = os.path.join(unit_dir, STATE_FILE)
        self._state_mark: tuple[int, int, int] | None = None
        self._log_dir = log_dir
        self._say = say
        self._started_at = time.time()
        self._boot_id = boot_id()
        self._environ = decode_environment(os.environb)
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._children: dict[int, Child] = {}
        self._outputs: dict[int, Child] = {}
        self._signals: collections.deque[int] = collections.deque()
        self._poll = select.poll()
        self._wake_reader = -1
        self._end: End | None = None
        self._finished: float | None = None
        self._dirty = True
        self._state_said = False
        self._guard: Guard | None = None

    def run(self) -> int:
        """Start everything, stay until everything has ended; returns the exit code of the unit."""
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        self._guard = Guard()
        self._listen_to_signals()
        self._allow_descriptors()
        self._start_all()
        while self._finished is None:
            self._save_state()
            self._wait_for_events()
            self._obey_signals()  # first: who ends a whole control group means a stop, not a rank that failed
            self._reap()
            self._advance()
        self._drain()
        self._save_state()
        self._guard.dismiss()
        assert self._end is not None
        return self._end.code

    # -- starting ------------------------------------------------------------------------------------------------------

    def _listen_to_signals(self) -> None:
        self._wake_reader, writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(writer, False)
        self._poll.register(self._wake_reader, select.POLLIN)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in STOP_SIGNALS + FORWARDED_SIGNALS:
            signal.signal(number, lambda received, _frame: self._signals.append(received))
        signal.signal(signal.SIGCHLD, lambda _received, _frame: None)  # only to wake the loop

    def _allow_descriptors(self) -> None:
        """Hundreds of ranks need two descriptors each; the ranks themselves keep the limit that was set for them."""
        soft, hard = self._descriptors
        wanted = 2 * len(self._spec.processes) + 64
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def _start_all(self) -> None:
        for process in self._spec.processes:
            if self._signals:
                break  # asked to stop before everything was started
            try:
                self._start(process)
            except OSError as error:
                reason = f"{process.label} could not be started: {error}"
                self._begin_end(1, reason, self._spec.fail_grace)
                return
        self._say(f"started {len(self._children)} processes of {self._spec.unit}")

    def _start(self, process: Process) -> None:
        log = RotatingLog(
            os.path.join(self._log_dir, process.name + ".log"),
            self._spec.log_max_bytes,
            self._spec.log_keep,
            self._say,
        )
        environ = child_environment(self._environ, process.env)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        try:
            popen = subprocess.Popen(
                [encode(word) for word in process.argv],
                executable=encode(self._commands[process.name]),
                env={encode(name): encode(value) for name, value in environ.items()},
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                start_new_session=True,
                preexec_fn=self._child_preparation(os.getpid()),
            )
        except OSError:
            os.close(reader)
            log.close()
            raise
        finally:
            os.close(writer)
        log.announce(f"{_now()} started {process.label} as pid {popen.pid}")
        child = Child(process, popen, reader, log)
        self._children[child.pid] = child
        self._outputs[reader] = child
        self._poll.register(reader, select.POLLIN)
        assert self._guard is not None
        self._guard.add(child.pid)

    def _child_preparation(self, launcher: int) -> t.Callable[[], None]:
        descriptors = self._descriptors

        def prepare() -> None:
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != launcher:
                os._exit(1)  # the launcher died before the line above could bind this process to it
            resource.setrlimit(resource.RLIMIT_NOFILE, descriptors)

        return prepare

    # -- running -------------------------------------------------------------------------------------------------------

    def _wait_for_events(self) -> None:
        # While all is well nothing but state.json is to be looked after; an end is followed by looking, since a
        # process that has left its group tells nobody.
        timeout = STATE_CHECK_MILLISECONDS if self._end is None else 50
        self._dirty = self._dirty or self._state_mark != file_mark(self._state_path)
        for descriptor, _event in self._poll.poll(timeout):
            if descriptor == self._wake_reader:
                self._read_all_wakeups()
            else:
                self._read_output(descriptor)

    def _read_all_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_reader, 4096):
                pass

    def _read_output(self, descriptor: int) -> bool:
        """Take one helping of a process's output; False when there is none (now, or for good)."""
        child = self._outputs[descriptor]
        try:
            chunk = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return False
        if not chunk:
            self._poll.unregister(descriptor)
            os.close(descriptor)
            del self._outputs[descriptor]
            return False
        child.log.write(chunk)
        return True

    def _reap(self) -> None:
        ended: list[Child] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            child = self._children.get(pid)
            if child is not None:
                child.reaped(status)
                ended.append(child)
            elif self._guard is not None and pid == self._guard.pid:
                self._say("the guard process ended; if this launcher is killed now, processes may stay behind")
        if ended:
            self._dirty = True
            self._note_ended(ended)

    def _note_ended(self, ended: t.Sequence[Child]) -> None:
        if self._end is not None:
            return
        others = sum(child.status is None for child in self._children.values())
        child = ended[blame([child.status or 0 for child in ended])]
        assert child.status is not None
        reason = end_reason(child.process.label, child.pid, child.status, others)
        self._begin_end(unit_exit_code(child.status), reason, self._spec.fail_grace)

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.popleft()
            if number in FORWARDED_SIGNALS:
                for child in self._children.values():
                    if child.status is None:
                        _send(os.kill, child.pid, number)
            elif self._end is None:
                reason = f"stopped by {signal_name(number)}"
                self._begin_end(0, reason, self._spec.stop_grace)

    # -- ending --------------------------------------------------------------------------------------------------------

    def _begin_end(self, code: int, reason: str, grace: float) -> None:
        self._end = End(code, reason, time.monotonic() + grace)
        self._dirty = True
        self._say(reason)
        self._signal_everything(signal.SIGTERM)

    def _advance(self) -> None:
        if self._end is None:
            return
        for child in self._children.values():
            if child.group_alive and child.status is not None:
                child.group_alive = group_exists(child.pid)
        if not any(child.group_alive for child in self._children.values()) and not self._strays():
            self._finished = time.time()
        elif time.monotonic() >= self._end.deadline:
            self._press(self._end)
        self._dirty = self._dirty or self._finished is not None

    def _press(self, end: End) -> None:
        """The time given has run out: kill, and when even that did not help, say which processes stay."""
        left = self._left()
        if not end.killed:
            end.killed = True
            end.deadline = time.monotonic() + KILL_PATIENCE
            self._say(f"{len(left)} processes have not ended in the time they were given; killing them")
            self._signal_everything(signal.SIGKILL)
            return
        end.code = end.code or 1
        pids = ", ".join(str(pid) for pid in sorted(left))
        end.reason += f"; these did not end even when killed: pid {pids}"
        self._say(end.reason)
        self._finished = time.time()

    def _signal_everything(self, number: int) -> None:
        for child in self._children.values():
            if child.group_alive:
                _send(os.killpg, child.pid, number)
        for pid in self._strays():
            _send(os.kill, pid, number)

    def _below(self) -> list[Stat]:
        stats = all_stats()
        found = descendants(stats, os.getpid())
        guard = self._guard.pid if self._guard is not None else 0
        return [stats[pid] for pid in found if pid != guard and not stats[pid].dead]

    def _strays(self) -> list[int]:
        """Living descendants outside every group: processes that made themselves a session of their own."""
        groups = {child.pid for child in self._children.values() if child.group_alive}
        return [stat.pid for stat in self._below() if stat.group not in groups]

    def _left(self) -> list[int]:
        return [stat.pid for stat in self._below()]

    def _drain(self) -> None:
        """What the processes wrote last is what explains their end."""
        for descriptor in list(self._outputs):
            while self._read_output(descriptor):
                pass
        for child in self._children.values():
            child.log.close()

    # -- state ---------------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, t.Any]:
        end = None
        if self._end is not None and self._finished is not None:
            end = {"at": self._finished, "code": self._end.code, "reason": self._end.reason}
        own = read_stat(os.getpid())
        return {
            "schema": SCHEMA,
            "unit": self._spec.unit,
            "pid": os.getpid(),
            "start_ticks": own.start if own else 0,
            "boot_id": self._boot_id,
            "pid_namespace": pid_namespace(),
            "spec_sha256": self._spec.sha256,
            "started_at": self._started_at,
            "phase": "running" if self._end is None else "stopping" if self._finished is None else "ended",
            "reason": None if self._end is None else self._end.reason,
            "end": end,
            "processes": [child.describe() for child in self._children.values()],
        }

    def _save_state(self) -> None:
        if not self._dirty:
            return
        self._dirty = False
        try:
            write_atomically(self._state_path, json.dumps(self._describe(), indent=1).encode("ascii"))
            self._state_mark = file_mark(self._state_path)
        except OSError as error:
            if not self._state_said:
                self._state_said = True
                self._say(f"{self._state_path} cannot be written: {error.strerror}")


# ---------------------------------------------------------------------------------------------------------------------
# Health
# ---------------------------------------------------------------------------------------------------------------------


def probe(url: str, timeout: float = HEALTH_TIMEOUT) -> tuple[str, str]:
    """Ask one health page: ("ready" | "loading" | "unhealthy", what was answered). No proxy is ever used.

    vLLM opens its port only when the engine is up, so a refused connection means that it still loads.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "tcp":
        return _probe_port(parts.hostname or "", parts.port or 0, timeout)
    # Imported where it is used: most modules that import this file ask no page, and it is half of their start-up time.
    import http.client

    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=timeout)
    try:
        connection.request("GET", (parts.path or "/") + ("?" + parts.query if parts.query else ""))
        status = connection.getresponse().status
    except ConnectionRefusedError:
        return "loading", "connection refused"
    except (OSError, http.client.HTTPException) as error:
        return "unhealthy", f"{type(error).__name__}: {error}"
    finally:
        connection.close()
    return ("ready" if status == 200 else "unhealthy"), f"HTTP {status}"


def _probe_port(host: str, port: int, timeout: float) -> tuple[str, str]:
    """A server without a health page (the KV pool's master speaks its own protocol) is well when it takes connections."""
    import socket  # see probe

    try:
        socket.create_connection((host, port), timeout).close()
    except ConnectionRefusedError:
        return "loading", "connection refused"
    except OSError as error:
        return "unhealthy", f"{type(error).__name__}: {error}"
    return "ready", "takes connections"


def probe_all(urls: t.Iterable[str], timeout: float = HEALTH_TIMEOUT) -> dict[str, tuple[str, str]]:
    """Ask many health pages at once."""
    import concurrent.futures  # see probe

    wanted = sorted(set(urls))
    if not wanted:
        return {}
    with concurrent.futures.ThreadPoolExecutor(min(HEALTH_WORKERS, len(wanted))) as pool:
        return dict(zip(wanted, pool.map(lambda url: probe(url, timeout), wanted)))


def lock_is_held(unit_dir: str) -> bool:
    """Whether a launcher lives in this unit folder; works across containers, where its pid says nothing."""
    try:
        fd = os.open(os.path.join(unit_dir, LOCK_FILE), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(fd)
    return False


def read_state(unit_dir: str) -> dict[str, t.Any] | None:
    """state.json of a unit, or None when there is none that can be read."""
    try:
        with open(os.path.join(unit_dir, STATE_FILE), encoding="utf-8") as stream:
            state = json.load(stream)
    except (OSError, ValueError):
        return None
    return state if isinstance(state, dict) and state.get("schema") == SCHEMA else None


def pages(process: t.Mapping[str, t.Any]) -> list[str]:
    """Health pages of a process in state.json."""
    first = process["health_url"]
    return [*([first] if first else []), *process.get("other_health_urls", [])]


def health(unit_dir: str) -> str | None:
    """None when every process of the unit runs and answers; else what is wrong, in one line."""
    state = read_state(unit_dir)
    if state is None or not lock_is_held(unit_dir):
        return "the unit is not running"
    if state["phase"] != "running":
        return f"the unit is {state['phase']}: {state['reason']}"
    answers = probe_all(url for process in state["processes"] for url in pages(process))
    bad = [
        "{} is {} ({})".format(process["label"], *answers[url])
        for process in state["processes"]
        for url in pages(process)
        if answers[url][0] != "ready"
    ]
    return "; ".join(bad) or None


# ---------------------------------------------------------------------------------------------------------------------
# Command line
# ---------------------------------------------------------------------------------------------------------------------


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _say(message: str) -> None:
    """One line on stderr. Where that goes may be full as well, and is then the last thing to die of."""
    line = f"{_now()} launcher: {message}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode("utf-8", "backslashreplace"))


def _take_lock(unit_dir: str) -> int:
    path = os.path.join(unit_dir, LOCK_FILE)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SpecError(f"{path} cannot be opened: {error.strerror}") from error
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if time.monotonic() >= deadline:
                os.close(fd)
                raise SpecError(f"another launcher holds {path}") from error
            time.sleep(0.02)
        else:
            return fd


def _read_spec(unit_dir: str) -> bytes:
    path = os.path.join(unit_dir, SPEC_FILE)
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror}") from error


def _run(unit_dir: str, log_dir: str) -> int:
    # Upstream's launcher looks for its template here; an image's working directory is none of the unit's business.
    os.chdir(unit_dir)
    spec = check(_read_spec(unit_dir), decode_environment(os.environb), os.getcwd(), log_dir)
    check_files(spec)
    lost = without_preload(spec, decode_environment(os.environb))
    if lost:
        _say(f"{spec.unit}: nothing is preloaded, none of LD_PRELOAD={lost} is here")
    commands = find_commands(spec, decode_environment(os.environb), os.getcwd())
    lock = _take_lock(unit_dir)
    try:
        os.makedirs(log_dir, mode=0o700, exist_ok=True)
    except OSError as error:
        raise SpecError(f"log folder {log_dir} cannot be made: {error.strerror}") from error
    code = Supervisor(spec, commands, unit_dir, log_dir, _say).run()
    os.close(lock)
    return code


def never_started(unit: str) -> dict[str, t.Any]:
    """The state of a unit that has none, but for how it ended."""
    return {
        "schema": SCHEMA,
        "unit": unit,
        "pid": 0,
        "start_ticks": 0,
        "boot_id": "",
        "spec_sha256": "",
        "started_at": None,
        "processes": [],
    }


def _note_refusal(unit_dir: str, reason: str) -> None:
    """Enter into the state why the unit is down: what a launcher says in a container only docker's log has.

    What an earlier run has left behind is still told by the rest. The state of another launcher that runs is its own.
    """
    end = {"at": time.time(), "code": EXIT_REFUSED, "reason": reason}
    with contextlib.suppress(SpecError, OSError):
        lock = _take_lock(unit_dir)
        before = read_state(unit_dir) or never_started(os.path.basename(unit_dir))
        state = {**before, "phase": "ended", "reason": reason, "end": end}
        write_atomically(os.path.join(unit_dir, STATE_FILE), json.dumps(state, indent=1).encode("ascii"))
        os.close(lock)


def main(arguments: t.Sequence[str] | None = None) -> int:
    """The script; returns the exit code."""
    import argparse  # see probe

    parser = argparse.ArgumentParser(prog="launcher.py", description="Supervise the processes of one unit.")
    parser.add_argument("verb", choices=("run", "check", "health"))
    parser.add_argument("--unit-dir", required=True, help="folder with launch.json; state.json is written there")
    parser.add_argument("--log-dir", help="folder for one log per process")
    parser.add_argument("--root", default="", help="put before both folders")
    options = parser.parse_args(arguments)
    if options.verb == "run" and options.log_dir is None:
        parser.error("run needs --log-dir")
    unit_dir = os.path.abspath(options.root + options.unit_dir)
    log_dir = None if options.log_dir is None else os.path.abspath(options.root + options.log_dir)
    try:
        if options.verb == "health":
            trouble = health(unit_dir)
            if trouble is not None:
                sys.stderr.write(trouble + "\n")
            return 0 if trouble is None else 1
        if options.verb == "check":
            check(_read_spec(unit_dir), decode_environment(os.environb), os.getcwd(), log_dir)
            return 0
        assert log_dir is not None
        return _run(unit_dir, log_dir)
    except SpecError as error:
        sys.stderr.write(f"launcher: {os.path.basename(unit_dir)}: refused: {error}\n")
        if options.verb == "run":
            _note_refusal(unit_dir, f"its launcher refused to start it: {error}")
        return EXIT_REFUSED


if __name__ == "__main__":
    raise SystemExit(main())
