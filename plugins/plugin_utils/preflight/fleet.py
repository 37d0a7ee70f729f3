# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""All hosts' facts behind questions that checks ask. Facts are read with care: a shape that is not as promised is unknown."""

from __future__ import annotations

import collections
import dataclasses
import functools
import ipaddress
import re
import typing as t

from . import facts as f

UNANSWERED = frozenset({"busy", "timeout", "denied", "failed", "unknown", "tool_missing", "unsupported"})
HCCN_CONF = "/etc/hccn.conf"
VENDOR = "/usr/local/Ascend/driver"


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Where a number becomes a warning or an error."""

    clock_warning_seconds: float = 2.0
    clock_error_seconds: float = 60.0
    disk_warning_mb: int = 10 * 1024
    disk_error_mb: int = 1024
    worker_memory_mb: int = 4 * 1024
    idle_memory_mb: int = 4 * 1024
    memory_differs_percent: int = 5
    latency_factor: float = 5.0
    latency_floor_us: float = 50.0


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One query's answer: a state that is always there and fields that may be."""

    state: str
    fields: t.Mapping[str, t.Any]

    @property
    def ok(self) -> bool:
        return self.state == "ok"

    @property
    def text(self) -> str:
        return one_line(self.fields.get("text") or "")

    def word(self, name: str) -> str | None:
        """A field as text; None when it is not there or empty."""
        value = self.fields.get(name)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return None
        return str(value).strip() or None

    def number(self, name: str) -> int | None:
        """A field as a number; 0 is one."""
        return whole(self.fields.get(name))


NOTHING = Answer("unknown", {})


def one_line(text: t.Any, limit: int = 120) -> str:
    """Text of a tool, fit for a message."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def whole(value: t.Any) -> int | None:
    """An integer given as number or as decimal text; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,18}", value.strip()) else None


@functools.lru_cache(maxsize=2**16)
def address(text: str | None) -> ipaddress.IPv4Address | None:
    """An IPv4 address that a chip can have; None for a placeholder such as -.-.-.- (FAB-03), loopback, multicast, nothing."""
    try:
        parsed = ipaddress.IPv4Address(str(text).strip())
    except ValueError:
        return None
    first = parsed.packed[0]
    return parsed if 0 < first < 224 and first != 127 else None


def network(answer: Answer) -> ipaddress.IPv4Network | None:
    """The subnet of an address query; None when either half is no IPv4 value."""
    ip, mask = address(answer.word("ipaddr")), answer.word("netmask")
    if ip is None or mask is None:
        return None
    try:
        return ipaddress.IPv4Network(f"{ip}/{mask}", strict=False)
    except ValueError:
        return None


def mapping(value: t.Any) -> t.Mapping[str, t.Any]:
    return value if isinstance(value, dict) else {}


def listing(value: t.Any) -> list[t.Any]:
    return value if isinstance(value, list) else []


def generation_of(name: str) -> str | None:
    """a2, a3 or a5 by the name npu-smi gives a chip, "other" for an Ascend of another kind, None when it tells nothing.

    Seen: 910B1-910B4 (A2), Ascend910 and 910C1 (A3), Ascend950PR and Ascend950DT (A5).
    """
    name = name.strip().upper().removeprefix("ASCEND").lstrip("_- ")
    if not name or not name[0].isdigit():
        return None
    if name.startswith("950"):
        return "a5"
    if name.startswith("910B"):
        return "a2"
    if re.match(r"910(C|_93|$)", name):
        return "a3"
    return "other"


Answered = t.TypeVar("Answered")


def _remembered(method: t.Callable[[Fleet, str], Answered]) -> t.Callable[[Fleet, str], Answered]:
    """What a fleet has worked out about a host once, it keeps as long as it lives."""

    @functools.wraps(method)
    def ask(self: Fleet, host: str) -> Answered:
        key = (method.__name__, host)
        if key not in self.memory:
            self.memory[key] = method(self, host)
        known: Answered = self.memory[key]
        return known

    return ask


