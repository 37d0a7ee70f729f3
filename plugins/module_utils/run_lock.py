# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""One run at a time changes a cluster on a host: a file there names the run that does.

Every look at the file and every change of it happens under a kernel lock on its folder, so that of two runs that come
at the same moment one has it and the other one sees that. The kernel takes that lock away from a process that dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import time
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import sites

LOCK_FILE = "run.lock"

UNKNOWN = "somebody"

_TEXT = {"type": "str", "default": ""}
OPTIONS: t.Mapping[str, t.Any] = {
    "state": {"type": "str", "choices": ["taken", "released"], "default": "taken"},
    **sites.SITE_OPTIONS,
    "verb": _TEXT,
    "owner": _TEXT,
    "run_id": _TEXT,
    "ended_run": _TEXT,
    "max_age_seconds": {"type": "int", "default": 7200},
    "force": {"type": "bool", "default": False},
}
"""Of module run_lock."""

REMOVALS = 100
"""How often other runs may remove the folder while this one wants to lock it."""

LATEST = 1e11
"""No clock shows later seconds than these; in a file that somebody wrote by hand there may be anything."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """The run that has the lock. *renewed* is when it last said so."""

    owner: str
    run_id: str
    verb: str
    since: float
    renewed: float

    def age(self, now: float) -> float:
        """Seconds since its last sign of life; a clock that was set back makes none negative."""
        return max(0.0, now - self.renewed)

    def describe(self, now: float) -> str:
        """Who, what, and since when, for a message."""
        verb = f" ({self.verb})" if self.verb else ""
        return f"{self.owner}{verb}, since {_timestamp(self.since)}, {duration(max(0.0, now - self.since))} ago"

    def report(self, now: float) -> dict[str, t.Any]:
        """The same for a program."""
        return {
            "owner": self.owner,
            "run_id": self.run_id,
            "verb": self.verb,
            "since": self.since,
            "age_seconds": round(self.age(now), 3),
        }


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of the lock. *holder* has it now, *note* is what a person should be told, if anything."""

    action: str
    holder: Holder | None
    note: str = ""

    @property
    def refused(self) -> bool:
        """Whether another run has it."""
        return self.action == "refused"


