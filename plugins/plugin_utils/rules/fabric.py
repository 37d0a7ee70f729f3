# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""a5 hosts (850, 850E, 950): fabric, versions, Host RoCE addresses and endpoint files, privileged containers."""

from __future__ import annotations

import json
import typing as t

from .. import fabric, tables
from ..layout import visible_devices
from ..model import Finding, Member, Placement
from .context import Context, error, given_environment, warning

_NESTED = "comm_resource_config"
_ENDPOINT_VARIABLE = f"pd_kv_transfer_config.kv_connector_extra_config.{fabric.ENDPOINT_KEY}"


def fabric_of_other_hardware(context: Context) -> t.Iterator[Finding]:
    cluster = context.cluster
    if fabric.is_a5(cluster):
        return
    given = {
        "pd_fabric": (cluster.fabric, cluster.fabric != "ub"),
        "pd_endpoint_dir": (cluster.endpoint_dir, "pd_endpoint_dir" in cluster.given),
    }
    for variable, (value, is_given) in given.items():
        if is_given:
            yield warning(
                "fabric-not-a5",
                "all",
                variable,
                value,
                f"{variable} is for a5 hosts; on {cluster.hardware.name} it does nothing",
                "leave it out, or correct pd_hardware",
            )


def hixl_version(context: Context) -> t.Iterator[Finding]:
    """Automatic endpoints (ASCEND_LOCAL_COMM_RES without a list of them) need HIXL 9.1.0."""
    cluster = context.cluster
    placement = next((entry for entry in context.placements if _is_automatic(context, entry)), None)
    if placement is None:
        return
    needed, versions = str(tables.fabric_fact("automatic_from_hixl")), cluster.versions
    fix = f"upgrade HIXL to {needed} or newer and set pd_hixl_version, or take an image that holds it"
    wants = f"pd_fabric {cluster.fabric} has HIXL work out its endpoints by itself, which needs HIXL {needed}"
    if versions.hixl is not None:
        if tables.before(versions.hixl, needed):
            yield error("hixl-version", "all", "pd_hixl_version", versions.hixl, f"{wants}; it is {versions.hixl}", fix)
    elif versions.cann is None:
        message = f"{wants}; neither the HIXL nor the CANN version of {cluster.image} is known"
        yield warning("hixl-version", "all", "pd_hixl_version", None, message, f"check it; {fix}")
    elif tables.before(versions.cann, str(tables.fabric_fact("automatic_from_cann"))):
        message = f"{wants}; {cluster.image} holds CANN {versions.cann}, and with it an older HIXL"
        yield error("hixl-version", "all", "pd_hixl_version", None, message, fix)


def _is_automatic(context: Context, placement: Placement) -> bool:
    if not fabric.is_a5(context.cluster) or fabric.endpoint_folder(context.cluster, placement.member) is not None:
        return False
    given = fabric.json_object(placement.processes[0].env.get(fabric.LOCAL_COMM_RES))
    return bool(given) and "endpoint_list" not in given


def automatic_endpoints(context: Context) -> t.Iterator[Finding]:
    """Where HIXL is to work out its endpoints, every engine has to ask for that, in the version that can."""
    wanted = tables.fabric_fact("local_comm_res")
    if not fabric.is_a5(context.cluster) or not tables.fabric(context.cluster.fabric).automatic:
        return
    for placement in context.everywhere:
        given = placement.processes[0].env.get(fabric.LOCAL_COMM_RES)
        said = fabric.json_object(given)
        if fabric.endpoint_folder(context.cluster, placement.member) is not None or "endpoint_list" in said:
            continue
        if given is None or (said and said.get("version") != wanted["version"]):
            yield error(
                "resource-config",
                placement.host,
                given_environment(context, placement, fabric.LOCAL_COMM_RES),
                given,
                f"{fabric.LOCAL_COMM_RES} of instance {placement.instance.name} is {given or 'unset'}; with pd_fabric "
                f"{context.cluster.fabric} engines of both roles need {json.dumps(wanted)} to work out their endpoints",
                "leave it out: the plan sets it; or give a list of your own as endpoint_list",
            )


