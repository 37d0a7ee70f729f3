# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Parallel sizes: what instances of one role share, what prefill and decode need of each other, chips claimed twice."""

from __future__ import annotations

import re
import typing as t

from ..connectors import LAYER_PARTITION, layer_partition
from ..model import ROLES, Finding, Instance, Placement
from ..tables import HYBRID_CONNECTOR
from .context import Context, error, given_environment

_SIZES = ("dp_size", "tp_size", "pp_size", "pcp_size", "dcp_size")


def chips_claimed_twice(context: Context) -> t.Iterator[Finding]:
    """Two processes on one chip listen on the same device port (16666)."""
    for host, placements in context.on_host.items():
        for position, placement in enumerate(placements):
            for other in placements[position + 1 :]:
                both = sorted({*placement.member.chips} & {*other.member.chips})
                if both:
                    yield error(
                        "chips-claimed-twice",
                        host,
                        "pd_chips",
                        other.member.chips,
                        f"chips {','.join(map(str, both))} of {host} are claimed by {placement.instance.name} and {other.instance.name}",
                        "give every instance on this host its own chips: pd_chips under pd_instances",
                    )


def same_sizes_per_role(context: Context) -> t.Iterator[Finding]:
    """--kv-transfer-config has one prefill and one decode block, so all instances of a role have the same sizes."""
    for role in ROLES:
        first = context.first(role)
        for instance in context.complete:
            if first is None or instance.role != role:
                continue
            for size in _SIZES:
                value, wanted = getattr(instance, size), getattr(first, size)
                if value != wanted:
                    yield error(
                        "role-sizes-differ",
                        instance.name,
                        f"pd_{size}",
                        value,
                        f"{size} of instance {instance.name} is {value}, but {wanted} in {first.name}; all {role} instances "
                        "share one size block in --kv-transfer-config",
                        f"give all {role} instances the same pd_{size}",
                    )


def tensor_parallel(context: Context) -> t.Iterator[Finding]:
    """A decode rank gathers from P_tp / D_tp prefill ranks (upstream: V1, Hybrid and the platform check)."""
    prefill, decode = context.first("prefill"), context.first("decode")
    if prefill is None or decode is None:
        return
    p_tp, d_tp = prefill.tp_size, decode.tp_size
    if p_tp < d_tp:
        yield error(
            "tp-prefill-below-decode",
            prefill.name,
            "pd_tp_size",
            p_tp,
            f"pd_tp_size of prefill ({p_tp}) is smaller than that of decode ({d_tp}, {decode.name})",
            f"raise pd_tp_size of prefill to a multiple of {d_tp}, or lower that of decode",
        )
    elif p_tp % d_tp:
        yield error(
            "tp-not-divisible",
            prefill.name,
            "pd_tp_size",
            p_tp,
            f"pd_tp_size of prefill ({p_tp}) is no multiple of that of decode ({d_tp}, {decode.name})",
            "choose sizes where prefill's is a multiple of decode's",
        )
    elif (
        p_tp != d_tp
        and context.cluster.connector == HYBRID_CONNECTOR
        and context.cluster.model_family == "hybrid_mamba"
    ):
        yield error(
            "tp-hybrid-mamba-differs",
            prefill.name,
            "pd_tp_size",
            p_tp,
            f"{HYBRID_CONNECTOR} with a hybrid_mamba model needs equal pd_tp_size, but prefill has {p_tp} and decode {d_tp}",
            "give prefill and decode the same pd_tp_size",
        )


def pipeline_and_context(context: Context) -> t.Iterator[Finding]:
    for instance in context.sized:
        yield from _pipeline_and_context(context, instance)
    prefill, decode = context.first("prefill"), context.first("decode")
    if prefill and decode and prefill.dcp_size != decode.dcp_size:
        yield error(
            "dcp-differs",
            decode.name,
            "pd_dcp_size",
            decode.dcp_size,
            f"pd_dcp_size is {prefill.dcp_size} in {prefill.name} (prefill) and {decode.dcp_size} in {decode.name} (decode)",
            "give prefill and decode the same pd_dcp_size",
        )


