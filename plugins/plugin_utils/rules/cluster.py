# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Values of the whole cluster: addresses, image, connector, timeouts, proxy, engine ids, QoS."""

from __future__ import annotations

import difflib
import functools
import re
import typing as t

from .. import fabric, scripts, tables
from ..connectors import QOS_IN_CONFIG, VLLM_ASCEND_MODULE, effective_engine_id, qos_of, uses_ascend_module
from ..inventory import image_name, image_tag, is_upstreams
from ..model import Finding
from ..variables import VARIABLES, BadValue, convert
from .context import Context, error, given_environment, warning

# Decode fetches within milliseconds when idle and within seconds under load; below a minute a queue alone makes
# prefill free blocks that decode then reads (garbled answers, nothing in any log).
KV_RELEASE_TIMEOUT_MINIMUM = 60
# Words in an image's tag that tell the generation it was built for.
_GENERATIONS = {"a2": "a2", "910b": "a2", "a3": "a3", "910c": "a3", "a5": "a5", "950dt": "a5", "310p": "310p"}


def node_addresses(context: Context) -> t.Iterator[Finding]:
    owner: dict[str, str] = {}
    members = [(member.node_ip, member.host) for instance in context.cluster.instances for member in instance.members]
    if context.cluster.proxy_host and context.cluster.proxy_address:
        members.append((context.cluster.proxy_address, context.cluster.proxy_host))
    if context.cluster.pool_host and context.cluster.pool_address:
        members.append((context.cluster.pool_address, context.cluster.pool_host))
    told: set[str] = set()
    for address, host in members:
        first = owner.setdefault(address, host)
        if first != host and host not in told:
            told.add(host)
            yield error(
                "node-ip-twice",
                host,
                "pd_node_ip",
                address,
                f"{first} and {host} have the same pd_node_ip, {address}",
                f"correct the address of {first} or {host}; a copied line is the usual cause",
            )
        if address.startswith("127.") and host not in told and not context.cluster.rehearsal:
            told.add(host)
            yield error(
                "node-ip-loopback",
                host,
                "pd_node_ip",
                address,
                f"pd_node_ip of {host} is the loopback address {address}, which no other host reaches",
                "give the address of the host's network card",
            )


def container_network(context: Context) -> t.Iterator[Finding]:
    network = context.cluster.container_network
    if network != "host":
        yield error(
            "container-network",
            "all",
            "pd_container_network",
            network,
            f"pd_container_network is {network!r}: HCCL takes a container with an address of its own for another server and "
            "looks for RoCE between chips of one host",
            "leave pd_container_network at host",
        )


def image(context: Context) -> t.Iterator[Finding]:
    cluster = context.cluster
    name, label = image_name(cluster.image)
    wrong = _image_hardware(context)
    if wrong is not None:
        yield wrong
    if not cluster.versions.known:
        yield warning(
            "version-unknown",
            "all",
            "pd_image" if "pd_image" in cluster.given else "pd_vllm_ascend_version",
            cluster.versions.vllm_ascend,
            f"vLLM-Ascend {cluster.versions.vllm_ascend} is not in the version table: its CANN and Mooncake versions are not known, "
            "and every known name of the KV release timeout is set",
            "set pd_vllm_ascend_version to a released version, or check pd_cann_version and pd_mooncake_version yourself",
        )
    elif cluster.versions.assumed and (wrong is None or wrong.severity == "warning"):
        yield warning(
            "version-unknown",
            "all",
            "pd_image",
            cluster.image,
            f"{_why_no_version(name, label)}; it is taken for {cluster.versions.vllm_ascend}, from which ports and names of options "
            "follow, and every known name of the KV release timeout is set",
            "set pd_vllm_ascend_version to the release that this image was built from"
            + (f" ({perhaps}, if its tag means that one)" if (perhaps := _perhaps(label)) else ""),
        )
    elif (
        "pd_image" in cluster.given
        and image_tag(cluster.image) is None
        and _perhaps(label) not in (None, cluster.versions.vllm_ascend)
    ):
        yield warning(
            "image-version",
            "all",
            "pd_vllm_ascend_version",
            cluster.versions.vllm_ascend,
            f"pd_vllm_ascend_version is {cluster.versions.vllm_ascend}, while the tag of pd_image {cluster.image} has the name of "
            f"{_perhaps(label)}, if it counts vLLM-Ascend's releases",
            "see that pd_vllm_ascend_version is the release that this image was built from",
        )
    elif "pd_image" not in cluster.given and (release := tables.release_of(cluster.versions.vllm_ascend)) is not None:
        yield warning(
            "version-unknown",
            "all",
            "pd_vllm_ascend_version",
            cluster.versions.vllm_ascend,
            f"pd_vllm_ascend_version {cluster.versions.vllm_ascend} is no release, which has three numbers: the image would be "
            f"{cluster.image}, a tag that upstream does not have",
            f"use {release or 'the whole number of the release, such as ' + tables.default_version()}",
        )


