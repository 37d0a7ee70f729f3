# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The --kv-transfer-config of a placement; who binds and which proxy goes with it is in tables.TRANSPORTS."""

from __future__ import annotations

import typing as t

from . import fabric, pool, tables
from .model import Cluster, Finding, Instance, Member, Placement, Role, Transport

VLLM_ASCEND_MODULE = "vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector"
KV_ROLE: dict[Role, str] = {"prefill": "kv_producer", "decode": "kv_consumer"}
# Read from the outer config by the worker, also under MultiConnector; everything else belongs to the Mooncake child.
_OUTER_KEYS = ("kv_load_failure_policy",)
_OUTER_EXTRA_KEYS = (fabric.ENDPOINT_KEY,)


# Keys of kv_connector_extra_config and the variables that give them.
QOS_IN_CONFIG = "pd_kv_transfer_config.kv_connector_extra_config.qos_priority"
POOL_CONNECTOR = "AscendStoreConnector"
LAYER_PARTITION = "VLLM_PP_LAYER_PARTITION"
"""vLLM's own split of the layers over the stages of a pipeline; the connectors do not read it."""
D2RH_KEYS = ("d2rh_zmq_port", "d2rh_scheduler_ready_port")


def transport(cluster: Cluster) -> Transport:
    return tables.TRANSPORTS[cluster.connector]


class Sizes(t.TypedDict):
    prefill: dict[str, int | str]
    decode: dict[str, int | str]


def sizes(cluster: Cluster) -> Sizes:
    """The prefill/decode block that both sides must agree on; taken from the first instance of each role."""
    out: dict[Role, dict[str, int | str]] = {"prefill": {}, "decode": {}}
    for role, block in out.items():
        first = next(iter(cluster.of(role)), None)
        if first is not None:
            block.update(dp_size=first.dp_size, tp_size=first.tp_size)
            if first.pp_size > 1:
                block["pp_size"] = first.pp_size
                partition = layer_partition(cluster, first)
                if partition is not None:
                    block["pp_layer_partition"] = partition
    return {"prefill": out["prefill"], "decode": out["decode"]}


def stages_for_store(agreed: Sizes) -> dict[str, int | str]:
    """What AscendStoreConnector has to know of prefill's pipeline; nothing without one."""
    block = agreed["prefill"]
    return {f"prefill_{key}": block[key] for key in ("pp_size", "pp_layer_partition") if key in block}


def layer_partition(cluster: Cluster, instance: Instance) -> str | None:
    """How an instance's engines split their layers when not evenly: decode must be told, it has no pipeline of its own."""
    layers = (instance.members[0].engine_env_extra, instance.engine_env, cluster.engine_env_common)
    value = next((layer[LAYER_PARTITION] for layer in layers if LAYER_PARTITION in layer), None)
    return None if value is None else str(value)


def kv_transfer_config(
    cluster: Cluster, placement: Placement, agreed: Sizes, pool_port: int
) -> tuple[dict[str, t.Any], list[Finding]]:
    """--kv-transfer-config of one placement, and what the user's additions contradict."""
    instance, member = placement.instance, placement.member
    planned: dict[str, t.Any] = {
        "kv_connector": cluster.connector,
        "kv_role": KV_ROLE[instance.role],
        # A shadow has no port; a given one must still not be contradicted.
        **({} if instance.kv_port is None else {"kv_port": str(instance.kv_port)}),
        "kv_connector_extra_config": {"prefill": dict(agreed["prefill"]), "decode": dict(agreed["decode"])},
    }
    extra = planned["kv_connector_extra_config"]
    if instance.qos_priority is not None:
        extra["qos_priority"] = instance.qos_priority
    if transport(cluster).stages and instance.role == "decode":
        # Control ports of decode only; a shadow has none yet.
        ports = (instance.d2rh_zmq_port, instance.d2rh_scheduler_ready_port)
        extra.update({key: port for key, port in zip(D2RH_KEYS, ports, strict=True) if port is not None})
    if fabric.is_host_roce(cluster):
        extra[fabric.ENDPOINT_KEY] = fabric.endpoint_folder(cluster, member)
    user = member.kv_transfer_config
    findings = _contradictions(planned, user, member, ())
    config = _deep_merged(planned, user)
    merged = config["kv_connector_extra_config"]
    if isinstance(merged.get("qos_priority"), str) and merged["qos_priority"].isdecimal():
        # The connectors take whole numbers only; an inventory may quote one.
        merged["qos_priority"] = int(merged["qos_priority"])
    config.pop("engine_id", None)
    engine_id = effective_engine_id(cluster, instance, member)
    if engine_id is not None:
        config["engine_id"] = engine_id
    if cluster.kv_pool is None:
        return config, findings
    settings = {**stages_for_store(agreed), **pool.store_settings(cluster.kv_pool, instance.role)}
    return _with_pool(config, settings, pool_port), findings


