# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Reads /etc/hccn.conf, from which hccn_tool sets the RoCE ports up at boot: ``KEY_CHIP=VALUE``, one a line."""

from __future__ import annotations

import os
import re
import stat
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import (
    Result,
    excerpt,
    is_address,
    is_netmask,
)

MISSING = "missing"
IS_DIRECTORY = "is_directory"
UNREADABLE = "unreadable"
MALFORMED = "malformed"
EMPTY = "empty"

# No blanks around the sign: the tool takes them for a part of the name or the value.
_ENTRY = re.compile(r"([A-Za-z][A-Za-z0-9_]*?)_([0-9]{1,2})=(\S(?:.*\S)?)")
_CHECKS: t.Mapping[str, t.Callable[[str], bool]] = {
    "address": is_address,
    "netmask": is_netmask,
    "netdetect": is_address,
    "gateway": is_address,
}
_CAT_ERRORS = (
    (re.compile(r"cat: \S*: Is a directory"), IS_DIRECTORY),
    (re.compile(r"cat: \S*: No such file or directory"), MISSING),
    (re.compile(r"cat: \S*: Permission denied"), UNREADABLE),
)

_LIMIT = 1024 * 1024


def parse(text: str) -> Result:
    """What the file says: *chips* (physical id as text → key → value) and *lines_not_understood*.

    ``malformed`` when a line is not understood (Windows line ends included), a value is no address, a key is given
    twice with two values, or an address has no netmask; the chips then hold what could be read.
    """
    chips: dict[str, dict[str, str]] = {}
    wrong: list[str] = []
    lines = text.split("\n")
    for pattern, state in _CAT_ERRORS:
        if pattern.fullmatch(text.strip()):
            return _answer(state, text=excerpt(text))
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = None if line.endswith("\r") else _ENTRY.fullmatch(line)
        if match is None:
            wrong.append(line[:120])
            continue
        key, chip, value = match.groups()
        values = chips.setdefault(str(int(chip)), {})
        if not _CHECKS.get(key, _anything)(value) or values.get(key, value) != value:
            wrong.append(line[:120])
        else:
            values[key] = value
    for chip, values in chips.items():
        if "address" in values and "netmask" not in values:
            wrong.append(f"address_{chip} without netmask_{chip}")
    chips = {chip: values for chip, values in chips.items() if values}
    if wrong:
        return _answer(MALFORMED, chips, wrong, text=excerpt("\n".join(wrong)))
    return _answer("ok" if chips else EMPTY, chips)


def _anything(_value: str) -> bool:
    return True


def _answer(
    state: str, chips: t.Mapping[str, t.Any] | None = None, wrong: t.Sequence[str] = (), **more: t.Any
) -> Result:
    return {"state": state, "chips": dict(chips or {}), "lines_not_understood": list(wrong), **more}


def read_file(path: str) -> tuple[str, str]:
    """(state, text) of a small file: ``ok`` and its content, else why it cannot be read."""
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            # What docker makes of a file that was to be mounted and did not exist.
            return IS_DIRECTORY, ""
        with open(path, encoding="utf-8", errors="replace", newline="") as stream:
            return "ok", stream.read(_LIMIT)
    except FileNotFoundError:
        return MISSING, ""
    except OSError as error:
        return UNREADABLE, error.strerror or str(error)


def read(path: str) -> Result:
    """The file itself: *state*, *chips*, *lines_not_understood*."""
    state, text = read_file(path)
    return parse(text) if state == "ok" else _answer(state, text=text)