def _why_no_version(name: str, label: str) -> str:
    if not label:
        return "pd_image has no tag (or a digest alone) and so tells no version"
    other = "" if is_upstreams(name) else " of vLLM-Ascend, as the image is not called vllm-ascend"
    return f"the tag {label} of pd_image tells no version{other}"


def _perhaps(label: str) -> str | None:
    """The version that a tag of an image of another name may well mean."""
    tag = image_tag(f"vllm-ascend:{label}")
    return tag[0] if tag and tables.versions(tag[0]).known else None


def _image_hardware(context: Context) -> Finding | None:
    cluster = context.cluster
    wanted, (name, label), tag = cluster.hardware.name, image_name(cluster.image), image_tag(cluster.image)
    suffix = label if tag is None else tag[1]
    # A site may add words of its own (patch1, openeuler); only those of a generation count.
    found = {_GENERATIONS[word] for word in re.split(r"[-_.]", suffix) if word in _GENERATIONS}
    by_name = not found
    if by_name:  # a site may have a repository for each generation
        found = {_GENERATIONS[word] for word in re.split(r"[-_.]", name) if word in _GENERATIONS}
    if found == {wanted} or (not found and (wanted == "a2" or name != "vllm-ascend")):
        return None
    if not is_upstreams(name):
        # What the tags of other images mean is the site's to know.
        if not found:
            return None
        return warning(
            "image-hardware",
            "all",
            "pd_image",
            cluster.image,
            f"{'the name' if by_name else f'the tag {label}'} of {cluster.image} speaks of {', '.join(sorted(found))}, but pd_hardware is {wanted}",
            f"see that this image was built for {wanted}",
        )
    # Upstream's branches have the suffixes of its releases. Any other tag without one is somebody's own.
    if tag is None and not found and not re.match(r"(main|nightly)\b", label):
        return None
    version = cluster.versions.vllm_ascend if tag is None else tag[0]
    expected = "-".join(filter(None, (version, cluster.hardware.image_suffix)))
    built_for = " (the a2 build)" if not found and suffix in ("", "openeuler", label) else ""
    about = f"its suffix is {suffix or 'empty'}" if tag is not None else f"it is {label}"
    fault = f"the tag of {cluster.image} is not for pd_hardware {wanted}: {about}{built_for}"
    fix = f"use the tag {expected} (or {expected}-openeuler)"
    if by_name and found:
        fault = f"{cluster.image} is not for pd_hardware {wanted}: its name speaks of {', '.join(sorted(found))}"
        fix = f"use an image that was built for {wanted}; upstream's is {tables.default_image(version, cluster.hardware.image_suffix)}"
    return error("image-hardware", "all", "pd_image", cluster.image, fault, fix)


def plain_connector(context: Context) -> t.Iterator[Finding]:
    if context.cluster.connector != "MooncakeConnector":
        return
    for instance in context.complete:
        for member in instance.members:
            if not uses_ascend_module(member):
                yield error(
                    "connector-plain-mooncake",
                    member.host,
                    "pd_connector",
                    context.cluster.connector,
                    f"pd_connector MooncakeConnector on {member.host} resolves to vLLM's CUDA class",
                    "use MooncakeConnectorV1, or set pd_kv_transfer_config.kv_connector_module_path to "
                    + VLLM_ASCEND_MODULE,
                )
                break