def _pipeline_and_context(context: Context, instance: Instance) -> t.Iterator[Finding]:
    pp, pcp, dcp, tp = instance.pp_size, instance.pcp_size, instance.dcp_size, instance.tp_size
    connector = context.cluster.connector
    if instance.role == "decode" and pp > 1:
        yield error(
            "decode-pp",
            instance.name,
            "pd_pp_size",
            pp,
            f"instance {instance.name} is decode and has pd_pp_size {pp}; connectors refuse pipeline parallelism on decode",
            "set pd_pp_size to 1 for decode",
        )
    if pp > 1 and pcp > 1:
        yield error(
            "pp-with-pcp",
            instance.name,
            "pd_pcp_size",
            pcp,
            f"instance {instance.name} has pd_pp_size {pp} and pd_pcp_size {pcp}; upstream opens one of the two",
            "set one of them to 1",
        )
    if pcp > 1 and instance.dp_size > 1:
        yield error(
            "pcp-with-dp",
            instance.name,
            "pd_pcp_size",
            pcp,
            f"instance {instance.name} has pd_pcp_size {pcp} and pd_dp_size {instance.dp_size}; vLLM's prefill context parallelism "
            "does not support data parallelism",
            "set pd_dp_size to 1 (one instance per replica) or pd_pcp_size to 1",
        )
    if pcp > 1 and instance.role == "decode" and connector == "MooncakeLayerwiseConnector":
        yield error(
            "decode-pcp",
            instance.name,
            "pd_pcp_size",
            pcp,
            f"instance {instance.name} is decode and has pd_pcp_size {pcp}, which {connector} does not support there",
            "set pd_pcp_size to 1 for decode",
        )
    if connector == HYBRID_CONNECTOR and (pcp > 1 or dcp > 1):
        variable, value = ("pd_pcp_size", pcp) if pcp > 1 else ("pd_dcp_size", dcp)
        yield error(
            "hybrid-context-parallel",
            instance.name,
            variable,
            value,
            f"instance {instance.name} has {variable} {value}; {HYBRID_CONNECTOR} knows no context parallelism",
            f"set {variable} to 1",
        )
    if dcp > tp or tp % dcp:
        yield error(
            "dcp-not-in-tp",
            instance.name,
            "pd_dcp_size",
            dcp,
            f"pd_dcp_size {dcp} of instance {instance.name} does not divide its pd_tp_size {tp}, whose ranks it reuses",
            "choose a divisor of pd_tp_size",
        )


def dense_model(context: Context) -> t.Iterator[Finding]:
    """vLLM makes dense ranks independent: every one would compute rank 0 and take the same kv_port."""
    if context.cluster.model_is_moe:
        return
    for instance in context.complete:
        if instance.dp_size > 1:
            yield error(
                "dense-data-parallel",
                instance.name,
                "pd_dp_size",
                instance.dp_size,
                f"instance {instance.name} has pd_dp_size {instance.dp_size}, but pd_model_is_moe is false: vLLM has no data "
                "parallelism for dense models",
                "make one instance with pd_dp_size 1 per replica (a child group each)",
            )


def dp_address(context: Context) -> t.Iterator[Finding]:
    """Rank 0 listens; the others look for it at this address."""
    for placement in context.placements:
        instance, head = placement.instance, placement.member
        if placement.dp_rank_start == 0 and instance.dp_address != head.node_ip:
            yield error(
                "dp-address",
                head.host,
                "pd_dp_address",
                instance.dp_address,
                f"pd_dp_address of instance {instance.name} is {instance.dp_address}, but its rank 0 runs on {head.host} "
                f"({head.node_ip}) and listens there",
                f"set it to {head.node_ip} or leave it out",
            )


