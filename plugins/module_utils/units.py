# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The units of a cluster on one host: where they live, what runs, how one is started and stopped.

A unit is what one launcher supervises: a placement of an instance, or the proxy. Its folder holds the launch spec, the
launcher's copy, its state and its lock. Only the lock says whether a unit runs: it is the kernel's, and goes with the
launcher however that ends.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, masking, procfs

# Names of this module as well: most of what speaks of units speaks of sites.
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import LOG_OPTIONS as LOG_OPTIONS
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import SITE_OPTIONS as SITE_OPTIONS
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import Site as Site
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import UnitError as UnitError
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import check_name as check_name
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import launch_environment as launch_environment
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import make_private_folder as make_private_folder
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import site_of as site_of
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import source_on as source_on
from ansible_collections.ascend.pd_serving.plugins.module_utils.sites import under as under

LAUNCHER_FILE = "launcher.py"
LAUNCHER_LOG = "launcher.log"
OWN_FILES = frozenset(
    (launcher.SPEC_FILE, launcher.STATE_FILE, launcher.LOCK_FILE, LAUNCHER_FILE, LAUNCHER_LOG),
)

START_PATIENCE = 3.0
"""Seconds for a launcher to come up with all its processes, plus START_PATIENCE_EACH for each of them."""
START_PATIENCE_EACH = 0.05

SETTLE_SECONDS = 0.5
"""Seconds to watch a unit that came up: a wrong option or a missing library shows at once."""

LEFTOVER_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL for what a launcher that was killed has left behind."""

GUARD_PATIENCE = 2.0
"""Seconds that the guard of a launcher that was killed may take longer than the kernel for its processes to go."""

IN_CONTAINER = (
    "it runs in a container, which has to be stopped first (docker stop, or stop.yml with -e pd_runtime=docker)"
)

State = t.Dict[str, t.Any]

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


# ---------------------------------------------------------------------------------------------------------------------
# What is there
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Observed:
    """One unit as it is found on the host."""

    name: str
    directory: str
    spec: t.Any
    state: State | None
    held: bool

    @property
    def deployed(self) -> bool:
        """Whether there is a launch spec."""
        return self.spec is not None

    @property
    def running(self) -> bool:
        """Whether a launcher lives and has not begun to end its processes."""
        return self.held and self.state is not None and self.state["phase"] == "running"

    @property
    def sha256(self) -> str | None:
        """Checksum of the spec that runs, or would be started."""
        if self.held and self.state is not None:
            return str(self.state["spec_sha256"])
        return launcher.spec_sha256(self.spec) if self.deployed else None


def observe(site: Site, unit: str) -> Observed:
    """Look at one unit; changes nothing."""
    directory = site.unit_dir(unit)
    held = launcher.lock_is_held(directory)
    return Observed(
        unit, directory, _read_json(os.path.join(directory, launcher.SPEC_FILE)), launcher.read_state(directory), held
    )


def mounts_here(site: Site, spec: t.Mapping[str, t.Any]) -> list[str]:
    """The mounts of a spec's container, from where this host has what is mounted."""
    mounts = (mount.split(":", 1) for mount in spec.get("container", {}).get("mounts", ()))
    return [f"{source_on(site.root, source)}:{rest}" for source, rest in mounts]


def _read_json(path: str) -> t.Any:
    try:
        with open(path, encoding="utf-8") as stream:
            return json.load(stream)
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}  # there is something, and it equals no spec


def runs_elsewhere(observed: Observed) -> bool:
    """Whether a launcher lives in a container: its pids mean nothing here, and it ends with its container."""
    state = observed.state
    return observed.held and state is not None and _is_foreign(state, launcher.pid_namespace())


def _is_foreign(state: State, namespace: str) -> bool:
    return bool(state.get("pid_namespace", namespace) != namespace)


def launcher_process(state: State | None) -> launcher.Stat | None:
    """The launcher that wrote this state, if it still lives: pid and start time must both be its own."""
    if state is None or state["boot_id"] != launcher.boot_id():
        return None
    stat = launcher.read_stat(state["pid"])
    return stat if stat is not None and stat.start == state["start_ticks"] and not stat.dead else None


