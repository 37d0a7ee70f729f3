# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The plan: a pure function from inventory variables to every rank, device list, port, environment and argument.

inventory -> layout -> ports -> connectors -> command -> rules. Each step imports only those before it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import masking

from . import command, connectors, container, inventory, layout, pool, ports, rules
from .model import Cluster, Finding, Instance, Placement, PortRange, Transport

SCHEMA = 1
EXAMPLES = "/vllm-workspace/vllm-ascend/examples"
PROXY_SCRIPTS = {
    "prefill_first": f"{EXAMPLES}/disaggregated_prefill_v1/load_balance_proxy_server_example.py",
    "decode_first": f"{EXAMPLES}/disaggregated_prefill_v1/load_balance_proxy_layerwise_server_example.py",
}


@dataclasses.dataclass(slots=True)
class Plan:
    """cluster is None when the inventory does not even tell the hardware.

    proxy_key is the API key that the proxy sends to the engines; it is no part of the public JSON.
    """

    cluster: Cluster | None
    placements: list[Placement]
    proxy: dict[str, t.Any] | None
    findings: list[Finding]
    proxy_key: str | None = None
    kv_pool: dict[str, t.Any] | None = None

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


def plan(source: inventory.Source) -> Plan:
    """Work out everything; findings tell what is wrong, and what could not be laid out is left out."""
    with _collector_paused():
        plan_ = _plan(source)
        plan_.findings = _without_secrets(plan_.findings, source)
        return plan_


def _plan(source: inventory.Source, *, once: bool = True) -> Plan:
    cluster, findings = inventory.read(source)
    placements, shadows, layout_findings = layout.lay_out(cluster)
    transport = connectors.transport(cluster)
    ports.assign(cluster, placements, transport)
    everywhere = [*placements, *shadows]
    arguments = _fill_commands(cluster, everywhere, findings)
    context = rules.Context(cluster, placements, everywhere, arguments, transport)
    rule_findings = rules.check(context)
    if not cluster.hardware_known:
        # Another generation stood in: what follows from its chips says nothing.
        layout_findings, rule_findings = [], [f for f in rule_findings if f.rule not in rules.BY_HARDWARE]
    findings += layout_findings + rule_findings
    if "production" in source:
        # Host by host, or what is wrong on all of them would be said once for the first and again for the others.
        findings = _with_production(findings, _plan(source["production"], once=False).findings)
    findings = _without_echoes(findings)
    if once:
        findings = _once(findings)
    if not cluster.hardware_known:
        return Plan(None, [], None, findings)
    key = command.proxy_key((args, placement.processes[0].env) for placement, args in context.served)
    kv_pool = pool.master(cluster, placements)
    return Plan(cluster, placements, _proxy(cluster, placements, transport), findings, key, kv_pool)


def _without_echoes(findings: list[Finding]) -> list[Finding]:
    """Without warnings that only say again what an error says: of a value that was refused, or that overrides another."""
    errors = [finding for finding in findings if finding.severity == "error"]
    wrong = {(finding.host, finding.variable) for finding in errors}
    refused = {(f.host, f.variable) for f in errors if f.rule in ("variable-value", "placeholder", "node-ip-v6")}
    return [
        finding
        for finding in findings
        if finding.severity == "error"
        or (finding.host, finding.variable) not in (wrong if finding.rule == "environment-overrides" else refused)
    ]


def _fill_commands(cluster: Cluster, placements: list[Placement], findings: list[Finding]) -> list[command.Arguments]:
    agreed = connectors.sizes(cluster)
    arguments: list[command.Arguments] = []
    pool_ports: dict[str, int] = {}
    shared: dict[int, command.Arguments] = {}
    for placement in placements:
        instance, member = placement.instance, placement.member
        pool_ports[placement.host] = pool_ports.get(placement.host, -1) + 1
        config, config_findings = connectors.kv_transfer_config(cluster, placement, agreed, pool_ports[placement.host])
        args = shared.get(id(instance)) if not member.engine_args_extra else None
        if args is None:
            args = command.arguments(cluster, instance, member)
            if not member.engine_args_extra:
                shared[id(instance)] = args
        findings += config_findings
        findings += command.fill(cluster, placement, args, config)
        arguments.append(args)
    return arguments


def _proxy(cluster: Cluster, placements: list[Placement], transport: Transport) -> dict[str, t.Any] | None:
    """Upstream's example proxy with every API endpoint; one hosts list and one ports list of equal length per role."""
    if cluster.proxy_host is None or cluster.proxy_address is None:
        return None
    argv = ["python3", PROXY_SCRIPTS[transport.proxy_kind]]
    argv += ["--host", cluster.proxy_address, "--port", str(cluster.proxy_port)]
    for role, option in (("prefill", "prefiller"), ("decode", "decoder")):
        served = [
            (placement.member.node_ip, str(process.api_port))
            for placement in placements
            if placement.instance.role == role
            for process in placement.processes
            if process.api_port is not None
        ]
        argv += [f"--{option}-hosts", *(host for host, _port in served)]
        argv += [f"--{option}-ports", *(port for _host, port in served)]
    if cluster.proxy_workers > 1:
        argv += ["--workers", str(cluster.proxy_workers)]
    return {
        "host": cluster.proxy_host,
        "address": cluster.proxy_address,
        "kind": transport.proxy_kind,
        "port": cluster.proxy_port,
        "name": container.unit_name(cluster, "proxy"),
        "argv": argv,
        "container": container.proxy_container(cluster),
    }