def kv_release_timeout(context: Context) -> t.Iterator[Finding]:
    """Too short a limit, whether given as the variable or as the environment it becomes."""
    cluster = context.cluster
    if cluster.kv_release_timeout < KV_RELEASE_TIMEOUT_MINIMUM:
        yield _timeout_too_short("all", "pd_kv_release_timeout", cluster.kv_release_timeout)
    read = tables.kv_release_timeout_names(cluster.versions, cluster.connector)
    prefill = next((entry.processes[0].env for entry in context.placements if entry.instance.role == "prefill"), {})
    for placement in context.placements:
        env = placement.processes[0].env
        for name in tables.kv_release_timeout_every_name():
            value = env.get(name)
            if value is None or (name in read and value == str(cluster.kv_release_timeout)):
                continue
            variable = given_environment(context, placement, name)
            too_short = not re.fullmatch(r"[0-9]{1,9}", value) or int(value) < KV_RELEASE_TIMEOUT_MINIMUM
            if placement.instance.role == "prefill" and too_short:
                yield _timeout_too_short(placement.host, variable, value)
            elif name not in read:
                yield warning(
                    "timeout-name",
                    placement.host,
                    variable,
                    value,
                    f"{name} is not read by {cluster.connector} of vLLM-Ascend {cluster.versions.vllm_ascend}, as far as is known "
                    f"(it reads {' and '.join(read)})",
                    "set pd_kv_release_timeout, which becomes the name that is read; keep this one only for a build that reads it",
                )
            elif placement.instance.role == "decode" and prefill and value != prefill.get(name):
                yield warning(
                    "timeout-name",
                    placement.host,
                    variable,
                    value,
                    f"{name} is {value} for decode, but it is prefill that releases KV cache, and its limit is {prefill.get(name)}",
                    "set pd_kv_release_timeout, which the plan gives to prefill, and leave this one out",
                )


@functools.cache
def _is_misspelt_timeout(name: str) -> bool:
    known = tables.kv_release_timeout_every_name()
    return name not in known and bool(difflib.get_close_matches(name, known, n=1, cutoff=0.85))


def misspelt_timeouts(context: Context) -> t.Iterator[Finding]:
    """A name that is close to one of the KV release limit's sets nothing at all."""
    for placement in context.placements:
        env = placement.processes[0].env
        for name in env:
            if not _is_misspelt_timeout(name):
                continue
            yield warning(
                "timeout-name",
                placement.host,
                given_environment(context, placement, name),
                env[name],
                f"{name} is read by no release of vLLM-Ascend; the KV release limit stays at {context.cluster.kv_release_timeout}",
                "set pd_kv_release_timeout, which becomes the name that is read",
            )


def _timeout_too_short(host: str, variable: str, value: int | str) -> Finding:
    seconds = re.fullmatch(r"-?[0-9]{1,9}", str(value))
    return error(
        "kv-release-timeout",
        host,
        variable,
        value,
        f"{variable} is {value}: prefill would free KV cache that decode is still to read, which gives garbled answers"
        if seconds
        else f"{variable} is {value!r}, which is no whole number of seconds",
        f"use {KV_RELEASE_TIMEOUT_MINIMUM} seconds or more; 480 is upstream's default, 1800 for long sequences",
    )


def engine_ids(context: Context) -> t.Iterator[Finding]:
    say = error if tables.engine_id_must_differ(context.cluster.versions) else warning
    owner: dict[str, tuple[str, str]] = {}
    for instance in context.complete:
        for member in instance.members:
            engine_id = effective_engine_id(context.cluster, instance, member)
            if engine_id is None:
                continue
            first_instance, first_host = owner.setdefault(engine_id, (instance.name, member.host))
            if engine_id != effective_engine_id(context.cluster, instance, instance.members[0]):
                yield say(
                    "engine-id-differs",
                    member.host,
                    "pd_kv_transfer_config.engine_id",
                    engine_id,
                    f"engine_id of instance {instance.name} differs between {instance.members[0].host} and {member.host} "
                    f"({engine_id!r} there), but it names the instance",
                    "leave engine_id out, or give the instance one",
                )
            if first_instance != instance.name:
                yield say(
                    "engine-id-twice",
                    member.host,
                    "pd_kv_transfer_config.engine_id",
                    engine_id,
                    f"engine_id {engine_id!r} is used by {first_instance} ({first_host}) and {instance.name} ({member.host})",
                    "leave engine_id out: the plan or vLLM-Ascend itself makes it unique",
                )
                break


def proxy_beside_prefill(context: Context) -> t.Iterator[Finding]:
    host = context.cluster.proxy_host
    prefill = [host for instance in context.cluster.of("prefill") for host in instance.hosts]
    # A host whose address is wrong is missing from its instance, and that has been said.
    if host and context.cluster.proxy_address and prefill and host not in prefill:
        yield warning(
            "proxy-not-on-prefill",
            host,
            "proxy",
            host,
            f"the proxy runs on {host}, which has no prefill instance; the tutorial runs it on a prefill host",
            f"put a prefill host ({prefill[0]}) into group proxy, or see to it that {host} reaches the API port of every "
            "rank and, with the layerwise connector, that every decode host reaches the proxy",
        )