def chips_mapped_twice(context: Context) -> t.Iterator[Finding]:
    """A container that is not privileged takes its chips alone: the second one sees none (error -8020)."""
    if context.cluster.container_privileged or context.cluster.production_runtime != "docker":
        return
    for host, placements in context.on_host.items():
        for position, placement in enumerate(placements):
            for other in placements[position + 1 :]:
                both = {*placement.member.mapped_chips} & {*other.member.mapped_chips}
                # Chips that both compute on are chips-claimed-twice already.
                both -= {*placement.member.chips} & {*other.member.chips}
                if both:
                    yield error(
                        "chips-mapped-twice",
                        host,
                        "pd_mapped_chips",
                        other.member.mapped_chips,
                        f"chips {','.join(map(str, sorted(both)))} of {host} are mapped into the containers of "
                        f"{placement.instance.name} and {other.instance.name}; a container takes its chips alone",
                        "leave pd_mapped_chips out (it follows pd_chips), or give lists that share no chip",
                    )


def pp_layer_partition(context: Context) -> t.Iterator[Finding]:
    """vLLM splits its layers by a variable, connectors by prefill.pp_layer_partition; without them both split evenly."""
    prefill = context.first("prefill")
    if prefill is None:
        return
    ours = layer_partition(context.cluster, prefill)
    for placement in context.placements:
        instance, value = placement.instance, placement.processes[0].env.get(LAYER_PARTITION)
        variable = given_environment(context, placement, LAYER_PARTITION)
        if value is not None and len(_layers(value)) != instance.pp_size:
            yield error(
                "pp-layer-partition",
                placement.host,
                variable,
                value,
                f"{LAYER_PARTITION} is {value!r}, but instance {instance.name} has pd_pp_size {instance.pp_size}: vLLM wants one number "
                "of layers for each stage",
                f"give {instance.pp_size} numbers with commas in between"
                if instance.pp_size > 1
                else "give it in pd_engine_env of prefill only, for its pd_pp_size stages; the plan tells decode",
            )
        elif instance.role == "prefill" and instance.pp_size > 1 and value != ours:
            yield error(
                "pp-layer-partition",
                placement.host,
                variable,
                value,
                f"{LAYER_PARTITION} of instance {instance.name} on {placement.host} is {value or 'not set'}, but {ours or 'not set'} for "
                f"{prefill.name}; decode is told one partition",
                "give one value in pd_engine_env of prefill",
            )
        yield from _told_partition(placement, prefill.pp_size, ours)


def _told_partition(placement: Placement, stages: int, ours: str | None) -> t.Iterator[Finding]:
    """What a user tells the connectors himself; against the engines' own variable it is held with the other sizes."""
    extra = placement.member.kv_transfer_config.get("kv_connector_extra_config")
    block = extra.get("prefill") if isinstance(extra, dict) else None
    told = block.get("pp_layer_partition") if isinstance(block, dict) else None
    if told is None or (ours is not None and stages > 1):
        return
    layers = _layers(told)
    problem = None
    if len(layers) != stages:
        problem = f"which is not one number of layers for each of the {stages} stages of prefill (pd_pp_size)"
    elif max(layers) - min(layers) > 1:
        problem = f"but the engines of prefill split theirs evenly: {LAYER_PARTITION} is not set"
    if problem is not None:
        yield error(
            "pp-layer-partition",
            placement.host,
            "pd_kv_transfer_config.kv_connector_extra_config.prefill.pp_layer_partition",
            told,
            f"the connector is told the layers {told!r}, {problem}",
            f"leave it out, or set {LAYER_PARTITION} in pd_engine_env of prefill, from which the plan writes it",
        )


def _layers(text: object) -> list[int]:
    """Numbers with commas in between; [] for anything else."""
    parts = text.split(",") if isinstance(text, str) else []
    return [int(part) for part in parts] if all(re.fullmatch(r" *[1-9][0-9]{0,4} *", part) for part in parts) else []


RULES = (
    chips_claimed_twice,
    chips_mapped_twice,
    same_sizes_per_role,
    tensor_parallel,
    pipeline_and_context,
    dense_model,
    pp_layer_partition,
    dp_address,
)
