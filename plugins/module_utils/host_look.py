# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Everything that module host_check tells of a host. Changes nothing."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import (
    docker_check,
    host_check,
    kernel,
    mooncake,
    units,
)

FAULTS = (units.UnitError, kernel.KernelError, OSError)
"""What answer() raises, each with a message that can be read alone."""


def answer(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """The answer of module host_check to these options, with *warnings*."""
    wrong = check_folders(params)
    if wrong is not None:
        raise units.UnitError(wrong)
    environ = units.launch_environment(params["environment"])
    site = units.site_of(params)
    seen = look_at_engine(site, params)
    findings = [
        *host_check.check_devices(params["root"], params["chips"], params["device_nodes"]),
        *host_check.check_paths(params["root"], params["paths"]),
        *host_check.check_executables(params["root"], params["executables"], environ),
        *seen.findings,
        *host_check.check_runtime(site, params["engine"]),
        *host_check.check_ports(
            site,
            [host_check.build_range(entry) for entry in params["ports"]],
            seen.containers,
            params["containers"],
        ),
    ]
    told: dict[str, t.Any] = {
        "findings": findings,
        "prepare": left_to_prepare(seen, params),
        "docker": None if seen.version is None else dataclasses.asdict(seen.version),
        "warnings": [
            f"{finding['message']}. Fix: {finding['fix']}" for finding in findings if finding["severity"] == "warning"
        ],
    }
    if params["facts"]:
        told["facts"], troubles = tell_facts(site, seen, params)
        told["warnings"] += troubles
    return told


def look_at_engine(site: units.Site, params: t.Mapping[str, t.Any]) -> docker_check.Look:
    """What the container engine says, when one is needed."""
    if params["engine"] == "none":
        return docker_check.Look([])
    return docker_check.look(
        site, params["containers"], params["chips"], params["image"] or "", params["image_source"] or ""
    )


def left_to_prepare(seen: docker_check.Look, params: t.Mapping[str, t.Any]) -> list[str]:
    """What roles host and image would change. They are not asked themselves: each look costs a task on every host."""
    if params["engine"] == "none":
        return []
    wanted = kernel.plan(params["sysctl_file"], params["reserved_ports"], params["hugepages"])
    left = {
        "requests": any(finding["check"] == "requests" for finding in seen.findings),
        "kernel": bool(wanted.values) and wanted.needed,
        # What the image is now is told by its id; what it will be, by role mooncake once it is there.
        "mooncake": bool(params["mooncake_state"])
        and not mooncake.is_known(
            params["mooncake_state"], params["image"], None if seen.image is None else seen.image.id
        ),
        "image": bool(params["image"]) and seen.image is None,
    }
    return [name for name, missing in left.items() if missing]


def check_folders(params: t.Mapping[str, t.Any]) -> str | None:
    """What is wrong with the paths of facts; None when nothing is."""
    relative = [
        f"{option} has {path!r}"
        for option in ("models", "disks")
        for path in params[option]
        if not path.startswith("/")
    ]
    return f"paths must be absolute: {', '.join(relative)}" if relative else None


def tell_facts(
    site: units.Site, seen: docker_check.Look, params: t.Mapping[str, t.Any]
) -> tuple[dict[str, t.Any], list[str]]:
    """What the host is, and what could not be read of it."""
    from ansible_collections.ascend.pd_serving.plugins.module_utils import host_facts

    docker: dict[str, t.Any] | None = None
    if seen.version is not None:
        docker = {"version": seen.version.version}
        if params["image"]:
            docker["image"] = {
                "present": seen.image is not None,
                "digest": (None if seen.image is None else seen.image.id) or None,
                # Made on each host, it has an id of its own on each.
                "parts": (seen.image and seen.image.labels.get(mooncake.PARTS_LABEL)) or None,
            }
    gathered = host_facts.gather(site, params["models"], params["disks"], seen.containers)
    return {**gathered.facts, "docker": docker}, gathered.troubles