def answer(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """What module run_lock returns, failures among it. *params*: its options, and check_mode."""
    write = not params["check_mode"]
    try:
        if not params["run_id"]:
            raise sites.UnitError("run_id must not be empty")
        site = sites.site_of(params)
        if params["state"] == "released":
            outcome = release(site, params["run_id"], time.time(), write)
        else:
            wanted = new_holder(params["owner"] or UNKNOWN, params["run_id"], params["verb"])
            outcome = take(site, wanted, params["max_age_seconds"], params["force"], params["ended_run"], write)
    except sites.UnitError as error:
        return {"failed": True, "msg": str(error)}
    except OSError as error:
        said = f"the run's lock cannot be kept at {error.filename}: {error.strerror}"
        return {"failed": True, "msg": f"{said}. Fix: let this user write there, or remove what is in the way"}
    now = time.time()
    holder = None if outcome.holder is None else outcome.holder.report(now)
    result = {"changed": False, "action": outcome.action, "holder": holder}
    if outcome.refused and outcome.holder is not None:
        said = refusal(site, outcome.holder, now, params["max_age_seconds"])
        return {**result, "note": said} if params["check_mode"] else {**result, "failed": True, "msg": said}
    return {**result, "note": outcome.note}


def lock_path(site: sites.Site) -> str:
    """The lock file of a cluster."""
    return os.path.join(site.folder, LOCK_FILE)


def take(
    site: sites.Site, wanted: Holder, max_age: float, force: bool = False, dead: str = "", write: bool = True
) -> Outcome:
    """Take the lock for a run, unless another run has it that may still go on.

    *dead* is the id of a run that is known to have ended. Without *write* nothing is changed, not even a folder made.
    """
    if not write:
        return _decide(read(site), wanted, max_age, force, dead)
    for _ in range(REMOVALS):
        sites.make_private_folder(site.folder, sites.under(site.root, site.base_dir))
        with contextlib.suppress(_Removed), _alone_in(site.folder):
            outcome = _decide(read(site), wanted, max_age, force, dead)
            if outcome.action == "renewed":
                os.utime(lock_path(site), (wanted.renewed, wanted.renewed))
            elif not outcome.refused:
                _write(lock_path(site), wanted)
            return outcome
    raise sites.UnitError(f"{site.folder} is removed again and again while this run wants to lock it")


def _decide(holder: Holder | None, wanted: Holder, max_age: float, force: bool, dead: str) -> Outcome:
    now = wanted.renewed
    if holder is None:
        return Outcome("taken", wanted)
    if holder.run_id and holder.run_id == wanted.run_id:
        return Outcome("renewed", dataclasses.replace(holder, renewed=now))
    if holder.run_id and holder.run_id == dead:
        return Outcome("taken_over", wanted, f"took over the lock of a run that has ended: {holder.describe(now)}")
    if force:
        return Outcome("taken_over", wanted, f"took over the lock by force from {holder.describe(now)}")
    if holder.age(now) > max_age:
        words = f"took over a stale lock (older than {duration(max_age)}) from {holder.describe(now)}"
        return Outcome("taken_over", wanted, words)
    return Outcome("refused", holder)


def release(site: sites.Site, run_id: str, now: float, write: bool = True) -> Outcome:
    """Give the lock back. One that another run has taken over in the meantime is that run's, and stays."""
    if not os.path.isdir(site.folder):
        return Outcome("absent", None)
    with contextlib.suppress(_Removed), _alone_in(site.folder):
        holder = read(site)
        if holder is None:
            return Outcome("absent", None)
        if holder.run_id != run_id:
            note = f"left the lock alone: by now another run has it: {holder.describe(now)}"
            return Outcome("not_ours", holder, note)
        if write:
            os.unlink(lock_path(site))
            # A run that was refused before anything was deployed leaves nothing behind.
            with contextlib.suppress(OSError):
                os.rmdir(site.folder)
        return Outcome("released", None)
    return Outcome("absent", None)


def read(site: sites.Site) -> Holder | None:
    """The run that has the lock. A file that says nothing useful is still somebody's."""
    try:
        with open(lock_path(site), encoding="utf-8", errors="replace") as stream:
            renewed = os.fstat(stream.fileno()).st_mtime
            text = stream.read(65536)
    except FileNotFoundError:
        return None
    said: t.Any = None
    with contextlib.suppress(ValueError):
        said = json.loads(text)
    if not isinstance(said, dict):
        said = {}
    since = said.get("since", renewed)
    plausible = isinstance(since, (int, float)) and 0 <= since < LATEST
    return Holder(
        owner=str(said.get("owner") or UNKNOWN),
        run_id=str(said.get("run_id") or ""),
        verb=str(said.get("verb") or ""),
        since=float(since) if plausible else renewed,
        renewed=renewed,
    )


def refusal(site: sites.Site, holder: Holder, now: float, max_age: float) -> str:
    """The one message that the second of two operators reads."""
    left = max(0.0, max_age - holder.age(now))
    return (
        f"another run is changing cluster {site.cluster}: {holder.describe(now)}. Wait until it has ended. "
        f"If it has ended already without giving the lock back: remove {lock_path(site)} on this host, or run again "
        f"with -e lock_force=true. Without a sign of life the lock counts as stale in {duration(left)}."
    )


def _write(path: str, wanted: Holder) -> None:
    content = {"owner": wanted.owner, "run_id": wanted.run_id, "since": wanted.since, "verb": wanted.verb}
    sites.write_atomically(path, (json.dumps(content, indent=1) + "\n").encode("ascii"))


class _Removed(Exception):
    """Another run has let go of the folder, and removed it, before it was locked here."""


@contextlib.contextmanager
def _alone_in(folder: str) -> t.Iterator[None]:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _Removed from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            removed = not os.path.samestat(os.fstat(fd), os.stat(folder))
        except FileNotFoundError:
            removed = True
        if removed:
            raise _Removed
        yield
    finally:
        os.close(fd)


def new_holder(owner: str, run_id: str, verb: str) -> Holder:
    """A run that asks for the lock now."""
    now = time.time()
    return Holder(owner, run_id, verb, now, now)


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def duration(seconds: float) -> str:
    """A span of time in the two units that matter."""
    whole = int(seconds)
    for size, unit, small_size, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // small_size
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