@dataclasses.dataclass(frozen=True)
class Members:
    """Living processes in the sessions of a unit: its own for certain, and those nobody can prove to be its own."""

    own: tuple[launcher.Stat, ...] = ()
    unproven: tuple[launcher.Stat, ...] = ()


def members(
    state: State | None,
    stats: t.Mapping[int, launcher.Stat],
    boot: str,
    namespace: str,
    pipes_of: t.Callable[[int], t.Collection[int]],
) -> Members:
    """Sort the processes that carry a session or group number of the unit.

    A number is proven to be the unit's as long as the process that was given it is there with its start time, even as
    a zombie. When it is gone, the number may have been given out again: then a process is the unit's own only when it
    holds the pipe to the rank's log.

    The numbers of a launcher in a container are the container's. There is nothing to look for then: the kernel ends all
    of a container with its first process.
    """
    if state is None or state["boot_id"] != boot or _is_foreign(state, namespace):
        return Members()
    by_number: dict[int, list[launcher.Stat]] = {}
    for stat in stats.values():
        for number in {stat.session, stat.group} if not stat.dead else ():
            by_number.setdefault(number, []).append(stat)
    own: list[launcher.Stat] = []
    unproven: list[launcher.Stat] = []
    for process in state["processes"]:
        leader = stats.get(process["pid"])
        if leader is not None and leader.start != process["start_ticks"]:
            continue  # the number belongs to someone else now
        for stat in by_number.get(process["pid"], ()):
            proven = leader is not None or process["output_inode"] in pipes_of(stat.pid)
            (own if proven else unproven).append(stat)
    return Members(tuple(own), tuple(unproven))


def living_members(state: State | None) -> Members:
    """The same, of this host, now."""
    return members(state, launcher.all_stats(), launcher.boot_id(), launcher.pid_namespace(), procfs.pipes_of)


def foreign_listener(observed: Observed, address: str, port: int) -> str | None:
    """Who listens there when it is nobody of this unit; None when it is one of its own.

    Of a container's processes only those can be told that this user may look at: where nothing is seen, none is blamed.
    """
    found = [
        one for one in procfs.listeners() if one.port == port and (one.wildcard or one.address == address)
    ]  # none: it has gone since it answered
    inodes = {one.inode for one in found}
    if not found or any(inodes & procfs.sockets_of(pid) for pid in _pids(observed)):
        return None
    owners = procfs.socket_owners(inodes)
    if not owners and runs_elsewhere(observed):
        return None
    return ", ".join(f"{one} ({_name_owner(owners.get(one.inode))})" for one in found)


def _pids(observed: Observed) -> set[int]:
    """Processes of a unit that runs, as this host counts them."""
    state, stats = observed.state, launcher.all_stats()
    if state is None:
        return set()
    if runs_elsewhere(observed):
        return {pid for pid in stats if procfs.pid_namespace(pid) == state["pid_namespace"]}
    # What has left its session is still below the launcher, which is the reaper of all that it started.
    return launcher.descendants(stats, state["pid"])


def last_lines(path: str, count: int, window: int = 65536) -> list[str]:
    """The last lines of a log that say something, without colours; of a progress bar only what it shows now."""
    if count <= 0:
        return []
    try:
        with open(path, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - window))
            text = stream.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (_ANSI.sub("", line.rstrip("\r").rsplit("\r", 1)[-1]).rstrip() for line in text.split("\n"))
    return [line for line in lines if line.strip()][-count:]


def log_tail(path: str, count: int) -> list[str]:
    """The last lines of a process's present run, also when its log was rotated just now."""
    lines = last_lines(path, count)
    if not lines:
        lines = last_lines(path + ".1", count)
    starts = [i for i, line in enumerate(lines) if line.startswith(launcher.ANNOUNCEMENT)]
    return lines[starts[-1] + 1 :] if starts else lines


# ---------------------------------------------------------------------------------------------------------------------
# What is wanted
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class File:
    """A file beside the launch spec, for people to read or run by hand."""

    path: str
    content: bytes
    mode: int


def build_file(path: str, content: str, mode: str) -> File:
    """Check one wanted file."""
    parts = path.split("/")
    if path.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise UnitError(f"the path of a file must lead below the unit's folder, not {json.dumps(path)}")
    if path in OWN_FILES:
        raise UnitError(f"{path} is written by this module itself and cannot be given as a file")
    if not re.match(r"0?[0-7]{3}\Z", mode):
        raise UnitError(f"the mode of {path} must be octal such as '0600', not {json.dumps(mode)}")
    return File(path, launcher.encode(content), int(mode, 8))