def qos_of(instance: Instance) -> tuple[str, t.Any]:
    """(variable, value) of an instance's transfer priority, wherever it is given; the value is None without one."""
    if instance.qos_priority is not None:
        return "pd_qos_priority", instance.qos_priority
    for member in instance.members:
        extra = member.kv_transfer_config.get("kv_connector_extra_config")
        if isinstance(extra, dict) and extra.get("qos_priority") is not None:
            return QOS_IN_CONFIG, extra["qos_priority"]
    return "pd_qos_priority", None


def effective_engine_id(cluster: Cluster, instance: Instance, member: Member) -> str | None:
    """The id as text (0 and "0" are one), made from the instance's name where upstream does not make it unique itself."""
    given = member.kv_transfer_config.get("engine_id")
    if given is not None:
        return str(given)
    return instance.name if tables.engine_id_must_differ(cluster.versions) else None


def _with_pool(mooncake: dict[str, t.Any], settings: dict[str, t.Any], pool_port: int) -> dict[str, t.Any]:
    """Wrap the transport and an AscendStore pool into a MultiConnector.

    lookup_rpc_port is no TCP port but part of a socket's name; it must differ between instances on one host.
    """
    child = dict(mooncake)
    child["kv_connector_extra_config"] = dict(mooncake["kv_connector_extra_config"])
    outer: dict[str, t.Any] = {"kv_connector": "MultiConnector", "kv_role": mooncake["kv_role"]}
    outer |= {key: child.pop(key) for key in _OUTER_KEYS if key in child}
    extra = child["kv_connector_extra_config"]
    outer_extra = {key: extra.pop(key) for key in _OUTER_EXTRA_KEYS if key in extra}
    store = {
        "kv_connector": POOL_CONNECTOR,
        "kv_role": mooncake["kv_role"],
        "kv_connector_extra_config": {"lookup_rpc_port": str(pool_port), **settings},
    }
    outer["kv_connector_extra_config"] = {**outer_extra, "connectors": [child, store]}
    return outer


def _deep_merged(base: dict[str, t.Any], over: dict[str, t.Any]) -> dict[str, t.Any]:
    out = dict(base)
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = _deep_merged(out[key], value)
        elif key not in base:
            out[key] = value
    return out


def _contradictions(
    planned: t.Mapping[str, t.Any], user: t.Mapping[str, t.Any], member: Member, path: tuple[str, ...]
) -> list[Finding]:
    findings = []
    for key, value in user.items():
        where = ".".join((*path, key))
        if key == "connectors":
            findings.append(
                _contradiction(member, where, value, "the plan composes connectors itself", "use pd_kv_pool")
            )
        elif key not in planned:
            # A size the plan leaves at upstream's default of 1 (pp_size) is still the plan's to say.
            if path and path[-1] in ("prefill", "decode") and key in ("pp_size", "dp_size", "tp_size") and value != 1:
                findings.append(_size_contradiction(member, path, where, key, value, 1))
        elif isinstance(planned[key], dict):
            if isinstance(value, dict):
                findings += _contradictions(planned[key], value, member, (*path, key))
            else:
                findings.append(
                    _contradiction(member, where, value, "it must be a mapping", "give a mapping or leave it out")
                )
        elif str(value) != str(planned[key]) or isinstance(value, bool):
            if path and path[-1] in ("prefill", "decode"):
                findings.append(_size_contradiction(member, path, where, key, value, planned[key]))
            else:
                owner = {
                    "kv_connector": "pd_connector",
                    "kv_port": "pd_kv_port",
                    "qos_priority": "pd_qos_priority",
                    "d2rh_zmq_port": "pd_d2rh_zmq_port",
                    "d2rh_scheduler_ready_port": "pd_d2rh_scheduler_ready_port",
                    fabric.ENDPOINT_KEY: "pd_endpoint_container_dir",
                }.get(key)
                reason = f"it is {value!r}, but the plan sets {planned[key]!r}"
                fix = f"set {owner} instead" if owner else "leave it out: the role follows from the inventory group"
                findings.append(_contradiction(member, where, value, reason, fix))
    return findings


def _size_contradiction(
    member: Member, path: tuple[str, ...], where: str, key: str, value: t.Any, planned: t.Any
) -> Finding:
    return _contradiction(
        member,
        where,
        value,
        f"it is {value!r}, but the {path[-1]} instances have {planned!r}; engines refuse sizes that differ from their own",
        f"leave it out: the plan writes both blocks from pd_{key} of the {path[-1]} instances",
    )


def _contradiction(member: Member, where: str, value: t.Any, reason: str, fix: str) -> Finding:
    return Finding(
        "kv-transfer-contradiction",
        "error",
        member.host,
        f"pd_kv_transfer_config.{where}",
        value,
        f"pd_kv_transfer_config.{where} contradicts the plan: {reason}",
        fix,
    )


def uses_ascend_module(member: Member) -> bool:
    return member.kv_transfer_config.get("kv_connector_module_path") == VLLM_ASCEND_MODULE