class Fleet:
    """Facts, plan and pings of one run. hosts: those that answered, in the plan's order."""

    def __init__(
        self,
        view: f.PlanView,
        facts: t.Mapping[str, f.Facts],
        pings: f.PingRun | None,
        asked: t.Collection[str],
        expected: t.Collection[str],
        limits: Limits,
        halves: t.Collection[str] = ("npu", "host"),
    ) -> None:
        self.memory: dict[tuple[str, str], t.Any] = {}
        self._known: dict[tuple[str, int, str], Answer] = {}
        self.view = view
        self.limits = limits
        self.halves = frozenset(halves)
        self._facts = facts
        order = [*view["hosts"], *(host for host in expected if host not in view["hosts"])]
        self.expected = [host for host in order if host in set(expected)]
        self.asked = [host for host in self.expected if host in set(asked)]
        self.hosts = [host for host in self.asked if mapping(facts.get(host))]
        self.silent = [host for host in self.asked if host not in set(self.hosts)]
        self.pings: f.PingRun = pings or {"mode": "none", "results": [], "left_out": []}

    # What a host is ----------------------------------------------------------------------------------------------

    @property
    def hardware(self) -> str:
        return self.view["hardware"]

    @property
    def plane(self) -> str:
        return self.view["plane"]

    def planned(self, host: str) -> f.HostView:
        return self.view["hosts"][host]

    def planned_chips(self, host: str) -> list[int]:
        return self.planned(host)["chips"] if host in self.view["hosts"] else []

    def npu(self, host: str) -> t.Mapping[str, t.Any]:
        return mapping(mapping(self._facts.get(host)).get("npu"))

    def host(self, host: str) -> t.Mapping[str, t.Any]:
        return mapping(mapping(self._facts.get(host)).get("host"))

    def findings(self, host: str) -> list[t.Mapping[str, t.Any]]:
        return [one for one in listing(self.host(host).get("findings")) if isinstance(one, dict) and one.get("check")]

    def has(self, need: str, host: str) -> bool:
        """Whether what a check needs can be read on a host."""
        if need == "host":
            return bool(self.host(host))
        if need == "findings":
            return isinstance(self.host(host).get("findings"), list)
        if not self.npu(host):
            return False
        if need == "hccn":
            return self.hccn_state(host) == "ok"
        if need == "smi":
            return self.smi_state(host) == "ok"
        if need == "generation":
            return self.other_generation(host) is None
        assert need == "npu", need
        return True

    def concerns(self, need: str, host: str) -> bool:
        """Whether a check with this need is about this host at all: no chips, nothing to ask of them."""
        return need in ("host", "findings") or bool(self.planned_chips(host))

    # What the tools said -----------------------------------------------------------------------------------------

    def answer(self, host: str, chip: int, query: str) -> Answer:
        key = (host, chip, query)
        known = self._known.get(key)
        if known is None:
            raw = mapping(mapping(self._asked_of_chips(host).get(str(chip))).get(query))
            state = raw.get("state")
            known = self._known[key] = Answer(state, raw) if isinstance(state, str) else NOTHING
        return known

    def queries(self, host: str, chip: int) -> list[str]:
        """What hccn_tool was asked about a chip (spod is npu-smi's)."""
        return [query for query in mapping(self._asked_of_chips(host).get(str(chip))) if query != "spod"]

    @_remembered
    def _asked_of_chips(self, host: str) -> t.Mapping[str, t.Any]:
        return mapping(self.npu(host).get("chips"))

    def _answers(self, host: str, chip: int) -> list[Answer]:
        return [self.answer(host, chip, query) for query in self.queries(host, chip)]

    def tool(self, host: str, name: str) -> t.Mapping[str, t.Any]:
        return mapping(mapping(self.npu(host).get("tools")).get(name))

    @_remembered
    def hccn_state(self, host: str) -> str:
        """ok, or why nothing of this host's hccn_tool can be used: one verdict then, not one per chip and query."""
        state = str(self.tool(host, "hccn_tool").get("state") or "unknown")
        if state != "ok":
            return state
        states = {answer.state for chip in self.planned_chips(host) for answer in self._answers(host, chip)}
        return states.pop() if len(states) == 1 and states <= {"denied", "tool_missing", "busy", "timeout"} else "ok"

    def smi(self, host: str) -> t.Mapping[str, t.Any]:
        return mapping(self.npu(host).get("npu_smi"))

    def smi_state(self, host: str) -> str:
        state = str(self.tool(host, "npu_smi").get("state") or "unknown")
        return state if state != "ok" else str(self.smi(host).get("state") or "unknown")

    def smi_chips(self, host: str) -> t.Mapping[str, t.Any]:
        return mapping(self.smi(host).get("chips"))

    def smi_chip(self, host: str, chip: int) -> t.Mapping[str, t.Any]:
        return mapping(self.smi_chips(host).get(str(chip)))

    def place(self, host: str, chip: int) -> tuple[int, int] | None:
        """(card, chip of the card): what npu-smi, and A5's hccn_tool, take for a physical id. None when nobody tells."""
        entry: t.Mapping[str, t.Any] = self.smi_chip(host, chip)
        if "card" not in entry:
            listed = (mapping(one) for one in listing(mapping(self.npu(host).get("mapping")).get("chips")))
            entry = next((one for one in listed if whole(one.get("physical")) == chip), {})
        card, die = whole(entry.get("card")), whole(entry.get("chip"))
        return None if card is None or die is None else (card, die)

    @_remembered
    def other_generation(self, host: str) -> str | None:
        """What shows that a host is of another generation than the plan says; None when nothing does."""
        names = {str(mapping(chip).get("name") or "") for chip in self.smi_chips(host).values()}
        wrong = sorted(name for name in names if generation_of(name) not in (None, self.hardware))
        if wrong:
            return f"{len(self.smi_chips(host))} chips named {', '.join(wrong)}"
        if self.hardware == "a3" and self.plane == "hccs":
            chips = self.planned_chips(host)
            vnics = {self.answer(host, chip, "vnic").state for chip in chips}
            pings = self.ping_states.get(host)
            # The HCCS ping and vNIC addresses exist on A3 boards only.
            if vnics == {"unsupported"}:
                return "hccn_tool -vnic is not supported there"
            if pings == {"unsupported"}:
                return "hccn_tool -hccs_ping is not supported there"
        return None

    @_remembered
    def missing_chips(self, host: str) -> list[int]:
        """Planned chips that the host does not have."""
        known = {chip for chip in map(whole, self.smi_chips(host)) if chip is not None}
        smi = self.smi_state(host) == "ok" and bool(known)
        return [
            chip
            for chip in self.planned_chips(host)
            if (smi and chip not in known)
            or any(answer.state == "no_such_device" for answer in self._answers(host, chip))
        ]

    @_remembered
    def mute_chips(self, host: str) -> list[int]:
        """Chips that are there and answer no query of hccn_tool at all."""
        out = []
        for chip in self.planned_chips(host):
            answers = self._answers(host, chip)
            if chip not in self.missing_chips(host) and all(answer.state in UNANSWERED for answer in answers):
                out.append(chip)
        return out

    @_remembered
    def chips(self, host: str) -> list[int]:
        """Planned chips that can be asked: neither missing nor mute, each of which has a verdict of its own."""
        gone = {*self.missing_chips(host), *self.mute_chips(host)}
        return [chip for chip in self.planned_chips(host) if chip not in gone]

    def filed(self, host: str, chip: int) -> t.Mapping[str, t.Any]:
        """What hccn.conf says of a chip, by key."""
        return mapping(mapping(mapping(self.npu(host).get("hccn_conf")).get("chips")).get(str(chip)))

    @_remembered
    def present_chips(self, host: str) -> list[int]:
        gone = set(self.missing_chips(host))
        return [chip for chip in self.planned_chips(host) if chip not in gone]

    # The network of the chips ----------------------------------------------------------------------------------------

    def plane_query(self) -> str:
        """The query that tells the address a chip is reached at."""
        return "vnic" if self.plane == "hccs" else "ip"

    def roce_used(self, host: str) -> bool:
        """Whether the RoCE ports of a host matter: always on that plane; with HCCS where somebody has set addresses."""
        return self.plane == "roce" or any(self.answer(host, chip, "ip").ok for chip in self.chips(host))

    def link_down(self, host: str, chip: int) -> bool:
        answer = self.answer(host, chip, "link")
        return answer.ok and (answer.word("link") or "").upper() == "DOWN"

    def port_down(self, host: str, chip: int) -> bool:
        """Whether the port that pings of a chip go through is down: its vNIC with HCCS, its RoCE port otherwise."""
        if self.plane != "hccs":
            return self.link_down(host, chip)
        answer = self.answer(host, chip, "vnic")
        return answer.ok and (answer.word("link") or "").upper() == "DOWN"

    @_remembered
    def super_pod(self, host: str) -> int | None:
        """The super pod that most chips of a host are in; None where none tells it, or pods do not matter."""
        if self.hardware != "a3" or self.plane != "hccs":
            return None
        answers = [self.answer(host, chip, "spod") for chip in self.present_chips(host)]
        pods = [answer.number("super_pod_id") for answer in answers if answer.ok]
        known = collections.Counter(pod for pod in pods if pod is not None)
        return known.most_common(1)[0][0] if known else None

    @functools.cached_property
    def ping_states(self) -> dict[str, set[object]]:
        """What became of the pings that each host sent, as states."""
        states: dict[str, set[object]] = collections.defaultdict(set)
        for ping in self.pings.get("results") or []:
            states[ping["from_host"]].add(ping.get("state"))
        return dict(states)
