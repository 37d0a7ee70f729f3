# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The container of a placement: devices, mounts and limits that its hardware needs."""

from __future__ import annotations

import typing as t

from .model import Cluster, Placement


def unit_name(cluster: Cluster, instance_name: str) -> str:
    """Name of the container, and of the unit that the launcher supervises."""
    return f"pd-{cluster.name}-{instance_name}"


def container(cluster: Cluster, placement: Placement) -> dict[str, t.Any]:
    """What `docker run` needs, with host networking: HCCL takes another container address for another server."""
    hardware = cluster.hardware
    privileged_sees_all = hardware.privileged and "pd_mapped_chips" not in placement.instance.given
    chips = (
        list(range(placement.member.chips_per_node)) if privileged_sees_all else sorted(placement.member.mapped_chips)
    )
    return {
        "name": unit_name(cluster, placement.instance.name),
        "image": cluster.image,
        "network": "host",
        "devices": [f"/dev/davinci{chip}" for chip in chips] + [f"/dev/{node}" for node in hardware.device_nodes],
        "mounts": mounts(cluster, placement),
        "privileged": hardware.privileged,
        "shm_size": hardware.shm_size,
        "ulimits": list(hardware.ulimits),
        "capabilities": list(hardware.capabilities),
        "env": {},
    }


def mounts(cluster: Cluster, placement: Placement) -> list[str]:
    """host:container[:ro]; the model is mounted read-only at its own path unless a given mount already holds it."""
    out = [*cluster.hardware.mounts, *placement.member.mounts]
    targets = [mount.split(":")[1].rstrip("/") for mount in out]
    if not any(cluster.model_path == target or cluster.model_path.startswith(target + "/") for target in targets):
        out.append(f"{cluster.model_path}:{cluster.model_path}:ro")
    return out
