# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What preflight has gathered so far, in the controller's private folder of this run: one file per part and host.

Facts of a thousand hosts never travel in variables of Ansible; the tasks that need all of them read these files.
"""

from __future__ import annotations

import json
import os
import pathlib
import typing as t

from .. import slices
from . import facts as f

VIEW = "view"
PLAN = "plan"
PINGED = "pinged"
PARTS = ("npu", "host", "listen", "pings", "probes", PINGED)
SCHEDULED = ("npu", "host", "listen", "pings", "probes", "done")
"""Parts that only hosts have which were chosen for them."""


def answer(part: str, told: t.Mapping[str, t.Any], before: float, after: float) -> t.Any:
    """What is kept of a part's answer. *before* and *after*: the controller's clock around it."""
    if part == "host":
        about = dict(told.get("facts") or {})
        clock = about.get("clock") or {}
        return {**about, "findings": told["findings"], "clock": {**clock, "before": before, "after": after}}
    if part == "probes":
        return told["probes"]
    return told


class Store:
    """Files of one run. *local_tmp* is ansible.constants.DEFAULT_LOCAL_TMP."""

    def __init__(self, local_tmp: str) -> None:
        self._folder = slices.directory(local_tmp) / "preflight"

    def write(self, part: str, host: str, content: t.Any) -> None:
        """Keep one part of one host; what an earlier play of the run gathered is replaced."""
        folder = self._folder / part
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._path(part, host)
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(content), encoding="utf-8")
        os.replace(temporary, path)

    def read(self, part: str, host: str) -> t.Any:
        """One part of one host; None when it was not gathered."""
        try:
            return json.loads(self._path(part, host).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None

    def forget(self) -> None:
        """Let go of everything but the view: a new round of questions begins."""
        for part in (*PARTS, *(f"{part}-wanted" for part in SCHEDULED)):
            for path in sorted((self._folder / part).glob("*")):
                path.unlink(missing_ok=True)

    def want(self, part: str, host: str, arguments: t.Mapping[str, t.Any]) -> None:
        """Choose what a module is asked on a host."""
        self.write(f"{part}-wanted", host, arguments)

    def wanted(self, part: str, host: str) -> dict[str, t.Any] | None:
        """What was chosen; None when nothing was."""
        return t.cast("dict[str, t.Any] | None", self.read(f"{part}-wanted", host))

    def write_pinged(self, hosts: t.Sequence[str]) -> None:
        """Keep which hosts the pings were chosen among."""
        self.write(PINGED, PINGED, list(hosts))

    def pinged(self, facts: t.Mapping[str, f.Facts]) -> dict[str, f.Facts]:
        """Facts of those hosts: one that failed since the first question was neither asked to ping nor pinged."""
        hosts = self.read(PINGED, PINGED)
        return {host: about for host, about in facts.items() if hosts is None or host in hosts}

    def write_plan(self, encoded: bytes, view: f.PlanView) -> None:
        """Keep the plan as JSON, and what the judgement needs of it."""
        self.write(VIEW, VIEW, view)
        (self._folder / PLAN).write_bytes(encoded)

    def plan(self) -> dict[str, t.Any]:
        """The plan of this run as JSON."""
        loaded: dict[str, t.Any] = json.loads((self._folder / PLAN).read_bytes())
        return loaded

    def view(self) -> f.PlanView | None:
        """The plan of this run; None when there is none."""
        return t.cast("f.PlanView | None", self.read(VIEW, VIEW))

    def facts(self, hosts: t.Iterable[str]) -> dict[str, f.Facts]:
        """Facts of every host that told any."""
        found: dict[str, f.Facts] = {}
        for host in hosts:
            npu, about = self.read("npu", host), self.read("host", host)
            if npu is None and about is None:
                continue
            probes = self.read("probes", host)
            if about is not None and probes is not None:
                about = {**about, "probes": probes}
            found[host] = {"npu": npu, "host": about}
        return found

    def _path(self, part: str, host: str) -> pathlib.Path:
        return self._folder / part / slices.file_name(host)
