# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What preflight needs of the plan, as plain data that can be kept in a file between plays."""

from __future__ import annotations

import typing as t

from .. import hostmemory, planner, pool
from ..container import mounts, on_host
from ..model import Cluster, Placement
from . import facts as f

# Between hosts: A2 has RoCE only, A3 HCCS inside a super pod, A5 its UB plane, which has no ping of this kind.
PLANES: t.Mapping[str, f.Plane] = {"a2": "roce", "a3": "hccs", "a5": "ub"}
# What vLLM takes without the option.
MEMORY_UTILIZATION = 0.9


def plan_view(plan: planner.Plan) -> f.PlanView:
    """The view of a plan that has a cluster."""
    cluster = plan.cluster
    assert cluster is not None
    versions = cluster.versions
    on: dict[str, list[Placement]] = {}
    for placement in plan.placements:
        on.setdefault(placement.host, []).append(placement)
    rows = planner.hosts_json(plan)
    return {
        "name": cluster.name,
        "hardware": cluster.hardware.name,
        "plane": PLANES[cluster.hardware.name],
        "topology": cluster.topology,
        "runtime": cluster.runtime,
        "image": cluster.image,
        "versions": {"vllm_ascend": versions.vllm_ascend, "cann": versions.cann, "mooncake": versions.mooncake},
        "rehearsal": cluster.rehearsal,
        "pool": _pool(cluster),
        "hosts": {row["host"]: _host(cluster, row, on.get(row["host"], [])) for row in rows},
    }


def _pool(cluster: Cluster) -> f.PoolView | None:
    """The pool's master; None without one, and for one that a rehearsal must leave alone."""
    address, _colon, port = (pool.master_address(cluster) or "").rpartition(":")
    ours = pool.is_ours(cluster)
    if not address or (cluster.rehearsal and not ours):
        return None
    return {"host": cluster.pool_host if ours else None, "address": address, "port": int(port)}


def _host(cluster: Cluster, row: t.Mapping[str, t.Any], placements: t.Sequence[Placement]) -> f.HostView:
    workers = sum(len(placement.used_chips) for placement in placements)
    pooled = pool.memory(cluster, placements)
    return {
        "node_ip": row["node_ip"],
        "nic": placements[0].member.nic if placements else None,
        # Those that instances compute on: what else a container sees may be somebody else's, or out of order.
        "chips": sorted({chip for placement in placements for chip in placement.member.chips}),
        "chips_per_node": max((placement.member.chips_per_node for placement in placements), default=0),
        "instances": list(row["instances"]),
        "roles": sorted({placement.instance.role for placement in placements}),
        "proxy": bool(row["proxy"]),
        "model_path": _model_path(cluster, placements[0]) if placements else None,
        "workers": workers,
        "memory_utilization": max((_utilization(placement) for placement in placements), default=MEMORY_UTILIZATION),
        "pool_mb": _mb(sum(row["bytes"] for row in pooled)),
        "pool_arithmetic": " + ".join(pool.arithmetic(row) for row in pooled),
        "pinned_mb": 1024 * sum(_pinned_gib(cluster, placement) for placement in placements),
    }


def _model_path(cluster: Cluster, placement: Placement) -> str:
    """Where the model is on the host."""
    docker = cluster.runtime == "docker"
    return on_host(mounts(cluster, placement), cluster.model_path) if docker else cluster.model_path


def _utilization(placement: Placement) -> float:
    """The share of a chip's memory that the engine is told to take."""
    for process in placement.processes:
        words = iter(process.argv)
        for word in words:
            name, _equals, value = word.partition("=")
            if name == "--gpu-memory-utilization":
                try:
                    return min(max(float(value or next(words, "")), 0.0), 1.0)
                except ValueError:
                    return MEMORY_UTILIZATION
    return MEMORY_UTILIZATION


def _pinned_gib(cluster: Cluster, placement: Placement) -> int:
    """Host memory that D2RH decode pins; 0 where there is none or its size is not known."""
    pinned = hostmemory.pinned(cluster, placement)
    return (pinned.total_gib or 0) if pinned else 0


def _mb(size: int) -> int:
    return -(-size // 2**20)
