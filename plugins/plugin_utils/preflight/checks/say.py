# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""How a check speaks: it says of every place it looked at whether it is good, and of what is not, why."""

from __future__ import annotations

import collections
import functools
import re
import typing as t

from ..fleet import Fleet
from ..verdicts import Check, Place, Severity, Verdict, Words

Value = t.TypeVar("Value", bound=t.Hashable)


def numbers(values: t.Iterable[int]) -> str:
    """0-3,8: runs of numbers as people write them."""
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def names(values: t.Iterable[object], limit: int = 6) -> str:
    """a, b, c (+4): a list that stays readable."""
    listed = [str(value) for value in dict.fromkeys(values)]
    return ", ".join(listed[:limit]) + (f" (+{len(listed) - limit})" if len(listed) > limit else "")


_ONE_CHIP = re.compile(r"`hccn_tool -i \{first\} ([^`]*)`")


@functools.cache
def _for_all(words: Words) -> Words:
    """Commands for one chip as a loop over all; what each chip needs its own ADDRESS for stays for one."""

    def loop(text: str) -> str:
        return _ONE_CHIP.sub(
            lambda match: (
                match[0] if "ADDRESS" in match[1] else f"`for i in {{list}}; do hccn_tool -i $i {match[1]}; done`"
            ),
            text,
        )

    return Words(words.message, loop(words.fix), words.message_zh, loop(words.fix_zh))


_CALL = re.compile(r"hccn_tool -i (\{\w+\}|\$i|N) -(\{query\}|\w+) -([gs])([^`;]*)")
_COMMAND = re.compile(r"`[^`]*hccn_tool[^`]*`")
_CHIP_NUMBER = re.compile(r"\{(first|chip|list)\}")


@functools.cache
def _mode_first(words: Words) -> Words:
    """Commands in the syntax of A5's hccn_tool: mode before query before device, which is npu-smi's NPU ID there.

    A link is asked port by port (`hccn_tool -g -dev_info` lists them).
    """

    def call(match: re.Match[str]) -> str:
        device, query, mode, rest = match.groups()
        ports = {"link": " -u UDIE -p PORT", "{query}": "{ports}"}.get(query, "") if mode == "g" else ""
        return f"hccn_tool -{mode} -{query} -i {device}{ports}{rest}"

    def command(match: re.Match[str]) -> str:
        return _CHIP_NUMBER.sub(r"{npu_\1}", _CALL.sub(call, match[0]))

    return Words(words.message, _COMMAND.sub(command, words.fix), words.message_zh, _COMMAND.sub(command, words.fix_zh))


class Say:
    """Collects what one check says. hosts: those it can be made on, in the plan's order."""

    def __init__(self, check: Check, hosts: list[str], fleet: Fleet) -> None:
        self.check = check
        self.hosts = hosts
        self.fleet = fleet
        self.verdicts: list[Verdict] = []
        self.good: set[Place] = set()
        self.hidden: set[str] = set()

    def ok(self, host: str, chip: int | None = None) -> None:
        """Looked at and good."""
        self.good.add(Place(host, chip))

    def blocked(self, host: str) -> None:
        """Could not be told because of something that another check says."""
        self.hidden.add(host)

    def say(
        self,
        severity: Severity,
        words: Words,
        host: str,
        chip: int | None = None,
        *,
        expected: object = "",
        found: object = "",
        also: t.Iterable[Place] = (),
        **values: object,
    ) -> None:
        """One verdict. {host}, {chip}, {card}, {die}, {expected} and {found} are always there for the words.

        {card} and {die} are what npu-smi calls {chip}, or {first} of several.
        """
        texts = {name: str(value) for name, value in values.items()}
        texts |= {"host": host, "chip": "" if chip is None else str(chip)}
        texts |= {"expected": str(expected), "found": str(found)}
        if "count" in texts:
            texts["others"] = f"{texts['count']} other host{'' if texts['count'] == '1' else 's'}"
            texts["have"] = "has" if texts["count"] == "1" else "have"
        one = texts["chip"] or texts.get("first", "")
        place = self.fleet.place(host, int(one)) if one else None
        texts["card"], texts["die"] = map(str, place or ("CARD", "CHIP"))
        if self.fleet.hardware == "a5":
            words = _mode_first(words)
            texts["ports"] = " -u UDIE -p PORT" if texts.get("query") == "link" else ""
            for name in ("first", "chip", "list"):
                texts[f"npu_{name}"] = " ".join(self._npu_id(host, number) for number in texts.get(name, "").split())
        own = Place(host, chip)
        others = tuple(place for place in dict.fromkeys(also) if place != own)
        self.verdicts.append(
            Verdict(
                self.check.id, self.check.tag, severity, host, chip, str(expected), str(found), words, texts, others
            )
        )

    def _npu_id(self, host: str, chip: str) -> str:
        place = self.fleet.place(host, int(chip))
        return chip if place is None else str(place[0])

    def error(self, words: Words, host: str, chip: int | None = None, **values: t.Any) -> None:
        self.say("error", words, host, chip, **values)

    def warning(self, words: Words, host: str, chip: int | None = None, **values: t.Any) -> None:
        self.say("warning", words, host, chip, **values)

    def info(self, words: Words, host: str, chip: int | None = None, **values: t.Any) -> None:
        self.say("info", words, host, chip, **values)

    def unknown(self, words: Words, host: str, chip: int | None = None, **values: t.Any) -> None:
        self.say("unknown", words, host, chip, **values)

    def each(
        self,
        severity: Severity,
        words: Words,
        host: str,
        chips: t.Sequence[int],
        of: t.Sequence[int],
        **values: t.Any,
    ) -> None:
        """What is wrong alike on chips of a host: once where that is all of them (two or more), else once per chip.

        The words may use {chips}, and {first} for the chip of a command.
        """
        if len(chips) > 1 and len(chips) == len(of):
            also = [Place(host, chip) for chip in chips]
            listed = " ".join(map(str, chips))
            common = {"chips": numbers(chips), "first": chips[0], "list": listed}
            self.say(severity, _for_all(words), host, None, also=also, **common, **values)
            return
        for chip in chips:
            self.say(severity, words, host, chip, chips=chip, first=chip, **values)


def grouped(values: t.Iterable[tuple[int, Value]]) -> dict[Value, list[int]]:
    """Chips by what they have in common."""
    groups: dict[Value, list[int]] = collections.defaultdict(list)
    for chip, value in values:
        groups[value].append(chip)
    return dict(groups)


class Odd(t.NamedTuple):
    """Who differs from the rest: places with their value. usual is None where no value has a majority."""

    usual: t.Any
    majority: list[Place]
    minority: dict[t.Any, list[Place]]


def odd_ones(values: t.Mapping[Place, Value]) -> Odd | None:
    """The minority among these, or None when all are equal.

    More than half of the places make a majority. Without one, the places with the most frequent value (the first of
    equals) stand as the majority's list, but usual is None: nobody can tell who is right.
    """
    groups: dict[Value, list[Place]] = collections.defaultdict(list)
    for place, value in values.items():
        groups[value].append(place)
    if len(groups) < 2:
        return None
    usual = max(groups, key=lambda value: len(groups[value]))
    rest = {value: places for value, places in groups.items() if value != usual}
    return Odd(usual if 2 * len(groups[usual]) > len(values) else None, groups[usual], rest)