def _with_production(rehearsed: list[Finding], production: list[Finding]) -> list[Finding]:
    """What a rehearsal overrides is judged by its production value; the rest would be said twice."""
    said = {(finding.rule, finding.host, finding.variable) for finding in production}
    return production + [f for f in rehearsed if (f.rule, f.host, f.variable) not in said]


_ENGINE_VARIABLES = ("pd_engine_args", "pd_engine_env")
_INSTANCE = re.compile(r"(?:(?:prefill|decode) )?instance [A-Za-z0-9_.-]+")


def _once(findings: list[Finding]) -> list[Finding]:
    """Errors first; what is wrong alike on many hosts is said once, with the others named."""
    groups: dict[tuple[str, str, str | None, str, str], list[Finding]] = {}
    for finding in findings:
        message = finding.message.replace(f" on {finding.host}", "") if finding.host else finding.message
        if (finding.variable or "").startswith(_ENGINE_VARIABLES):
            # One mapping serves many instances, and its fault is one for all of them.
            message = _INSTANCE.sub("instance", message)
        groups.setdefault((finding.rule, finding.severity, finding.variable, message, finding.fix), []).append(finding)
    out = []
    for alike in groups.values():
        first = alike[0]
        others = list(dict.fromkeys(str(finding.host) for finding in alike[1:] if finding.host != first.host))
        if others:
            more = f", and {len(others) - 4} more" if len(others) > 4 else ""
            first = dataclasses.replace(first, message=f"{first.message} (also on {', '.join(others[:4])}{more})")
        out.append(first)
    return sorted(out, key=lambda finding: finding.severity)


def _without_secrets(findings: list[Finding], source: inventory.Source) -> list[Finding]:
    """Findings go to screens and logs, wherever they are made; a secret is masked in all that they say."""
    if not findings:
        return findings
    seen: dict[int, t.Any] = {}
    secrets: set[str] = set()
    for values in source["hosts"].values():
        for name, value in values.items():
            # Values of group variables are one object for all their hosts.
            if isinstance(value, (dict, list)) and id(value) not in seen:
                seen[id(value)] = value
                secrets |= masking.found_in(value, name)
    return [_without(finding, secrets) for finding in findings]


def _without(finding: Finding, secrets: set[str]) -> Finding:
    variable, _dot, key = (finding.variable or "").partition(".")
    if key.startswith("pd_"):
        variable, _dot, key = key.partition(".")
    elif variable == "pd_instances" and ".pd_" in key:
        variable, _dot, key = key[key.index(".pd_") + 1 :].partition(".")
    value = masking.masked({key or variable: finding.value}, variable)[key or variable]
    about = secrets if value != masking.MASK else secrets | {str(finding.value)}
    said = [finding.message, finding.fix]
    if value == masking.MASK:
        said = [text.replace(repr(finding.value), repr(masking.MASK)) for text in said]
    message, fix = (masking.without(text, about) for text in said)
    return dataclasses.replace(finding, value=masking.cleaned(value, secrets), message=message, fix=fix)


# The plan as JSON ---------------------------------------------------------------------------------------------------


def to_json(plan_: Plan) -> bytes:
    """The public JSON (docs/plan.md), one instance, placement and finding a line."""
    head: dict[str, t.Any] = {"schema": SCHEMA, "cluster": _cluster(plan_.cluster)}
    cluster = plan_.cluster
    # Generators: a large fleet's rows never exist all at once.
    rows: dict[str, t.Iterable[dict[str, t.Any]]] = {
        "instances": (_instance(entry) for entry in cluster.instances if entry.complete) if cluster else (),
        "placements": (placement_json(cluster, entry) for entry in plan_.placements) if cluster else (),
        "hosts": hosts_json(plan_),
        "findings": map(finding_json, plan_.findings),
    }
    with _collector_paused():
        parts = [b"{\n"]
        for key, value in head.items():
            parts.append(_dump(key) + b": " + _dump(value) + b",\n")
        for key, entries in rows.items():
            parts.append(_dump(key) + b": [\n")
            parts += _separated(entries)
            parts.append(b"\n],\n")
        parts.append(b'"kv_pool": ' + _dump(plan_.kv_pool) + b",\n")
        parts.append(b'"proxy": ' + _dump(plan_.proxy) + b"\n}\n")
        return b"".join(parts)


def _separated(entries: t.Iterable[dict[str, t.Any]]) -> t.Iterator[bytes]:
    separator = b""
    for entry in entries:
        yield separator
        yield _dump(entry)
        separator = b",\n"


