# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the judgement says: verdicts, and the report that holds them. No logic beyond putting texts together."""

from __future__ import annotations

import dataclasses
import typing as t

Severity = t.Literal["ok", "info", "warning", "error", "unknown"]
Tag = t.Literal["hardware", "fabric", "host", "ports", "image"]
TAGS: tuple[Tag, ...] = ("hardware", "fabric", "host", "ports", "image")

EVERYTHING = frozenset(("all", "tagged", "preflight"))
"""Tags of Ansible that choose the whole role."""


def chosen_tags(run: t.Collection[str], skip: t.Collection[str]) -> list[Tag]:
    """What --tags and --skip-tags leave: nobody is asked, and nothing is judged, beyond that."""
    everything = bool(EVERYTHING & set(run))
    return [tag for tag in TAGS if (everything or tag in run) and tag not in skip]


# From harmless to worst. Unknown is worse than a warning: nobody has seen that it is good.
RANKS: tuple[Severity, ...] = ("ok", "info", "warning", "unknown", "error")
SHOWN: tuple[Severity, ...] = ("error", "unknown", "warning", "info")


def worst(severities: t.Iterable[Severity]) -> Severity:
    """The worst of these; ok without any."""
    return max(severities, key=RANKS.index, default="ok")


class Place(t.NamedTuple):
    """A host, or one chip of it by its physical id."""

    host: str
    chip: int | None = None

    def __str__(self) -> str:
        return self.host if self.chip is None else f"{self.host} chip {self.chip}"


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """A message and its fix in both languages, with {names} for what differs from case to case."""

    message: str
    fix: str
    message_zh: str
    fix_zh: str


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One check. needs tells what must be readable on a host before it can be judged there (fleet.Fleet.has).

    across: the check compares hosts, so it has not been made until all of them were looked at.
    """

    id: str
    tag: Tag
    title: str
    title_zh: str
    needs: tuple[str, ...]
    across: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that is not simply good. also names further places that take part in it (the other of two equals)."""

    check: str
    tag: Tag
    severity: Severity
    host: str
    chip: int | None
    expected: str
    found: str
    words: Words
    values: t.Mapping[str, str]
    also: tuple[Place, ...] = ()

    @property
    def see(self) -> str:
        return f"docs/preflight.md#{self.check}"

    @property
    def message(self) -> str:
        return self._text(self.words.message)

    @property
    def fix(self) -> str:
        return self._text(self.words.fix)

    @property
    def message_zh(self) -> str:
        return self._text(self.words.message_zh)

    @property
    def fix_zh(self) -> str:
        return self._text(self.words.fix_zh)

    @property
    def places(self) -> tuple[Place, ...]:
        """Every place that this is about, its own first."""
        return (Place(self.host, self.chip), *self.also)

    def _text(self, template: str) -> str:
        return template.format(**self.values)


@dataclasses.dataclass(slots=True)
class Tally:
    """Where a check passed."""

    hosts: set[str] = dataclasses.field(default_factory=set)
    chips: int = 0


@dataclasses.dataclass(slots=True)
class Report:
    """The outcome of one preflight.

    cells: check -> host -> severity, for every host the check was made on; not there where it does not apply. blocked:
    check -> hosts on which it could not be made because of a fault that has a verdict of its own. not_judged: checks
    that would need the hosts in not_asked (or in silent).
    """

    cluster: str
    hardware: str
    plane: str
    made: float
    hosts: list[str]
    not_asked: list[str]
    silent: list[str]
    checks: list[Check]
    verdicts: list[Verdict]
    passed: dict[str, Tally]
    blocked: dict[str, list[str]]
    not_judged: list[str]
    cells: dict[str, dict[str, Severity]]
    chips: dict[str, dict[int, Severity]]
    pings: t.Mapping[str, t.Any]

    def count(self, severity: Severity) -> int:
        return sum(verdict.severity == severity for verdict in self.verdicts)

    @property
    def ok_cells(self) -> int:
        """Pairs of a check and a host that are good."""
        return sum(severity == "ok" for row in self.cells.values() for severity in row.values())

    @property
    def worst(self) -> Severity:
        return worst(verdict.severity for verdict in self.verdicts)
