# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Sends pings from the chips of a host, one after the other."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import sites
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import answers, hccn, tool
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import Result
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.tool import HCCN_TOOL, Tools
from ansible_collections.ascend.pd_serving.plugins.module_utils.part_options import DEFAULT_COUNT

MOST_PACKETS = 1000

FAULTS = (sites.UnitError,)
"""What answer() raises, each with a message that can be read alone."""


@dataclasses.dataclass(frozen=True)
class Ping:
    """One chip of this host asks for one address. *mode* is hccs or roce."""

    chip: int
    target: str
    mode: str

    def words(self, count: int, interval: int | None) -> list[str]:
        """What the tool is called with."""
        if self.mode == "roce":
            return ["-i", str(self.chip), "-ping", "-g", "address", self.target]
        words = ["-i", str(self.chip), "-hccs_ping", "-g", "address", self.target]
        words += [] if count == DEFAULT_COUNT else ["cnt", str(count)]
        return words + ([] if interval is None else ["interval", str(interval)])


def answer(params: t.Mapping[str, t.Any]) -> Result:
    """The answer of module hccn_ping to these options."""
    wanted = [Ping(entry["chip"], entry["target"], entry["mode"]) for entry in params["pings"]]
    found = faults(wanted, params["count"], params["interval"]) + tool.faults(params)
    if found:
        raise sites.UnitError("; ".join(found))
    return send(tool.tools_of(params), wanted, params["count"], params["interval"])


def faults(pings: t.Iterable[Ping], count: int, interval: int | None) -> list[str]:
    """Everything that is wrong with what was asked for."""
    found = []
    for number, ping in enumerate(pings):
        if not 0 <= ping.chip <= 999:
            found.append(f"pings[{number}].chip must be a physical id from 0 on, not {ping.chip}")
        if not answers.is_address(ping.target):
            found.append(f"pings[{number}].target must be an IPv4 address, not {ping.target!r}")
    if not 1 <= count <= MOST_PACKETS:
        found.append(f"count must be from 1 to {MOST_PACKETS}, not {count}")
    if interval is not None and interval < 0:
        found.append(f"interval must be milliseconds from 0 on, not {interval}")
    return found


def send(tools: Tools, pings: t.Iterable[Ping], count: int, interval: int | None) -> Result:
    """Send them in their order: *pings*, *left_out*, *tool* and *calls* of the result."""
    sent, left_out = [], []
    for ping in pings:
        call = tools.ask(HCCN_TOOL, ping.words(count, interval), ping.chip)
        if call.spent and tools.left <= 0:
            left_out.append(dataclasses.asdict(ping))
            continue
        answer = call.read(_reader(ping))
        answer.pop("target", None)
        sent.append({**dataclasses.asdict(ping), **answer})
    report = tools.report()
    return {"pings": sent, "left_out": left_out, "tool": report["tools"]["hccn_tool"], "calls": report["calls"]}


def _reader(ping: Ping) -> t.Callable[[str], Result]:
    return lambda text: hccn.parse_ping(text, ping.chip, ping.target)
