# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Asks hccn_tool and npu-smi. Nothing but the queries listed here can be asked, so that nothing can be set by them.

A second hccn_tool at the same time is told "busy", so the calls of a host take turns under a kernel lock. A call that
meets a monitoring agent's is tried again a few times; one that hangs, as it may on a chip that is offline, is
killed with everything it has started. All calls together have a budget of time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import selectors
import signal
import subprocess
import time
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import sites
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import answers
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import Result

HCCN_TOOL = "hccn_tool"
NPU_SMI = "npu-smi"

PLACES: t.Mapping[str, tuple[str, ...]] = {
    HCCN_TOOL: ("/usr/local/Ascend/driver/tools/hccn_tool",),
    # Which of the two differs between hosts.
    NPU_SMI: (sites.NPU_SMI, sites.NPU_SMI_ELSEWHERE),
}

_CHIP = r"[0-9]{1,3}"
_ADDRESS = r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}"
ALLOWED: t.Mapping[str, tuple[re.Pattern[str], ...]] = {
    HCCN_TOOL: (
        re.compile(rf"-i {_CHIP} -(?:lldp|link|net_health|netdetect|gateway|ip|vnic|tls) -g"),
        re.compile(rf"-i {_CHIP} -ping -g address {_ADDRESS}"),
        re.compile(rf"-i {_CHIP} -hccs_ping -g address {_ADDRESS}(?: cnt [0-9]+)?(?: interval [0-9]+)?"),
        re.compile(rf"-g -(?:tls|dev_info|netdetect|gateway|ip|vnic) -i {_CHIP}"),
        re.compile(rf"-g -link -i {_CHIP} -u [0-9]{{1,2}} -p [0-9]{{1,2}}"),
    ),
    NPU_SMI: (
        re.compile(r"info(?: -[ml])?"),
        re.compile(rf"info -t spod-info -i {_CHIP} -c {_CHIP}"),
    ),
}
"""Everything that may be asked. ``-s``, ``-cfg`` and the other words that change something are in none of it."""

FIRST_PAUSE = 0.1
BUSY_TRIES = 6
"""Pauses of 0.1, 0.2, 0.4 … seconds: a little over three in all, unless the budget ends earlier."""

BUSY_IN_A_ROW = 4
"""After so many questions in a row that found the tool busy to the end, it is not waited for any more, till it answers."""

HANGS_PER_CHIP = 2
"""After so many calls about one chip that hung, the chip is not asked any more."""

_OUTPUT_LIMIT = 1024 * 1024


class NotAllowed(ValueError):
    """The words are none of the queries."""


@dataclasses.dataclass(frozen=True)
class Call:
    """One question and what came of it: *state* is ``ok`` when the tool has ended by itself and *text* is whole."""

    state: str
    text: str
    exit_code: int | None = None
    spent: bool = False

    def read(self, parser: t.Callable[[str], Result]) -> Result:
        """The answer, by a parser when there is something to be read."""
        if self.state != answers.OK:
            return answers.refused(self.state, self.text)
        result = parser(self.text)
        # Only for a person; nothing is decided by it.
        return {**result, "exit_code": self.exit_code} if self.exit_code else result


