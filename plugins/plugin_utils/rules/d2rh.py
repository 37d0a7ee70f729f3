# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""MooncakeD2RHConnectorV1: what it was validated with, how its ranks run, and the host memory that decode pins."""

from __future__ import annotations

import typing as t

from .. import hostmemory, tables
from ..command import option
from ..model import Finding, Placement
from ..tables import D2RH_CONNECTOR
from .context import Context, error, warning

_MODEL = "DeepSeek-V4-Flash"
_SIZES = (4, 1, 1)
_UTILIZATION = 0.9
# Below this share of free memory the model's own loading may already fail.
_HEADROOM = 0.1


def validated(context: Context) -> t.Iterator[Finding]:
    """Upstream has run it in one configuration."""
    cluster = context.cluster
    if not context.transport.stages:
        return
    differs = []
    first = tables.described_from(D2RH_CONNECTOR, cluster.versions)
    if first is not None:
        differs.append(
            f"pd_vllm_ascend_version {cluster.versions.vllm_ascend}, which does not have it ({first} or newer)"
        )
    if cluster.hardware.name != "a5":
        differs.append(f"pd_hardware {cluster.hardware.name} (a5)")
    elif cluster.fabric != "uboe":
        differs.append(f"pd_fabric {cluster.fabric} (uboe)")
    if _MODEL.lower() not in cluster.model_path.lower():
        differs.append(f"pd_model_path {cluster.model_path} ({_MODEL})")
    for instance in context.complete:
        sizes = (instance.dp_size, instance.tp_size, instance.rank_width // instance.tp_size)
        if sizes != _SIZES or len(instance.members) > 1:
            hosts = f" on {len(instance.members)} hosts" if len(instance.members) > 1 else ""
            differs.append(
                f"{instance.name} with DP{instance.dp_size} TP{instance.tp_size}{hosts} (DP4 TP1 on one host)"
            )
    if cluster.kv_pool is not None:
        differs.append("pd_kv_pool (none)")
    if differs:
        more = f" and {len(differs) - 4} more" if len(differs) > 4 else ""
        yield warning(
            "d2rh-not-validated",
            "all",
            "pd_connector",
            cluster.connector,
            f"{cluster.connector} has been validated on 850E with UBoE and {_MODEL}, one prefill and one decode host, only; "
            f"here differs, with the validated value: {', '.join(differs[:4])}{more}",
            f"use an image of vLLM-Ascend {first} or newer, or MooncakeConnectorV1 or MooncakeHybridConnector"
            if first is not None
            else "try it apart from production, or use MooncakeConnectorV1 or MooncakeHybridConnector",
        )


def internal_only(context: Context) -> t.Iterator[Finding]:
    if not context.transport.stages:
        return
    for instance in context.complete:
        if instance.external and instance.dp_size > 1:
            yield error(
                "d2rh-dp-mode",
                instance.name,
                "pd_dp_mode",
                instance.dp_mode,
                f"instance {instance.name} has external data parallelism; {D2RH_CONNECTOR} runs with one API server per instance "
                "that spreads requests over its ranks, and without launch_online_dp.py",
                "set pd_dp_mode: internal",
            )


def host_memory(context: Context) -> t.Iterator[Finding]:
    """Pinned host memory of all decode ranks of a host, against its container's limit and the host's memory."""
    by_host: dict[str, list[tuple[Placement, int]]] = {}
    for placement in context.placements:
        pinned = hostmemory.pinned(context.cluster, placement)
        if pinned is None:
            continue
        if pinned.total_gib is None:
            yield warning(
                "d2rh-host-memory",
                placement.host,
                "pd_kv_cache_gib",
                None,
                f"decode pins as much host memory as its device KV cache takes, {pinned.arithmetic}; how large that is, is not known",
                "set pd_kv_cache_gib to 'Available KV cache memory' of the engine's log, rounded up, and pd_host_memory_gib",
            )
            continue
        by_host.setdefault(placement.host, []).append((placement, pinned.total_gib))
        limit = context.cluster.container_memory_gib
        if limit is not None:
            yield from _against(
                placement,
                pinned.total_gib,
                pinned.arithmetic,
                limit,
                "pd_container_memory_gib",
                "the container's limit",
            )
    for host, shares in by_host.items():
        placement = shares[0][0]
        memory = placement.member.host_memory_gib
        if memory is None:
            continue
        parts = [hostmemory.pinned(context.cluster, share) for share, _gib in shares]
        said = " + ".join(part.arithmetic for part in parts if part is not None)
        total = sum(gib for _share, gib in shares)
        said += f", together {total} GiB" if len(shares) > 1 else ""
        yield from _against(placement, total, said, memory, "pd_host_memory_gib", f"the memory of {host}")


def _against(
    placement: Placement, needed: int, arithmetic: str, there: int, variable: str, what: str
) -> t.Iterator[Finding]:
    left = there - needed
    if left > there * _HEADROOM:
        return
    say = error if left <= 0 else warning
    yield say(
        "d2rh-host-memory",
        placement.host,
        variable,
        there,
        f"decode on {placement.host} pins host memory: {arithmetic}; {what} is {there} GiB, "
        + (
            f"{-left} GiB too little"
            if left < 0
            else f"which leaves {left} GiB for loading the model and everything else"
        ),
        "lower gpu-memory-utilization of decode, run fewer ranks there, or raise the limit",
    )


def capacity(context: Context) -> t.Iterator[Finding]:
    if not context.transport.stages:
        return
    for placement, args in context.of_role("decode"):
        value = option(args, "gpu-memory-utilization")
        if value is None or _is_validated(value):
            continue
        argument = args["gpu-memory-utilization"]
        yield warning(
            "d2rh-capacity",
            placement.host,
            f"{argument.variable}.{argument.name}",
            value,
            f"gpu-memory-utilization of decode is {value} instead of the validated {_UTILIZATION}: it moves the KV cache, and with it "
            "the staging memory on the host and the largest request that fits",
            "check host memory (pd_kv_cache_gib) and the maximum request length again",
        )


def _is_validated(utilization: t.Any) -> bool:
    try:
        return float(utilization) == _UTILIZATION
    except (TypeError, ValueError):
        return True  # no number at all, which another rule says


RULES = (validated, internal_only, host_memory, capacity)
