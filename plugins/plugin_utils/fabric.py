# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the fabric of a5 hosts (850, 850E, 950) asks of environment, container and files; nothing on other hardware.

UB, UBG and UBoE are configured by HIXL itself. Host RoCE is configured by one endpoint file per chip, named by the chip's
physical id, in a folder that may have another place inside the container than on the host.
"""

from __future__ import annotations

import json
import typing as t

from . import tables
from .model import Cluster, Member, Placement

A5 = "a5"
HOST_ROCE = "host_roce"
LOCAL_COMM_RES = "ASCEND_LOCAL_COMM_RES"
GLOBAL_RESOURCE_CONFIG = "ASCEND_GLOBAL_RESOURCE_CONFIG"
ENDPOINT_KEY = "ascend_local_comm_res_path"
HCCL_CARD = "HCCL_SOCKET_IFNAME"
INTRA_ROCE = "HCCL_INTRA_ROCE_ENABLE"


def is_a5(cluster: Cluster) -> bool:
    return cluster.hardware.name == A5


def is_host_roce(cluster: Cluster) -> bool:
    return is_a5(cluster) and cluster.fabric == HOST_ROCE


# Endpoint files -----------------------------------------------------------------------------------------------------


def given_endpoint_folder(member: Member) -> t.Any:
    """What the user has written as ascend_local_comm_res_path; None when nothing."""
    extra = member.kv_transfer_config.get("kv_connector_extra_config")
    return extra.get(ENDPOINT_KEY) if isinstance(extra, dict) else None


def endpoint_folder(cluster: Cluster, member: Member) -> str | None:
    """Where the engines look for endpoint files: inside the container. None when they look for none."""
    given = given_endpoint_folder(member)
    given = given if isinstance(given, str) and given.startswith("/") else None
    if not is_host_roce(cluster):
        return given
    return cluster.endpoint_container_dir or given or cluster.endpoint_dir


def endpoint_name(chip: int) -> str:
    return str(tables.fabric_fact("endpoint_file")).format(chip=chip)


def endpoint_content(address: str, net_instance_id: str) -> str:
    """One endpoint file as the PD tutorial has it."""
    endpoint = {"protocol": "roce", "comm_id": address, "placement": "host"}
    document = {"version": "1.3", "net_instance_id": net_instance_id, "endpoint_list": [endpoint]}
    return json.dumps(document, indent=4) + "\n"


def endpoint_addresses(cluster: Cluster, placement: Placement) -> dict[int, str | None]:
    """Chip -> address of every chip that is computed on; None where the inventory names none. Empty without Host RoCE."""
    if not is_host_roce(cluster):
        return {}
    return {chip: placement.member.roce_addresses.get(str(chip)) for chip in placement.used_chips}


# Environment --------------------------------------------------------------------------------------------------------


def environment(cluster: Cluster, member: Member) -> dict[str, tuple[str | None, str]]:
    """Variable -> (value, pd_ variable it comes from); a value of None unsets it in the process."""
    if not is_a5(cluster):
        return {}
    facts = tables.fabric(cluster.fabric)
    # A2 pools and RoCE need it, a5 must not have it.
    env: dict[str, tuple[str | None, str]] = {INTRA_ROCE: (None, "")}
    if facts.automatic and endpoint_folder(cluster, member) is None:
        env[LOCAL_COMM_RES] = (_compact(tables.fabric_fact("local_comm_res")), "pd_fabric")
    if facts.protocol:
        env[GLOBAL_RESOURCE_CONFIG] = (_compact({_protocol_key(): [facts.protocol]}), "pd_fabric")
    return env


def with_planned(planned: str | None, raw: t.Any) -> t.Any:
    """A given ASCEND_GLOBAL_RESOURCE_CONFIG (a mapping) with what the fabric needs beside it: pool settings keep both."""
    return {**json_object(planned), **raw} if planned and isinstance(raw, dict) else raw


def contradicts(name: str, value: str | None, planned: str | None) -> bool:
    """Whether a given environment value says something else than the planned one, not only in other words."""
    if name == GLOBAL_RESOURCE_CONFIG and value is not None:
        return protocols(value) != protocols(planned)
    if name == LOCAL_COMM_RES and value is not None:
        return json_object(value) != json_object(planned)
    if name == HCCL_CARD and value is not None:
        return value.removeprefix("=") != planned  # HCCL's form for this very card, not each that begins so
    return value != planned


def protocols(config: str | None) -> list[str]:
    """protocol_desc of a resource configuration as a list; it may be one text (also with commas) or a list."""
    desc = json_object(config).get(_protocol_key())
    if isinstance(desc, str):
        return [word.strip() for word in desc.split(",") if word.strip()]
    return [str(word) for word in desc] if isinstance(desc, list) else []


def json_object(text: str | None) -> dict[str, t.Any]:
    """The object that a JSON text holds; {} for anything else."""
    try:
        loaded = json.loads(text or "")
    except ValueError:
        return {}
    return loaded if isinstance(loaded, dict) else {}


def wants_host_ub(placement: Placement) -> bool:
    asked = {*protocols(placement.processes[0].env.get(GLOBAL_RESOURCE_CONFIG))}
    return bool(asked & {*tables.fabric_fact("protocols_host_ub")})


def _protocol_key() -> str:
    return str(tables.fabric_fact("protocol_key"))


def _compact(value: t.Any) -> str:
    return json.dumps(value, separators=(",", ":"))


# Container ----------------------------------------------------------------------------------------------------------


def device_nodes(cluster: Cluster) -> list[str]:
    """More device nodes, by path; /dev/infiniband is a folder, whose nodes docker maps one by one."""
    return [str(tables.fabric_fact("host_roce_device"))] if is_host_roce(cluster) else []


def capabilities(cluster: Cluster) -> list[str]:
    """What a container that is not privileged needs for Host RoCE."""
    if cluster.container_privileged or not is_host_roce(cluster):
        return []
    return [str(tables.fabric_fact("host_roce_capability"))]


def mounts(cluster: Cluster, placement: Placement) -> list[str]:
    """More mounts, as host:container:ro."""
    if not is_a5(cluster):
        return []
    member = placement.member
    paths: list[str] = []
    if _reads_route_conf(cluster, placement):
        paths.append(str(tables.fabric_fact("route_conf")))
    if tables.needs_older_files(cluster.versions):
        paths += [path for path in tables.fabric_fact("older_files") if path != tables.fabric_fact("route_conf")]
    folder = endpoint_folder(cluster, member)
    out = [f"{path}:{path}:ro" for path in paths if path != folder]
    if is_host_roce(cluster):
        out.append(f"{member.roce_library}:{member.roce_library}:ro")
    if folder is not None:
        out.append(f"{cluster.endpoint_dir}:{folder}:ro")
    return out


def _reads_route_conf(cluster: Cluster, placement: Placement) -> bool:
    if cluster.route_conf is not None:
        return cluster.route_conf
    if tables.needs_older_files(cluster.versions):
        return True
    return wants_host_ub(placement) and tables.reads_route_conf(cluster.versions)


def mount_type(cluster: Cluster, member: Member, path: str) -> str | None:
    """file or directory for a mount source that the hardware's table does not know."""
    if not is_a5(cluster):
        return None
    kinds = {cluster.endpoint_dir: "directory"} if endpoint_folder(cluster, member) else {}
    kinds |= {member.roce_library: "file"} if is_host_roce(cluster) else {}
    return kinds.get(path)