@dataclasses.dataclass(frozen=True)
class Wanted:
    """One unit as it should be."""

    name: str
    spec: t.Mapping[str, t.Any]
    files: tuple[File, ...] = ()

    @property
    def sha256(self) -> str:
        """Checksum of the wanted spec."""
        return launcher.spec_sha256(self.spec)


def check(site: Site, name: str, spec: t.Any, environ: t.Mapping[str, str] | None) -> None:
    """Judge a spec as its launcher will; raises SpecError. Without an environment no command is looked for."""
    built = launcher.build_spec(spec)
    if built.unit != name:
        raise launcher.SpecError(f"the spec is the one of unit {built.unit}")
    launcher.check_folder(site.unit_logs(name), "log folder")
    launcher.check_folder(site.unit_dir(name), "unit folder")
    if environ is not None:
        launcher.find_commands(built, environ, site.unit_dir(name))


@dataclasses.dataclass(frozen=True)
class Decision:
    """What is to be done with one unit, and why."""

    action: str
    reason: str

    @property
    def starts(self) -> bool:
        """Whether the unit is brought up."""
        return self.action in ("started", "restarted")


def decide(observed: Observed, sha256: str, restart: bool) -> Decision:
    """What to do so that a unit runs: one with the wanted spec is left alone, whatever else has changed."""
    if not observed.running:
        return Decision("started", why_down(observed))
    if observed.sha256 != sha256:
        return Decision("restarted", "the launch spec changed")
    if restart:
        return Decision("restarted", "asked for")
    return Decision("unchanged", "runs with this launch spec")


def decide_writing(observed: Observed, sha256: str, restart: bool, outdated: t.Sequence[str]) -> Decision:
    """What to do so that a unit can be started by its container.

    What a unit runs with is not replaced under it: a container that comes up again by itself would find a spec that
    nobody has judged together with the other hosts'.
    """
    if observed.running and not restart:
        if observed.sha256 == sha256:
            return Decision("unchanged", "runs with this launch spec")
        return Decision("kept", "runs with another launch spec, which stays until the unit is stopped")
    if outdated:
        return Decision("written", "asked for" if observed.running else why_down(observed))
    return Decision("unchanged", "is written as wanted")


def why_down(observed: Observed) -> str:
    """In what state a unit is that does not run."""
    if not observed.deployed:
        return "not deployed yet"
    if observed.state is None:
        return "was not running"
    if observed.state["end"] is not None:
        return f"had ended: {observed.state['end']['reason']}"
    if observed.held:
        return f"was ending: {observed.state['reason']}"
    return "its launcher was killed"


def outdated_unit(site: Site, wanted: Wanted, launcher_source: str) -> list[str]:
    """What write_unit would change: files of the unit's folder, and the log folder when it is missing."""
    found = outdated_files(site.unit_dir(wanted.name), [*_own_files(wanted, launcher_source), *wanted.files])
    logs = site.unit_logs(wanted.name)
    return found if os.path.isdir(logs) else [*found, logs]


def _own_files(wanted: Wanted, launcher_source: str) -> list[File]:
    """What a launcher needs, the spec last: only with it a unit counts as deployed."""
    text = json.dumps(wanted.spec, indent=1, ensure_ascii=True) + "\n"
    return [
        File(LAUNCHER_FILE, launcher_source.encode("utf-8"), 0o700),
        File(launcher.SPEC_FILE, text.encode("ascii"), 0o600),
    ]


def outdated_files(directory: str, files: t.Iterable[File]) -> list[str]:
    """Paths of the files whose content or mode is not as wanted."""
    return [file.path for file in files if not _is_as_wanted(os.path.join(directory, file.path), file)]


def _is_as_wanted(path: str, file: File) -> bool:
    try:
        with open(path, "rb") as stream:
            return os.fstat(stream.fileno()).st_mode & 0o777 == file.mode and stream.read() == file.content
    except OSError:
        return False


# ---------------------------------------------------------------------------------------------------------------------
# What may be shown
# ---------------------------------------------------------------------------------------------------------------------


