#!/usr/bin/python3 -I
# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""An OCI runtime in front of runc, for machines without CAP_SYS_RESOURCE, as many virtual ones are.

There the kernel refuses that capability, limits above the hard limit and OOM scores below the current one, and with them
whole containers: `--privileged`, `--ulimit memlock=-1`. This lowers what a container asks for to what can be had, and hands
over to runc. `docker inspect` goes on showing what was asked for. Used for the lab's hosts and, as their runc, for the
containers on them. Elsewhere it changes nothing.
"""

from __future__ import annotations

import json
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CAPABILITY, CAPABILITY_BIT = "CAP_SYS_RESOURCE", 1 << 24
RUNC = ("/usr/sbin/runc.real", "/usr/sbin/runc", "/usr/bin/runc")


def is_limited() -> bool:
    with open("/proc/self/status", encoding="ascii") as status:
        bounding_set = next(int(line.split()[1], 16) for line in status if line.startswith("CapBnd"))
    return not bounding_set & CAPABILITY_BIT


def clamp(process: dict[str, Any]) -> None:
    """Lower what a process asks for, in the terms of the OCI runtime specification."""
    for kind, names in (process.get("capabilities") or {}).items():
        process["capabilities"][kind] = [name for name in names if name != CAPABILITY]
    for limit in process.get("rlimits") or []:
        hard = resource.getrlimit(getattr(resource, limit["type"]))[1]
        if hard != resource.RLIM_INFINITY:
            # Negative is unlimited.
            limit["hard"] = min(limit["hard"], hard) if limit["hard"] >= 0 else hard
            limit["soft"] = min(limit["soft"], limit["hard"]) if limit["soft"] >= 0 else limit["hard"]
    if process.get("oomScoreAdj") is not None:
        with open("/proc/self/oom_score_adj", encoding="ascii") as score:
            process["oomScoreAdj"] = max(process["oomScoreAdj"], int(score.read()))


def rewrite(path: str, is_bundle: bool) -> None:
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    clamp(content["process"] if is_bundle else content)
    with open(path + ".tmp", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(path + ".tmp", path)


def option(arguments: list[str], *names: str) -> str | None:
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name in names:
            return value if equals else arguments[position + 1]
    return None


def main(arguments: list[str]) -> None:
    process = option(arguments, "--process", "-p")
    if is_limited() and {"create", "run"} & set(arguments):
        rewrite(os.path.join(option(arguments, "--bundle", "-b") or ".", "config.json"), is_bundle=True)
    elif is_limited() and "exec" in arguments and process:
        rewrite(process, is_bundle=False)
    runc = next(path for path in RUNC if os.path.exists(path))
    os.execv(runc, [runc, *arguments])


if __name__ == "__main__":
    main(sys.argv[1:])