class Tools:
    """The tools of one host.

    *root* is put before the paths of the host, *environ* is what the tools run with, *timeout* and *budget* are the
    seconds that one call and all calls together may take.
    """

    def __init__(
        self, root: str, environ: t.Mapping[str, str], path_first: bool, timeout: float, budget: float
    ) -> None:
        self.root = root.rstrip("/")
        # Parsers read English.
        self.environ = {**environ, "LC_ALL": "C", "LANG": "C", "LANGUAGE": "C"}
        self.timeout = timeout
        self.started = time.monotonic()
        self.deadline = self.started + budget
        self.budget = budget
        self.count = 0
        self.busy_retries = 0
        self.seconds = 0.0
        self.paths = {name: find(name, self.root, environ.get("PATH", ""), path_first) for name in PLACES}
        self._states: dict[str, list[tuple[str, str]]] = {name: [] for name in PLACES}
        self._hangs: dict[int, int] = {}
        self._busy_in_a_row = 0

    # What a caller asks

    def ask(self, name: str, words: t.Sequence[str], chip: int | None = None) -> Call:
        """Ask a tool. *chip* is the one that the question is about."""
        line = " ".join(words)
        if not any(pattern.fullmatch(line) for pattern in ALLOWED[name]):
            raise NotAllowed(f"{name} {line} is none of the queries that are allowed")
        call = self._ask(name, words, chip)
        if chip is not None and call.state == answers.TIMEOUT and not call.spent:
            self._hangs[chip] = self._hangs.get(chip, 0) + 1
        said = call.state if call.state != answers.OK else answers.fault_of(answers.listen(call.text).lines)
        self._states[name].append((said or answers.OK, call.text))
        return call

    def report(self) -> Result:
        """How the tools themselves fared: *tools* and *calls* of the result."""
        tools = {}
        for name, key in ((HCCN_TOOL, "hccn_tool"), (NPU_SMI, "npu_smi")):
            state, text = self._tool_state(name)
            tools[key] = {"path": self.paths[name], "state": state}
            if state != answers.OK:
                tools[key]["text"] = answers.excerpt(text)
        calls = {
            "count": self.count,
            "seconds": round(self.seconds, 3),
            "busy_retries": self.busy_retries,
            "elapsed": round(time.monotonic() - self.started, 3),
        }
        return {"tools": tools, "calls": calls}

    @property
    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.deadline - time.monotonic()

    def _tool_state(self, name: str) -> tuple[str, str]:
        if self.paths[name] is None:
            return answers.TOOL_MISSING, missing_text(name, self.root, self.environ.get("PATH", ""))
        # A tool that has answered anything is there and works; its answers are judged one by one.
        broken = (answers.DENIED, answers.FAILED, answers.TIMEOUT, answers.TOOL_MISSING)
        states = self._states[name]
        if not states or any(state not in broken for state, _text in states):
            return answers.OK, ""
        return states[0]

    # How it is asked

    def _ask(self, name: str, words: t.Sequence[str], chip: int | None) -> Call:
        path = self.paths[name]
        if path is None:
            return Call(answers.TOOL_MISSING, missing_text(name, self.root, self.environ.get("PATH", "")))
        if chip is not None and self._hangs.get(chip, 0) >= HANGS_PER_CHIP:
            return Call(answers.TIMEOUT, f"not asked: {HANGS_PER_CHIP} calls about chip {chip} hung before")
        pause = FIRST_PAUSE
        call = Call(answers.UNKNOWN, "")
        tries = BUSY_TRIES if self._busy_in_a_row < BUSY_IN_A_ROW else 1
        for attempt in range(tries):
            if self.left <= 0:
                return self._spent() if attempt == 0 else call
            call = self._call(name, path, words)
            busy = call.state == answers.OK and answers.fault_of(answers.listen(call.text).lines) == answers.BUSY
            if not busy or attempt == tries - 1:
                self._busy_in_a_row = self._busy_in_a_row + 1 if busy else 0
                break
            self.busy_retries += 1
            time.sleep(max(0.0, min(pause, self.left)))
            pause *= 2
        return call

    def _spent(self) -> Call:
        return Call(answers.TIMEOUT, f"not asked: the {self.budget:g} {answers.SPENT}", spent=True)

    def _call(self, name: str, path: str, words: t.Sequence[str]) -> Call:
        if name != HCCN_TOOL:
            return self._run([path, *words])
        with self._turn(path) as mine:
            if not mine:
                text = "not asked: other runs on this host ask hccn_tool without a pause"
                return Call(answers.BUSY, text, spent=True)
            return self._run([path, *words])

    @contextlib.contextmanager
    def _turn(self, path: str) -> t.Iterator[bool]:
        """Hold the lock of this host's hccn_tool. Nothing is made for it: it is on what is there anyway.

        In a rehearsal many hosts share one stand-in, so there it is the host's root.
        """
        descriptor = _open_first([self.root] if self.root else [path, os.path.dirname(path)])
        if descriptor is None:
            yield True
            return
        try:
            yield self._lock(descriptor)
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> bool:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if self.left <= 0:
                    return False
                time.sleep(0.005)
            except OSError:
                # A file system without locks: taking turns is then up to the tool itself.
                return True

    def _run(self, argv: t.Sequence[str]) -> Call:
        started = time.monotonic()
        limit = min(self.timeout, max(0.0, self.deadline - started))
        self.count += 1
        try:
            return run(argv, self.environ, limit)
        finally:
            self.seconds += time.monotonic() - started


