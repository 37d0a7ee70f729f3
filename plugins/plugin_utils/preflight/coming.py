# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What this very run puts right after preflight, and which is therefore no reason to refuse."""

from __future__ import annotations

import typing as t

from . import facts as f

# States of a file that role hccn writes without being told to overwrite.
_WRITABLE = ("missing", "empty")


def without(about: f.Facts, checks: t.Container[str], files: t.Container[str] = ()) -> None:
    """Drop the host's own findings of these checks, and those about files that are not there yet."""
    told = about.get("host")
    if told:
        told["findings"] = [
            one
            for one in told.get("findings") or []
            if one["check"] not in checks and not (one["check"] == "path" and one["value"] in files)
        ]


def with_hccn_conf(about: f.Facts, wanted: t.Mapping[t.Any, t.Any], overwrite: bool) -> bool:
    """Let the host have the hccn.conf that role hccn leaves there; whether that role writes it without asking.

    wanted is the role's hccn_conf: physical id -> key -> value. What is wrong with it the role tells.
    """
    npu = about.get("npu")
    conf = npu.get("hccn_conf") if npu else None
    if not npu or not conf or not wanted:
        return False
    if conf.get("state") in _WRITABLE:
        # Without the file the tool tells no address either: nothing to compare with.
        npu["hccn_conf"] = {"state": "coming", "chips": {}, "lines_not_understood": []}
        return True
    if not overwrite or conf.get("state") != "ok":
        return False
    chips = {chip: dict(values) for chip, values in (conf.get("chips") or {}).items()}
    for chip, values in wanted.items():
        if isinstance(values, dict):
            chips[str(chip)] = {**chips.get(str(chip), {}), **{key: str(value) for key, value in values.items()}}
    npu["hccn_conf"] = {**conf, "chips": chips}
    return True