def secrets(spec: t.Any) -> set[str]:
    """Values in a spec that must not be printed: of secret-looking variables and options."""
    found: set[str] = set(_secret_variables(_container(spec)).values())
    for process in _processes(spec):
        found.update(_secret_variables(process).values())
        words = _argv(process)
        found.update(words[i] for i in _secret_words(words))
        found.update(word.split("=", 1)[1] for word in words if _is_secret_assignment(word))
    return found


def hide_secrets(hidden: set[str], specs: t.Iterable[t.Any]) -> None:
    """Add to what Ansible blots out wherever it prints: it shows a module's arguments when asked to."""
    for spec in specs:
        hidden.update(value for value in secrets(spec) if len(value) >= masking.SHORTEST_SECRET)


def masked(spec: t.Any) -> t.Any:
    """A copy of a spec that may be printed."""
    shown = copy.deepcopy(spec)
    for part in (_container(shown), *_processes(shown)):
        for name in _secret_variables(part):
            part["env"][name] = masking.MASK
    for process in _processes(shown):
        words = _argv(process)
        hidden = _secret_words(words)
        for i, word in enumerate(words):
            if i in hidden:
                process["argv"][i] = masking.MASK
            elif _is_secret_assignment(word):
                process["argv"][i] = word.split("=", 1)[0] + "=" + masking.MASK
    return shown


def pretty(spec: t.Any) -> str:
    """A spec as text for people: for a diff, with secrets masked."""
    return "" if spec is None else json.dumps(masked(spec), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _processes(spec: t.Any) -> list[dict[str, t.Any]]:
    """What looks like a process; a file on the disk may hold anything."""
    entries = spec.get("processes") if isinstance(spec, dict) else None
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _container(spec: t.Any) -> dict[str, t.Any]:
    """The settings of the unit's container, as far as they look like some."""
    settings = spec.get("container") if isinstance(spec, dict) else None
    return settings if isinstance(settings, dict) else {}


def _secret_variables(part: t.Mapping[str, t.Any]) -> dict[str, str]:
    env = part.get("env")
    pairs = env.items() if isinstance(env, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str) and masking.is_secret_variable(name, value)}


def _argv(process: t.Mapping[str, t.Any]) -> list[str]:
    argv = process.get("argv")
    return [str(word) for word in argv] if isinstance(argv, list) else []


def _secret_words(words: t.Sequence[str]) -> list[int]:
    """--api-key takes one or more values."""
    found: list[int] = []
    within = False
    for i, word in enumerate(words):
        if word.startswith("--"):
            within = masking.is_secret_option(word[2:])
        elif within:
            found.append(i)
    return found


def _is_secret_assignment(word: str) -> bool:
    return word.startswith("--") and "=" in word and masking.is_secret_option(word[2:].split("=", 1)[0])


# ---------------------------------------------------------------------------------------------------------------------
# Stopping
# ---------------------------------------------------------------------------------------------------------------------


class _Stop:
    """One unit on its way down. Every step looks and acts, none waits, so that many units go down together."""

    def __init__(self, observed: Observed, timeout: float | None) -> None:
        self.observed = observed
        self.state = observed.state
        self._listened = _listened_by(living_members(self.state).own) if observed.held else set()
        self._launcher = launcher_process(self.state) if observed.held else None
        self._timeout = self._own_timeout() if timeout is None else timeout

    def _own_timeout(self) -> float:
        spec = self.observed.spec if isinstance(self.observed.spec, dict) else {}
        grace = spec.get("stop_grace_seconds", 60.0)
        return (float(grace) if isinstance(grace, (int, float)) else 60.0) + launcher.KILL_PATIENCE + 5.0

    @property
    def patience(self) -> float:
        """How long the launcher has for an ordered stop; without one there is only its guard to wait for."""
        return self._timeout if self._launcher is not None else launcher.KILL_PATIENCE

    @property
    def held(self) -> bool:
        return launcher.lock_is_held(self.observed.directory)

    def signal(self, number: int) -> None:
        """To the launcher, if it is the process that it was."""
        if self._launcher is not None and launcher_process(self.state) is not None:
            _kill(self._launcher, number)

    def trouble(self) -> str | None:
        """What is still there, for a message; None when nothing is."""
        if self.held:
            if runs_elsewhere(self.observed):
                return IN_CONTAINER
            pid = self.state["pid"] if self.state else "unknown"
            return (
                f"its launcher (pid {pid} by {launcher.STATE_FILE}) is still there and is no process that can be seen"
            )
        # A stop writes its end into the state; the processes that it names are the same as before.
        left = living_members(self.state)
        if left.own:
            return f"did not end, even when killed: {_name_processes(left.own)}"
        if left.unproven:
            return (
                f"left by an earlier run, as far as can be seen, and not ended because this cannot be proven: "
                f"{_name_processes(left.unproven)}"
            )
        still = [listener for listener in procfs.listeners() if (listener.address, listener.port) in self._listened]
        if still:
            owners = procfs.socket_owners([listener.inode for listener in still])
            named = ", ".join(f"{listener} ({_name_owner(owners.get(listener.inode))})" for listener in still)
            return f"still listened on: {named}"
        return None


