# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A command of somebody's in the lab: whom it shares the lab with, and its end when it is interrupted."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from pdlab.place import DIR, NAME, LabError

# Not in the lab's own folder, which goes with its last host.
LOCK = DIR / "locks" / NAME
INTERRUPTIONS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
# Seconds that an interrupted command has to tidy up, and what it has left behind to end.
GRACE, LAST_GRACE = 10.0, 3.0


@contextlib.contextmanager
def claimed(words: Sequence[str], alone: bool) -> Iterator[TextIO]:
    """The lab, alone or together with other commands. The kernel gives it back however its holder ends."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with open(LOCK, "a+", encoding="utf-8") as file:
        if not claim(file, alone):
            file.seek(0)
            raise LabError(
                f"another `labctl run` has lab {NAME}{_holder(file.read())}: wait for its end, or take a lab of your own,"
                " for instance LAB_NAME=mine"
            )
        file.truncate(0)
        file.write(f"{os.getpid()} {' '.join(words)}\n")
        file.flush()
        yield file


def claim(file: TextIO, alone: bool) -> bool:
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(noted: str) -> str:
    """Who claimed it last, unless that one has ended already."""
    pid, _, words = noted.strip().partition(" ")
    return f" (pid {pid}: {words})" if pid and Path("/proc", pid).exists() else ""


@contextlib.contextmanager
def supervised(words: Sequence[str], environment: Mapping[str, str]) -> Iterator[tuple[int, signal.Signals | None]]:
    """The command's exit code as a shell gives it, and what interrupted it. After an interruption none
    of the processes that descend from it goes on, and the body of the ``with`` is not interrupted once more."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    caught: list[signal.Signals] = []
    # What is ignored stays so: nohup, jobs in the background of a script.
    heeded = [number for number in INTERRUPTIONS if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: caught.append(signal.Signals(got))) for number in heeded}
    fd_before = signal.set_wakeup_fd(wake)
    try:
        process = subprocess.Popen(words, env=dict(environment))
        ended = os.pidfd_open(process.pid)
        select.select([ended, woken], [], [])
        if caught:
            for number in heeded:
                signal.signal(number, signal.SIG_IGN)
            _end(process, ended, caught[0])
        os.close(ended)
        code = process.wait()
        yield (code if code >= 0 else 128 - code), (caught[0] if caught else None)
    finally:
        signal.set_wakeup_fd(fd_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)


def _end(process: subprocess.Popen[bytes], ended: int, number: signal.Signals) -> None:
    """The command may tidy up; what it leaves behind then has to end."""
    tree = _Tree(process.pid)
    if not (number == signal.SIGINT and _in_foreground()):  # there the terminal has told everybody
        process.send_signal(number)
    select.select([ended], [], [], GRACE)
    tree.grow()
    tree.signal(signal.SIGTERM)
    tree.wait(LAST_GRACE)
    tree.grow()
    tree.signal(signal.SIGKILL)
    tree.wait(LAST_GRACE)
    tree.close()


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


class _Tree:
    """A process and all that descend from it, held so that no number can come to mean another process."""

    def __init__(self, root: int) -> None:
        self.held = {root: os.pidfd_open(root)}
        self.grow()

    def grow(self) -> None:
        """By what those that live have started since."""
        self.forget_ended(0)
        parents = _parents()
        while found := [pid for pid, parent in parents.items() if parent in self.held and pid not in self.held]:
            for pid in found:
                del parents[pid]
                with contextlib.suppress(ProcessLookupError):
                    self.held[pid] = os.pidfd_open(pid)

    def forget_ended(self, seconds: float) -> None:
        """Those that have ended after so long at most, or as soon as one has."""
        poll = select.poll()
        for handle in self.held.values():
            poll.register(handle, select.POLLIN)
        ended = {handle for handle, _ in poll.poll(seconds * 1000)}
        for pid, handle in list(self.held.items()):
            if handle in ended:
                os.close(self.held.pop(pid))

    def signal(self, number: signal.Signals) -> None:
        for handle in self.held.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)

    def wait(self, seconds: float) -> None:
        """Until all have ended, but no longer than this."""
        deadline = time.monotonic() + seconds
        while self.held and (left := deadline - time.monotonic()) > 0:
            self.forget_ended(left)

    def close(self) -> None:
        for handle in self.held.values():
            os.close(handle)


def _parents() -> dict[int, int]:
    """Of every process of the machine."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name before it is in parentheses and may hold anything.
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    return parents