def proxy_workers(context: Context) -> t.Iterator[Finding]:
    cluster, kind = context.cluster, context.transport.proxy_kind
    if cluster.proxy_workers == 1:
        return
    if kind != "prefill_first":
        reason = f"the {kind} proxy of {cluster.connector} has no --workers"
    elif not tables.proxy_has_workers(cluster.versions):
        reason = f"the proxy of vLLM-Ascend {cluster.versions.vllm_ascend} has no --workers (0.21 and newer do)"
    else:
        return
    yield error(
        "proxy-workers",
        cluster.proxy_host,
        "pd_proxy_workers",
        cluster.proxy_workers,
        reason,
        "leave pd_proxy_workers at 1",
    )


def launcher(context: Context) -> t.Iterator[Finding]:
    """What upstream's launch_online_dp.py cannot start."""
    if context.cluster.engine_launcher != "upstream":
        return
    for placement in context.placements:
        instance, reason = placement.instance, scripts.launcher_refuses(placement)
        if reason is not None:
            yield error(
                "upstream-launcher",
                placement.host,
                "pd_engine_launcher",
                "upstream",
                f"launch_online_dp.py cannot start the share of instance {instance.name} on {placement.host}: {reason}",
                "use pd_engine_launcher: builtin",
            )


def qos(context: Context) -> t.Iterator[Finding]:
    """The side that opens the channel decides its QoS; a value on the other side alone does nothing."""
    yield from _qos_in_config(context)
    yield from _qos_of_the_resource_config(context)
    given = [(instance, *qos_of(instance)) for instance in context.complete if qos_of(instance)[1] is not None]
    if not given:
        return
    first, variable, value = given[0]
    if not context.transport.has_qos:
        yield error(
            "qos-unsupported",
            first.name,
            variable,
            value,
            f"{variable} is given, but {context.cluster.connector} has no transfer priority",
            "leave it out; MooncakeConnectorV1, MooncakeHybridConnector and MooncakeLayerwiseConnector have one",
        )
        return
    since = tables.described_from("qos_priority", context.cluster.versions)
    if since is not None:
        yield warning(
            "qos-unsupported",
            first.name,
            variable,
            value,
            f"{variable} is given, but vLLM-Ascend {context.cluster.versions.vllm_ascend} does not read qos_priority, as far as is "
            f"known ({since} and newer do): the transfer keeps its default priority",
            f"leave it out, or use an image of vLLM-Ascend {since} or newer",
        )
    elif not any(instance.role == context.transport.initiator for instance, _variable, _value in given):
        initiator = context.transport.initiator
        yield warning(
            "qos-on-passive-side",
            first.name,
            variable,
            value,
            f"{variable} is set for {first.role} only, but with {context.cluster.connector} {initiator} opens the channel "
            "and decides",
            f"set pd_qos_priority for {initiator}",
        )


def _qos_of_the_resource_config(context: Context) -> t.Iterator[Finding]:
    """The connector writes its priority, 1 if none is given, over a user's own key."""
    key = tables.fabric_fact("qos_key")
    if not context.transport.has_qos:
        return
    for placement in context.placements:
        config = fabric.json_object(placement.processes[0].env.get(fabric.GLOBAL_RESOURCE_CONFIG))
        written = qos_of(placement.instance)[1]
        written = 1 if written is None else written
        if key in config and config[key] != written:
            yield warning(
                "qos-replaced",
                placement.host,
                given_environment(context, placement, fabric.GLOBAL_RESOURCE_CONFIG),
                config[key],
                f"{key} is {config[key]!r} in {fabric.GLOBAL_RESOURCE_CONFIG}, but the connector of {placement.instance.name} writes "
                f"{written} over it when it starts",
                f"leave the key out and set pd_qos_priority for {context.transport.initiator}",
            )


def _qos_in_config(context: Context) -> t.Iterator[Finding]:
    for placement in context.placements:
        extra = placement.member.kv_transfer_config.get("kv_connector_extra_config")
        value = extra.get("qos_priority") if isinstance(extra, dict) else None
        if value is None:
            continue
        try:
            convert(VARIABLES["pd_qos_priority"], value)
        except BadValue as problem:
            yield error(
                "variable-value",
                placement.host,
                QOS_IN_CONFIG,
                value,
                f"{QOS_IN_CONFIG} {problem}; it is {value!r}",
                "use pd_qos_priority, 0 to 4",
            )


RULES = (
    node_addresses,
    container_network,
    image,
    plain_connector,
    kv_release_timeout,
    misspelt_timeouts,
    engine_ids,
    proxy_beside_prefill,
    proxy_workers,
    launcher,
    qos,
)