def _listened_by(processes: t.Iterable[launcher.Stat]) -> set[tuple[str, int]]:
    inodes: set[int] = set()
    for process in processes:
        inodes |= procfs.sockets_of(process.pid)
    return {(found.address, found.port) for found in procfs.listeners() if found.inode in inodes}


def _name_processes(processes: t.Iterable[launcher.Stat]) -> str:
    return ", ".join(f"pid {stat.pid} ({procfs.command_line(stat.pid)})" for stat in processes)


def _name_owner(pid: int | None) -> str:
    return "by a process that cannot be seen" if pid is None else f"by pid {pid}, {procfs.command_line(pid)}"


def _kill(stat: launcher.Stat, number: int) -> None:
    """Signal this very process: never another one that was given its pid in the meantime."""
    now = launcher.read_stat(stat.pid)
    if now is not None and now.start == stat.start:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(stat.pid, number)


def _wait(done: t.Callable[[], bool], seconds: float, step: float = 0.05) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(step)
    return True


def stop(observed: t.Sequence[Observed], timeout: float | None) -> dict[str, str]:
    """Stop units, all at once; returns what went wrong, by unit. Nothing outside their own sessions is touched."""
    stops = [_Stop(one, timeout) for one in observed]
    running = [one for one in stops if one.held and not runs_elsewhere(one.observed)]
    for one in running:
        one.signal(signal.SIGTERM)
    begun = time.monotonic()
    for one in sorted(running, key=lambda each: each.patience):
        _wait(lambda one=one: not one.held, begun + one.patience - time.monotonic())  # type: ignore[misc]
    stubborn = [one for one in running if one.held]
    for one in stubborn:
        one.signal(signal.SIGKILL)
    _wait(lambda: not any(one.held for one in stubborn), launcher.KILL_PATIENCE + GUARD_PATIENCE)
    end_leftovers([one.state for one in stops if not one.held])
    troubles = ((one.observed.name, one.trouble()) for one in stops)
    return {name: trouble for name, trouble in troubles if trouble is not None}


def down_unasked(observed: Observed) -> bool:
    """Whether a unit is deployed and down, and nobody ordered that: a launcher that was told to end says so with 0."""
    end = observed.state["end"] if observed.state is not None else None
    return observed.deployed and not observed.held and (end is None or end["code"] != 0)


def note_stopped(site: Site, name: str) -> None:
    """Enter into the state of a unit that it is down because that is wanted.

    Without this a unit that had crashed before its stop looks for ever as if something were to be repaired.
    """
    observed = observe(site, name)
    if not down_unasked(observed):
        return
    reason = f"stopped by order; before that: {why_down(observed)}"
    state = {
        **(observed.state or launcher.never_started(name)),
        "phase": "ended",
        "reason": reason,
        "end": {"at": time.time(), "code": 0, "reason": reason},
    }
    text = json.dumps(state, indent=1)
    launcher.write_atomically(os.path.join(observed.directory, launcher.STATE_FILE), text.encode("ascii"))


def end_leftovers(states: t.Sequence[State | None]) -> int:
    """End what launchers that were killed have left behind; returns how many processes that were."""

    def left() -> list[launcher.Stat]:
        stats = launcher.all_stats()
        boot, namespace = launcher.boot_id(), launcher.pid_namespace()
        return [stat for state in states for stat in members(state, stats, boot, namespace, procfs.pipes_of).own]

    found = left()
    for number, patience in ((signal.SIGTERM, LEFTOVER_GRACE), (signal.SIGKILL, launcher.KILL_PATIENCE)):
        for stat in left():
            _kill(stat, number)
        if _wait(lambda: not left(), patience):
            break
    return len(found)


