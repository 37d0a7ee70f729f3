# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Answers of the Ascend tools: the states that one can have, and the sentences by which the tools refuse.

An answer is a dictionary with ``state``. With ``ok`` the fields of the query follow, and all of them could be read;
otherwise ``text`` shows the beginning of what the tool has printed. What cannot be read, or only in part, is
``unknown``: nobody may take it for good. Exit codes are of no use here (both tools exit with 0 where they have failed).
"""

from __future__ import annotations

import dataclasses
import re
import typing as t

OK = "ok"
NOT_CONFIGURED = "not_configured"
UNSUPPORTED = "unsupported"
NO_SUCH_DEVICE = "no_such_device"
BUSY = "busy"
TIMEOUT = "timeout"
SPENT = "seconds for this host were spent"
"""In the text of a question that was not asked any more."""
DENIED = "denied"
CONF_UNREADABLE = "conf_unreadable"
TOOL_MISSING = "tool_missing"
FAILED = "failed"
UNKNOWN = "unknown"

STATES = (
    OK,
    NOT_CONFIGURED,
    UNSUPPORTED,
    NO_SUCH_DEVICE,
    BUSY,
    TIMEOUT,
    DENIED,
    CONF_UNREADABLE,
    TOOL_MISSING,
    FAILED,
    UNKNOWN,
)

Result = t.Dict[str, t.Any]

TEXT_LIMIT = 300
"""Characters of an answer that are kept for a person."""

# The sentences of the tools' own message tables. The order matters: that of hccn.conf also speaks of permissions.
_FAULTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), state)
    for pattern, state in (
        (r"hccn\.conf can't access|conf file can't access|parsing configurations from config file", CONF_UNREADABLE),
        (r"(?:open|read) file failed, cmd execute failed", CONF_UNREADABLE),
        (r"hccn_tool is busy|device is occupied|i2c is busy|get lock failed|please try again", BUSY),
        (r"no \w+ was preset|no certificate found|please preset first", NOT_CONFIGURED),
        (r"\bnot supported\b|\b(?:does|do) not support\b|command unsupported", UNSUPPORTED),
        (
            r"device is not exist|device does not exist|no such device|device id .*\binvalid|invalid device id",
            NO_SUCH_DEVICE,
        ),
        (r"permission denied|operation not permitted|check cmd run permission", DENIED),
        (r"execute timeout", TIMEOUT),
        (r"command not found|no such file or directory", TOOL_MISSING),
        (r"execute failed|execution failed|get \w[\w ]* failed|\bfailed\.|control link unreachable", FAILED),
    )
)

# What is printed along with a good answer and says nothing about it.
_NOISE = re.compile(
    r"\s*(?:DrvMngGetConsoleLogLevel failed\. \(\w+=-?[0-9]+\)|Get pid name failed\."
    r"|Cmd executed successfully!|\[(?:WARNING|INFO)\].*)?\s*",
    re.IGNORECASE,
)

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}")
# What stands where no address is: zeros, or the placeholder that once ended in somebody's rank table.
_UNSET_ADDRESS = re.compile(r"|0\.0\.0\.0|-\.-\.-\.-|-|NA|N/A|none|null", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a tool has printed: the *lines* that say something, and whether the last one is *complete*."""

    raw: str
    lines: tuple[str, ...]
    complete: bool

    @property
    def fault(self) -> str | None:
        """The state that one of the lines stands for, if the tool has refused."""
        return fault_of(self.lines)

    def pairs(self) -> list[tuple[str, str]] | None:
        """Every line as (label in small letters, value); None when one is anything else."""
        found = []
        for line in self.lines:
            label, colon, value = line.partition(":")
            if not colon or not label.strip():
                return None
            found.append((" ".join(label.split()).lower(), value.strip()))
        return found

    def refused(self, state: str | None = None, **fields: t.Any) -> Result:
        """The answer without what was asked for: *state*, else what the tool has said, else unknown."""
        return refused(state or self.fault or UNKNOWN, self.raw, **fields)

    def settled(self, fields: t.Mapping[str, t.Any] | None) -> Result:
        """The answer with *fields*, unless there are none. A refusal next to a value contradicts it."""
        if fields is None:
            return self.refused()
        return self.refused(UNKNOWN) if self.fault else {"state": OK, **fields}


def listen(text: str) -> Answer:
    """Take apart what a tool has printed. Lines may end as those of a terminal do."""
    plain = text.replace("\r\n", "\n")
    lines = tuple(line for line in plain.split("\n") if not _NOISE.fullmatch(line))
    return Answer(text, lines, plain.endswith("\n"))


def refused(state: str, text: str, **fields: t.Any) -> Result:
    """An answer that is not ok."""
    return {"state": state, "text": excerpt(text), **fields}


def excerpt(text: str) -> str:
    """The beginning of an output, for a person."""
    return text.strip()[:TEXT_LIMIT]


def fault_of(lines: t.Iterable[str]) -> str | None:
    """The state that the first refusal among *lines* stands for; None when there is none."""
    kept = list(lines)
    for pattern, state in _FAULTS:
        if any(pattern.search(line) for line in kept):
            return state
    return None


def is_address(value: str) -> bool:
    """Whether a text is an IPv4 address that one thing in a network can have: no loopback, multicast or broadcast address."""
    if _IPV4.fullmatch(value) is None or is_unset(value):
        return False
    first = int(value.partition(".")[0])
    return 0 < first < 224 and first != 127


def is_own_address(value: str, netmask: str) -> bool:
    """Whether an address is not the one that the whole subnet, or all of it at once, goes by."""
    bits = _number(netmask) ^ 0xFFFFFFFF
    # Two addresses or one: both are somebody's.
    return bits <= 1 or _number(value) & bits not in (0, bits)


def _number(address: str) -> int:
    number = 0
    for octet in address.split("."):
        number = number * 256 + int(octet)
    return number


def is_ipv4(value: str) -> bool:
    """Whether a text has the form of an IPv4 address, whoever may have it."""
    return _IPV4.fullmatch(value) is not None


def is_unset(value: str) -> bool:
    """Whether a text stands for an address that was not set."""
    return _UNSET_ADDRESS.fullmatch(value) is not None


def is_netmask(value: str) -> bool:
    """Whether a text is a netmask. No beginning of one is another one, so a cut netmask is always noticed."""
    if _IPV4.fullmatch(value) is None or is_unset(value):
        return False
    inverted = _number(value) ^ 0xFFFFFFFF
    return inverted & (inverted + 1) == 0