def faults(params: t.Mapping[str, t.Any]) -> list[str]:
    """What is wrong with a module's options about the tools."""
    return ["timeout and budget must be more than 0 seconds"] if min(params["timeout"], params["budget"]) <= 0 else []


def tools_of(params: t.Mapping[str, t.Any]) -> Tools:
    """The tools as a module's options want them used."""
    environment = params["environment"]
    environ = sites.launch_environment(environment)
    return Tools(params["root"], environ, "PATH" in environment, params["timeout"], params["budget"])


def run(argv: t.Sequence[str], environ: t.Mapping[str, str], timeout: float) -> Call:
    """Run one command; what it prints on both channels is its answer. Kills it, and its children, after *timeout*."""
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            cwd="/",
            start_new_session=True,
        )
    except FileNotFoundError as error:
        return Call(answers.TOOL_MISSING, f"{argv[0]}: {error.strerror}")
    except PermissionError as error:
        return Call(answers.DENIED, f"{argv[0]}: {error.strerror}")
    except OSError as error:
        return Call(answers.FAILED, f"{argv[0]}: {error.strerror or error}")
    assert process.stdout is not None
    deadline = time.monotonic() + timeout
    with process.stdout as stream:
        data, ended = _collect(stream.fileno(), deadline)
        in_time = ended and _wait(process, max(0.0, deadline - time.monotonic()))
        if not in_time:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            # A process that hangs in the driver cannot be killed; the module goes on without it.
            _wait(process, 1.0)
    text = data[:_OUTPUT_LIMIT].decode("utf-8", errors="replace")
    if len(data) > _OUTPUT_LIMIT:
        return Call(answers.FAILED, f"printed more than {_OUTPUT_LIMIT} bytes: {text}", process.returncode)
    if not in_time:
        said = f" It had printed: {text}" if text.strip() else ""
        return Call(answers.TIMEOUT, f"no end after {timeout:g} s, killed.{said}", process.returncode)
    if process.returncode < 0:
        return Call(answers.FAILED, f"ended by signal {-process.returncode}: {text}", process.returncode)
    return Call(answers.OK, text, process.returncode)


def _collect(descriptor: int, deadline: float) -> tuple[bytes, bool]:
    """Everything printed until the end of the stream, and whether that came before the deadline."""
    parts: list[bytes] = []
    size = 0
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while size <= _OUTPUT_LIMIT:
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                return b"".join(parts), False
            part = os.read(descriptor, 65536)
            if not part:
                return b"".join(parts), True
            parts.append(part)
            size += len(part)
    return b"".join(parts), False


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    # One that has closed its output is about to end; wait() looks for that a millisecond later at the earliest.
    for _look in range(20):
        if process.poll() is not None:
            return True
        time.sleep(0.00005)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _open_first(paths: t.Iterable[str]) -> int | None:
    for path in paths:
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return None


def find(name: str, root: str, path: str, path_first: bool) -> str | None:
    """Where a tool is: in its usual places below *root*, or in PATH, which comes first when somebody has set it."""
    usual = [root + place for place in PLACES[name]]
    in_path = [os.path.join(folder, name) for folder in path.split(os.pathsep) if folder.startswith("/")]
    candidates = in_path + usual if path_first else usual + in_path
    return next((one for one in candidates if os.path.isfile(one) and os.access(one, os.X_OK)), None)


def missing_text(name: str, root: str, path: str) -> str:
    """Where a tool was looked for."""
    return f"{name} is neither at {', '.join(root + place for place in PLACES[name])} nor in PATH={path}"