def resource_config(context: Context) -> t.Iterator[Finding]:
    """Both variables hold JSON; what the second one names must exist, be supported, and be the fabric's."""
    known, unsupported = (set(tables.fabric_fact(name)) for name in ("protocols", "protocols_unsupported"))
    for placement in context.everywhere:
        env, host = placement.processes[0].env, placement.host
        for name in (fabric.LOCAL_COMM_RES, fabric.GLOBAL_RESOURCE_CONFIG):
            problem = _not_an_object(env.get(name))
            if problem:
                yield error(
                    "resource-config",
                    host,
                    given_environment(context, placement, name),
                    env.get(name),
                    f"{name} of instance {placement.instance.name} is no JSON object: {problem}",
                    "give it as a YAML mapping; the plan writes the JSON",
                )
        config = env.get(fabric.GLOBAL_RESOURCE_CONFIG)
        variable = given_environment(context, placement, fabric.GLOBAL_RESOURCE_CONFIG)
        if isinstance(fabric.json_object(config).get(_NESTED), dict):
            yield warning(
                "resource-config",
                host,
                variable,
                config,
                f"{_NESTED} in {fabric.GLOBAL_RESOURCE_CONFIG} is an object, but HIXL's keys are flat",
                f"write one key with dots, such as {_NESTED}.protocol_desc",
            )
        named = fabric.protocols(config)
        refused = [name for name in named if name in unsupported]
        unknown = [name for name in named if name not in known]
        if refused:
            yield error(
                "roce-host-variable",
                host,
                variable,
                config,
                f"{', '.join(refused)} in {fabric.GLOBAL_RESOURCE_CONFIG} is announced, but not yet supported: Host RoCE takes "
                "one endpoint file per chip",
                "set pd_fabric: host_roce and the chips' addresses in pd_roce_addresses, and take roce:host out",
            )
        elif unknown:
            yield warning(
                "resource-config",
                host,
                variable,
                config,
                f"{', '.join(unknown)} in {fabric.GLOBAL_RESOURCE_CONFIG} is no protocol that is known here",
                "check it in HIXL's manual; UBG is ub_rtp:device, UBoE uboe:device",
            )
        elif fabric.is_a5(context.cluster):
            yield from _fabric_protocol(context, placement, variable, config, named)


