# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The container of a placement: devices, mounts and limits that its hardware needs."""

from __future__ import annotations

import typing as t

from . import fabric
from .model import Cluster, Placement


def unit_name(cluster: Cluster, instance_name: str) -> str:
    """Name of the container, and of the unit that the launcher supervises."""
    return f"pd-{cluster.name}-{instance_name}"


def unit_folder(cluster: Cluster, unit: str) -> str:
    """Launch specification, launcher and state of a unit; the same path on the host and in its container."""
    return f"/opt/pd_serving/{cluster.name}/{unit}"


def log_folder(cluster: Cluster, unit: str) -> str:
    return f"/var/log/pd_serving/{cluster.name}/{unit}"


def container(cluster: Cluster, placement: Placement) -> dict[str, t.Any]:
    """What `docker run` needs, with host networking: HCCL takes another container address for another server."""
    hardware, instance = cluster.hardware, placement.instance
    chips = sorted(placement.member.mapped_chips)
    return {
        **_base(cluster, unit_name(cluster, instance.name)),
        "devices": [
            *(f"/dev/davinci{chip}" for chip in chips),
            *(f"/dev/{node}" for node in hardware.device_nodes),
            *fabric.device_nodes(cluster),
        ],
        "mounts": [*mounts(cluster, placement), *_own_mounts(cluster, unit_name(cluster, instance.name))],
        "privileged": cluster.container_privileged,
        "shm_size": hardware.shm_size,
        "ulimits": list(hardware.ulimits),
        "capabilities": [*hardware.capabilities, *fabric.capabilities(cluster)],
        "memory": f"{cluster.container_memory_gib}g" if cluster.container_memory_gib else "",
        # A group over several hosts cannot take a member back, so docker must not bring one back on its own.
        "restart_policy": "no" if len(instance.members) > 1 else "unless-stopped",
    }


def proxy_container(cluster: Cluster) -> dict[str, t.Any]:
    """The proxy runs in the same image, where upstream's scripts are; it needs no device."""
    name = unit_name(cluster, "proxy")
    return {
        **_base(cluster, name),
        "devices": [],
        "mounts": _own_mounts(cluster, name),
        "privileged": False,
        "shm_size": cluster.hardware.shm_size,
        "ulimits": [],
        "capabilities": [],
        "memory": "",
        "restart_policy": "unless-stopped",
    }


def pool_container(cluster: Cluster) -> dict[str, t.Any]:
    """The pool's master runs in the same image; it uses no chip, but its libraries want those of the driver."""
    name = unit_name(cluster, "kv-pool")
    return {
        **_base(cluster, name),
        "devices": [],
        "mounts": [*pool_mounts(cluster), *_own_mounts(cluster, name)],
        "privileged": False,
        "shm_size": cluster.hardware.shm_size,
        "ulimits": [],
        "capabilities": [],
        "memory": "",
        "restart_policy": "unless-stopped",
    }


def pool_mounts(cluster: Cluster) -> list[str]:
    return [mount for mount in cluster.hardware.mounts if mount.startswith("/usr/local/Ascend/driver")]


def _base(cluster: Cluster, name: str) -> dict[str, t.Any]:
    folder, logs = unit_folder(cluster, name), log_folder(cluster, name)
    return {
        "name": name,
        "image": cluster.image,
        "network": "host",
        "env": {},
        "command": ["python3", f"{folder}/launcher.py", "run", "--unit-dir", folder, "--log-dir", logs],
        "healthcheck": {
            "test": ["CMD", "python3", f"{folder}/launcher.py", "health", "--unit-dir", folder],
            "interval": "30s",
            "timeout": "20s",
            "retries": 3,
            # Large models load for 10 to 40 minutes.
            "start_period": "1h",
        },
        "labels": {"pd_serving.cluster": cluster.name},
    }


def _own_mounts(cluster: Cluster, name: str) -> list[str]:
    return [f"{path}:{path}" for path in (unit_folder(cluster, name), log_folder(cluster, name))]


def mounts(cluster: Cluster, placement: Placement) -> list[str]:
    """host:container[:ro]; a given mount replaces a built-in one of the same target.

    The model is mounted read-only at its own path unless another mount already holds it.
    """
    own = [f"{cluster.mooncake_prefix}:{cluster.mooncake_prefix}:ro"] if cluster.mooncake_prefix else []
    built_in = (*cluster.hardware.mounts, *fabric.mounts(cluster, placement), *own)
    by_target = {_target(mount): mount for mount in (*built_in, *placement.member.mounts)}
    out, targets = list(by_target.values()), list(by_target)
    if not any(cluster.model_path == target or cluster.model_path.startswith(target + "/") for target in targets):
        out.append(f"{cluster.model_path}:{cluster.model_path}:ro")
    return out


def on_host(mounts_: t.Sequence[str], path: str) -> str:
    """Where a path of the container lies on the host: below the source of the mount that holds it most closely."""
    closest = holding(mounts_, path)
    if closest is None:
        return path
    return closest.split(":")[0].rstrip("/") + path[len(_target(closest)) :]


def holding(mounts_: t.Sequence[str], path: str) -> str | None:
    """The mount that holds a path of the container most closely; None where the image's own files do."""
    found = [mount for mount in mounts_ if f"{path}/".startswith(f"{_target(mount)}/")]
    return max(found, key=lambda mount: len(_target(mount))) if found else None


def _target(mount: str) -> str:
    return mount.split(":")[1].rstrip("/")