# ---------------------------------------------------------------------------------------------------------------------
# Starting
# ---------------------------------------------------------------------------------------------------------------------


def write_files(directory: str, files: t.Iterable[File]) -> None:
    """Write the extra files of a unit."""
    for file in files:
        path = os.path.join(directory, file.path)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        launcher.write_atomically(path, file.content, file.mode)


def write_unit(site: Site, wanted: Wanted, launcher_source: str) -> None:
    """Write everything that a unit is started from."""
    directory = site.unit_dir(wanted.name)
    make_private_folder(directory, under(site.root, site.base_dir))
    make_private_folder(site.unit_logs(wanted.name), under(site.root, site.log_dir))
    write_files(directory, [*_own_files(wanted, launcher_source), *wanted.files])


class Start:
    """A launcher that was started, until it is known whether it came up."""

    def __init__(self, site: Site, wanted: Wanted, environ: t.Mapping[str, str]) -> None:
        self.name = wanted.name
        self.directory = site.unit_dir(wanted.name)
        self.patience = START_PATIENCE + START_PATIENCE_EACH * len(wanted.spec["processes"])
        self._log = os.path.join(self.directory, LAUNCHER_LOG)
        fd = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._log_start = os.fstat(fd).st_size
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    os.path.join(self.directory, LAUNCHER_FILE),
                    "run",
                    "--unit-dir",
                    self.directory,
                    "--log-dir",
                    site.unit_logs(wanted.name),
                ],
                stdin=subprocess.DEVNULL,
                stdout=fd,
                stderr=fd,
                cwd=self.directory,
                env=dict(environ),
                start_new_session=True,
            )
        finally:
            os.close(fd)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exited(self) -> bool:
        """Whether the launcher itself has ended."""
        return self._process.poll() is not None

    def state(self) -> State | None:
        """The state that this launcher has written, not the one of a run before."""
        state = launcher.read_state(self.directory)
        return state if state is not None and state["pid"] == self.pid else None

    @property
    def up(self) -> bool:
        state = self.state()
        return state is not None and state["phase"] == "running"

    @property
    def settled(self) -> bool:
        """Whether there is nothing more to wait for."""
        state = self.state()
        return self.exited or (state is not None and state["phase"] == "running")

    def trouble(self) -> str | None:
        """Why the unit is not up, with the last lines of what explains it; None when it is up."""
        state = self.state()
        if state is not None and state["phase"] != "running":
            _wait(lambda: self.exited, 0.5)
            return _explain_end(self.state() or state)
        if self.exited:
            said = self._said()[-1:] or ["it said nothing"]
            refused = self._process.returncode == launcher.EXIT_REFUSED
            return said[0].split(": refused: ", 1)[-1] if refused else f"its launcher was lost: {said[0]}"
        if state is None:
            return f"its launcher (pid {self.pid}) did not come up within {self.patience:.0f} s"
        return None

    def _said(self) -> list[str]:
        with open(self._log, "rb") as stream:
            stream.seek(self._log_start)
            return [line for line in stream.read().decode("utf-8", "replace").splitlines() if line.strip()]


def _explain_end(state: State) -> str:
    ended = [process for process in state["processes"] if process["ended_at"] is not None]
    if not ended:
        return str(state["reason"])
    first = min(ended, key=lambda process: float(process["ended_at"]))
    tail = log_tail(first["log"], 10)
    if not tail:
        return f"{state['reason']}; it printed nothing ({first['log']})"
    return f"{state['reason']}; last lines of {first['log']}:\n" + "\n".join(tail)


def wait_until_up(starts: t.Sequence[Start]) -> dict[str, str]:
    """Wait until every launcher is up and stays so for a moment; returns what went wrong, by unit."""
    if not starts:
        return {}
    _wait(lambda: all(start.settled for start in starts), max(start.patience for start in starts))
    _wait(lambda: any(not start.up for start in starts), SETTLE_SECONDS)
    troubles = ((start.name, start.trouble()) for start in starts)
    return {name: trouble for name, trouble in troubles if trouble is not None}