def _not_an_object(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        loaded = json.loads(value)
    except ValueError as problem:
        return str(problem)
    return None if isinstance(loaded, dict) else f"it is {value}"


def _fabric_protocol(
    context: Context, placement: Placement, variable: str, config: str | None, named: list[str]
) -> t.Iterator[Finding]:
    cluster = context.cluster
    scale_out = {tables.fabric(name).protocol: name for name in tables.fabric_names() if tables.fabric(name).protocol}
    wanted = tables.fabric(cluster.fabric).protocol
    others = [name for name in named if name in scale_out and name != wanted]
    if (wanted and wanted not in named) or others:
        fits = scale_out[others[0]] if len(others) == 1 and wanted not in named else None
        yield warning(
            "fabric-protocol",
            placement.host,
            variable,
            config,
            f"pd_fabric is {cluster.fabric}, but {fabric.GLOBAL_RESOURCE_CONFIG} of instance {placement.instance.name} names "
            f"{', '.join(named) or 'no protocol'}; the latter is used",
            f"set pd_fabric: {fits} and leave the protocol out"
            if fits
            else "leave the protocol out; the plan names it",
        )


def environment_of_a5(context: Context) -> t.Iterator[Finding]:
    if not fabric.is_a5(context.cluster):
        return
    for placement in context.everywhere:
        env = placement.processes[0].env
        if env.get(fabric.INTRA_ROCE) is not None:
            yield warning(
                "intra-roce-on-a5",
                placement.host,
                given_environment(context, placement, fabric.INTRA_ROCE),
                env[fabric.INTRA_ROCE],
                f"{fabric.INTRA_ROCE} is for a2 and a3; upstream unsets it on 850, 850E and 950",
                "leave it out; the plan unsets it",
            )
        has_folder = fabric.endpoint_folder(context.cluster, placement.member) is not None
        if has_folder and env.get(fabric.LOCAL_COMM_RES) is not None:
            yield warning(
                "comm-res-overwritten",
                placement.host,
                given_environment(context, placement, fabric.LOCAL_COMM_RES),
                env[fabric.LOCAL_COMM_RES],
                f"engines that read endpoint files ({fabric.ENDPOINT_KEY}) overwrite {fabric.LOCAL_COMM_RES}",
                "keep one of the two",
            )


def roce_addresses(context: Context) -> t.Iterator[Finding]:
    cluster = context.cluster
    owner: dict[str, tuple[str, str]] = {}
    for member in _hosts(context):
        given = member.roce_addresses
        if given and not fabric.is_host_roce(cluster):
            yield warning(
                "roce-addresses-unused",
                member.host,
                "pd_roce_addresses",
                given,
                f"pd_roce_addresses is read with pd_fabric host_roce only; it is {cluster.fabric}",
                "set pd_fabric: host_roce, or leave the addresses out",
            )
            continue
        beyond = [chip for chip in given if int(chip) >= member.chips_per_node]
        if beyond:
            yield error(
                "roce-address-chip",
                member.host,
                "pd_roce_addresses",
                given,
                f"pd_roce_addresses names chip {', '.join(beyond)}, but {member.host} has {member.chips_per_node} chips "
                f"(0-{member.chips_per_node - 1})",
                "the keys are physical chip ids, as in /dev/davinciN",
            )
        shared: dict[str, list[str]] = {}
        for chip, address in given.items():
            first_host, first_chip = owner.setdefault(address, (member.host, chip))
            if first_host != member.host:
                words = f"{address} is the Host RoCE address of chip {first_chip} on {first_host} and of chip {chip} on {member.host}"
                shared.setdefault(first_host, []).append(words)
        for alike in shared.values():
            yield error(
                "roce-address-twice",
                member.host,
                "pd_roce_addresses",
                alike[0].split()[0],
                alike[0] + (f", and so are {len(alike) - 1} more" if len(alike) > 1 else ""),
                "correct one of them; a copied block is the usual cause",
            )


def roce_addresses_of_hosts(context: Context) -> t.Iterator[Finding]:
    """A chip with the address that a host is managed or served at: its endpoint file would lead to another card."""
    cluster = context.cluster
    # A rehearsal gives its hosts addresses of its own; production's are judged beside it.
    if not fabric.is_host_roce(cluster) or cluster.rehearsal:
        return
    owner: dict[str, tuple[str, str]] = {}
    for member in _hosts(context):
        for variable, address in (("pd_node_ip", member.node_ip), ("ansible_host", member.ansible_host)):
            if address:
                owner.setdefault(address, (member.host, variable))
    for member in _hosts(context):
        for chip, address in member.roce_addresses.items():
            if address not in owner:
                continue
            host, variable = owner[address]
            own = host == member.host
            # One card for everything is unusual, and nothing that could not work.
            say = warning if own else error
            yield say(
                "roce-address-of-host",
                member.host,
                "pd_roce_addresses",
                address,
                f"the Host RoCE address of chip {chip} on {member.host}, {address}, is the {variable} of {host}"
                + ("" if own else ": KV cache for this chip would go there"),
                f"give the address of the card with RDMA that belongs to chip {chip}, as `ip addr` on {member.host} shows it",
            )


def _hosts(context: Context) -> t.Iterator[Member]:
    """Every host once, also where it carries several instances."""
    seen: set[str] = set()
    for instance in context.cluster.instances:
        for member in instance.members:
            if member.host not in seen:
                seen.add(member.host)
                yield member


def roce_addresses_missing(context: Context) -> t.Iterator[Finding]:
    for placement in context.placements:
        addresses = fabric.endpoint_addresses(context.cluster, placement)
        missing = [chip for chip, address in addresses.items() if address is None]
        if missing:
            yield warning(
                "roce-address-missing",
                placement.host,
                "pd_roce_addresses",
                placement.member.roce_addresses,
                f"chips {','.join(map(str, missing))} of instance {placement.instance.name} have no Host RoCE address, so their "
                "endpoint files are not planned; preflight will look for them and refuse the host without",
                "give {physical id: address} for every chip in use. Addresses often rise with the chip ids, but look it up on the host",
            )


def endpoint_files(context: Context) -> t.Iterator[Finding]:
    """Engines look for the file by the device number they see; upstream names the files by physical ids."""
    cluster = context.cluster
    for placement in context.placements:
        member, given = placement.member, fabric.given_endpoint_folder(placement.member)
        if given is not None and not (isinstance(given, str) and given.startswith("/")):
            yield error(
                "endpoint-folder",
                placement.host,
                _ENDPOINT_VARIABLE,
                given,
                f"{fabric.ENDPOINT_KEY} is {given!r}, which is no absolute path inside the container",
                "give the folder's path inside the container, such as /etc/hixlep",
            )
        folder = fabric.endpoint_folder(cluster, member)
        if folder is None or not fabric.is_a5(cluster):
            continue
        seen = visible_devices(member.mapped_chips, placement.used_chips)
        moved = [(chip, seen_as) for chip, seen_as in zip(placement.used_chips, seen, strict=True) if chip != seen_as]
        if moved:
            chip, seen_as = moved[0]
            yield error(
                "endpoint-file-number",
                placement.host,
                "pd_mapped_chips",
                member.mapped_chips,
                f"the container of {placement.instance.name} shows chip {chip} as device {seen_as}, so the engine would read "
                f"{fabric.endpoint_name(seen_as)}, while the file of this chip is {fabric.endpoint_name(chip)}",
                "leave pd_mapped_chips out and the container privileged: it then sees all chips by their own numbers",
            )


def container_rights(context: Context) -> t.Iterator[Finding]:
    cluster = context.cluster
    if cluster.production_runtime != "docker":
        return
    if cluster.hardware.privileged and not cluster.container_privileged:
        yield warning(
            "container-not-privileged",
            "all",
            "pd_container_privileged",
            False,
            f"upstream runs containers on {cluster.hardware.name} privileged; without, each gets its own chips, "
            f"{', '.join(cluster.hardware.device_nodes)}"
            + (" and /dev/infiniband with NET_ADMIN" if fabric.is_host_roce(cluster) else ""),
            "validate it with your driver and load, or leave pd_container_privileged out",
        )
    if not cluster.container_privileged:
        return
    for placement in context.placements:
        member = placement.member
        if member.mapped_chips != list(range(member.chips_per_node)):
            yield error(
                "mapped-chips-privileged",
                placement.host,
                "pd_mapped_chips",
                member.mapped_chips,
                f"the container of {placement.instance.name} is privileged and sees all {member.chips_per_node} chips of "
                f"{placement.host}, so devices cannot be counted within pd_mapped_chips",
                "leave pd_mapped_chips out; pd_chips tells the chips to compute on",
            )


RULES = (
    fabric_of_other_hardware,
    hixl_version,
    automatic_endpoints,
    resource_config,
    environment_of_a5,
    roce_addresses,
    roce_addresses_of_hosts,
    roce_addresses_missing,
    endpoint_files,
    container_rights,
)