@contextlib.contextmanager
def _collector_paused() -> t.Iterator[None]:
    """A plan is one growing tree without cycles: collecting while it grows only walks it again and again (25 % at 1,024 hosts)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _dump(value: t.Any) -> bytes:
    return _ENCODER.encode(value).encode("utf-8", "surrogatepass")


def _cluster(cluster: Cluster | None) -> dict[str, t.Any] | None:
    if cluster is None:
        return None
    versions = cluster.versions
    return {
        "name": cluster.name,
        "hardware": cluster.hardware.name,
        "fabric": cluster.fabric,
        "topology": cluster.topology,
        "connector": cluster.connector,
        "versions": {
            "vllm_ascend": versions.vllm_ascend,
            "cann": versions.cann,
            "mooncake": versions.mooncake,
            "hixl": versions.hixl,
        },
        "image": cluster.image,
        "model_path": cluster.model_path,
        "served_model_name": cluster.served_model_name,
        "model_is_moe": cluster.model_is_moe,
        "model_family": cluster.model_family,
        "kv_release_timeout": cluster.kv_release_timeout,
        "port_reserve": cluster.port_reserve,
        "runtime": cluster.runtime,
        "engine_launcher": cluster.engine_launcher,
    }


def _instance(instance: Instance) -> dict[str, t.Any]:
    return {
        "name": instance.name,
        "role": instance.role,
        "dp_size": instance.dp_size,
        "tp_size": instance.tp_size,
        "pp_size": instance.pp_size,
        "pcp_size": instance.pcp_size,
        "dcp_size": instance.dcp_size,
        "dp_mode": instance.dp_mode,
        "hosts": instance.hosts,
        "dp_address": instance.dp_address,
        "dp_rpc_port": instance.dp_rpc_port,
        "api_port": instance.api_port,
        "kv_port": instance.kv_port,
    }


def placement_json(cluster: Cluster, placement: Placement) -> dict[str, t.Any]:
    return {
        "instance": placement.instance.name,
        "host": placement.host,
        "role": placement.instance.role,
        "node_ip": placement.member.node_ip,
        "chips": placement.used_chips,
        "dp_rank_start": placement.dp_rank_start,
        "dp_size_local": placement.dp_size_local,
        "kv_listen": list(placement.kv_listen or ()),
        "ports": [_ports(item) for item in placement.ports],
        "container": container.container(cluster, placement),
        "processes": [
            {
                "dp_rank": process.dp_rank,
                "dp_ranks": process.dp_ranks,
                "visible_devices": process.visible_devices,
                "api_port": process.api_port,
                "env": process.env,
                "argv": process.argv,
            }
            for process in placement.processes
        ],
    }


def _ports(item: PortRange) -> dict[str, t.Any]:
    return {"first": item.first, "last": item.last, "owner": item.owner, "variable": item.variable}


def hosts_json(plan_: Plan) -> list[dict[str, t.Any]]:
    """Per host: its placements, the ranges its engines share, and the one value for ip_local_reserved_ports."""
    cluster = plan_.cluster
    if cluster is None:
        return []
    on_host: dict[str, list[Placement]] = {}
    for placement in plan_.placements:
        on_host.setdefault(placement.host, []).append(placement)
    if cluster.proxy_host and cluster.proxy_address:
        on_host.setdefault(cluster.proxy_host, [])
    # Also when nothing is planned there: plays name its group.
    if cluster.pool_host and cluster.pool_address:
        on_host.setdefault(cluster.pool_host, [])
    rows = []
    for host, placements in on_host.items():
        listeners = [item for placement in placements for item in placement.ports]
        shared = ports.shared_ranges(cluster, placements) if placements else []
        if host == cluster.proxy_host:
            listeners.append(PortRange(cluster.proxy_port, cluster.proxy_port, "proxy", "pd_proxy_port"))
        if host == cluster.pool_host:
            listeners += pool.ports(cluster)
        rows.append(
            {
                "host": host,
                "node_ip": placements[0].member.node_ip if placements else _address(cluster, host),
                "instances": [placement.instance.name for placement in placements],
                "proxy": host == cluster.proxy_host,
                "shared_ports": [_ports(item) for item in shared],
                "ip_local_reserved_ports": ports.merged(
                    [*listeners, *(item for item in shared if item.owner == ports.HCCL)]
                ),
            }
        )
    return rows


def _address(cluster: Cluster, host: str) -> str | None:
    """Of a host without engines."""
    return cluster.proxy_address if host == cluster.proxy_host else cluster.pool_address


def _json_value(value: t.Any) -> t.Any:
    """The value as it was given, or as text where JSON has no such value (NaN, a date)."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def finding_json(finding: Finding) -> dict[str, t.Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "host": finding.host,
        "variable": finding.variable,
        "value": _json_value(finding.value),
        "message": finding.message,
        "fix": finding.fix,
        "see": finding.see,
    }
