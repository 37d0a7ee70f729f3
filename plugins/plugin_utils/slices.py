# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What each host needs of the plan. The whole never travels; a host gets its own slice and nothing else.

Slices lie in the controller's private directory of this run, which Ansible removes when the run ends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import typing as t

from . import connectors, fabric, planner, pool, scripts, tables
from .command import PROXY_KEY_VARIABLE, PROXY_VARIABLES
from .container import container, mounts, on_host, pool_container, pool_mounts, unit_name
from .model import Cluster, Placement, Process

STOP_GRACE_SECONDS = 60
PROXY_STOP_GRACE_SECONDS = 10
POOL_STOP_GRACE_SECONDS = 10
FAIL_GRACE_SECONDS = 3
LOG_MAX_BYTES = 100 * 1024 * 1024
LOG_KEEP = 3
CLUSTER_FILE = "cluster.json"
# Where a slice has units, in the order in which they serve.
UNIT_KEYS = ("pool_units", "units", "proxy_units")


@dataclasses.dataclass(frozen=True, slots=True)
class HostRoot:
    """Where a host's paths really are and what its processes need to find there; empty in production."""

    root: str = ""
    environment: t.Mapping[str, str] = dataclasses.field(default_factory=dict)


PRODUCTION = HostRoot()


def directory(local_tmp: str) -> pathlib.Path:
    """The plan's place in the run's private directory (ansible.constants.DEFAULT_LOCAL_TMP)."""
    return pathlib.Path(local_tmp) / "pd_plan"


def read(local_tmp: str, name: str) -> dict[str, t.Any] | None:
    """The slice of a host, or CLUSTER_FILE; None when the plan has none."""
    path = directory(local_tmp) / _file(name)
    try:
        loaded: dict[str, t.Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return loaded


def write(plan: planner.Plan, roots: t.Mapping[str, HostRoot], local_tmp: str) -> None:
    """Write cluster.json and one file per host, readable by this user only."""
    folder = directory(local_tmp)
    folder.mkdir(mode=0o700, exist_ok=True)
    slices = host_slices(plan, roots)
    _write(folder / CLUSTER_FILE, overview(plan, slices))
    for host, content in slices.items():
        _write(folder / _file(host), content)


def _file(name: str) -> str:
    return name if name == CLUSTER_FILE else f"host-{file_name(name)}"


def file_name(name: str) -> str:
    """A file for a host or an instance: their names may hold what a file system does not take, and be too long for it."""
    return f"{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}.json"


def _write(path: pathlib.Path, content: t.Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(content, stream, ensure_ascii=False)


def overview(plan: planner.Plan, slices: t.Mapping[str, dict[str, t.Any]]) -> dict[str, t.Any]:
    """What the controller needs between plays: instances with their hosts and endpoints, and the proxy."""
    assert plan.cluster is not None
    endpoints = [endpoint for content in slices.values() for endpoint in content["endpoints"]]
    return {
        "name": plan.cluster.name,
        "hardware": plan.cluster.hardware.name,
        "connector": plan.cluster.connector,
        "served_model_name": plan.cluster.served_model_name,
        # A round of the benchmark's warm-up gives every chip of the larger role a request.
        "widest_role_chips": max(
            sum(each.dp_size * each.rank_width for each in plan.cluster.instances if each.role == role)
            for role in ("prefill", "decode")
        ),
        "instances": [
            {
                "name": instance.name,
                "unit": unit_name(plan.cluster, instance.name),
                "role": instance.role,
                "hosts": instance.hosts,
                "ranks": instance.dp_size,
                "tp_size": instance.tp_size,
                "chips": instance.dp_size * instance.rank_width,
            }
            for instance in plan.cluster.instances
        ],
        "proxy": None
        if plan.proxy is None
        else {k: plan.proxy[k] for k in ("host", "address", "port", "kind", "name")},
        "kv_pool": None
        if plan.kv_pool is None
        else {k: plan.kv_pool[k] for k in ("host", "address", "backend", "started")},
        "endpoints": endpoints,
        "endpoint_files": any(content["endpoint_files"] for content in slices.values()),
        "priorities": _priorities(plan.cluster),
    }


def _priorities(cluster: Cluster) -> list[dict[str, t.Any]]:
    """Transfer priorities that count, with what the engines of those instances write into their logs about them."""
    side = connectors.transport(cluster)
    given = [(instance, connectors.qos_of(instance)[1]) for instance in cluster.of(side.initiator) if side.has_qos]
    return [
        {"instance": instance.name, "log_line": f"Injected {tables.fabric_fact('qos_key')}={value}"}
        for instance, value in given
        if value is not None
    ]


def host_slices(plan: planner.Plan, roots: t.Mapping[str, HostRoot]) -> dict[str, dict[str, t.Any]]:
    """Host -> slice: its units with launch specs, what to check, where paths are."""
    cluster = plan.cluster
    assert cluster is not None
    rows = {row["host"]: row for row in planner.hosts_json(plan)}
    placements: dict[str, list[Placement]] = {host: [] for host in rows}
    for placement in plan.placements:
        placements[placement.host].append(placement)
    out = {}
    for host, row in rows.items():
        root = roots.get(host, PRODUCTION)
        own = placements[host]
        is_proxy = plan.proxy is not None and host == plan.proxy["host"]
        is_pool = pool.is_ours(cluster) and host == cluster.pool_host
        out[host] = {
            "cluster": cluster.name,
            "runtime": cluster.runtime,
            "image": cluster.image,
            "node_ip": row["node_ip"],
            "model_path": _model_on_host(cluster, own),
            "root": root.root,
            "environment": dict(root.environment),
            "ip_local_reserved_ports": row["ip_local_reserved_ports"],
            "units": [_engine_unit(plan, placement, root) for placement in own],
            "proxy_units": [_proxy_unit(plan)] if is_proxy else [],
            "pool_units": [_pool_unit(plan)] if is_pool else [],
            "mooncake": {
                "version": cluster.versions.mooncake,
                "prefix": cluster.mooncake_prefix,
                "mounts": pool_mounts(cluster),
            },
            "endpoints": [endpoint for placement in own for endpoint in _endpoints(placement)],
            "endpoint_files": _endpoint_files(cluster, own),
            "checks": _checks(plan, own, is_proxy, is_pool, row["node_ip"]),
        }
    return out


def _model_on_host(cluster: Cluster, placements: t.Sequence[Placement]) -> str:
    """Where the model lies on a host: at its own path, unless a mount of a container there brings it from elsewhere."""
    if cluster.runtime != "docker" or not placements:
        return cluster.model_path
    return on_host(mounts(cluster, placements[0]), cluster.model_path)


def _engine_unit(plan: planner.Plan, placement: Placement, root: HostRoot) -> dict[str, t.Any]:
    assert plan.cluster is not None
    instance = placement.instance
    # A simulated container shows only the chips that the real one maps, and has no libraries of the image.
    chips = ",".join(map(str, placement.member.mapped_chips))
    simulated: dict[str, str | None] = {"PD_REHEARSAL_CHIPS": chips, "LD_PRELOAD": None} if root.root else {}
    simulated |= _sums("PD_POOL_CONFIG_SHA256", pool.client_files(plan.cluster).values())
    endpoints = [entry["content"] for entry in _endpoint_files(plan.cluster, [placement])]
    simulated |= _sums("PD_ENDPOINT_FILES_SHA256", endpoints)
    return {
        "name": unit_name(plan.cluster, instance.name),
        "instance": instance.name,
        "role": instance.role,
        "ranks": placement.dp_size_local,
        "container": container(plan.cluster, placement),
        "launch": _launch(
            plan,
            container(plan.cluster, placement),
            STOP_GRACE_SECONDS,
            _upstream_process(plan.cluster, placement, simulated)
            if plan.cluster.engine_launcher == "upstream"
            else [_process(placement, process, simulated) for process in placement.processes],
            [
                {"path": scripts.TEMPLATE, "content": scripts.template(plan.cluster, placement), "mode": "0700"},
                *_files(pool.client_files(plan.cluster)),
            ],
        ),
    }


def _process(placement: Placement, process: Process, simulated: dict[str, str | None]) -> dict[str, t.Any]:
    return {
        "name": f"rank{process.dp_rank}",
        "label": _label(process),
        "argv": process.argv,
        "env": {**process.env, **simulated},
        "health_url": _health_url(placement, process),
    }


def _upstream_process(
    cluster: Cluster, placement: Placement, simulated: dict[str, str | None]
) -> list[dict[str, t.Any]]:
    """Upstream's launcher as one process: it starts the ranks by the template in the unit's folder, where it runs.

    It ends with 0 whatever its children do and leaves them alive on SIGTERM; the launcher around it ends the whole
    process group, and the ranks' own health pages tell whether they serve.
    """
    urls = [_health_url(placement, process) for process in placement.processes]
    return [
        {
            "name": "launch_online_dp",
            "label": f"ranks {placement.dp_rank_start}-{placement.dp_rank_start + placement.dp_size_local - 1}",
            "argv": ["python3", scripts.LAUNCHER, *scripts.launcher_arguments(placement)],
            # What the ranks run with is in the template, so a change of it is a change of the unit.
            "env": {**simulated, "RUN_DP_TEMPLATE_SHA256": _sha256(scripts.template(cluster, placement))},
            "health_url": urls[0],
            "other_health_urls": urls[1:],
        }
    ]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _launch(
    plan: planner.Plan,
    settings: dict[str, t.Any],
    stop_grace_seconds: int,
    processes: list[dict[str, t.Any]],
    files: t.Sequence[dict[str, str]] = (),
) -> dict[str, t.Any]:
    """A unit as the module launch takes it. A container's settings are part of it: a change of them is a change."""
    assert plan.cluster is not None
    docker = plan.cluster.runtime == "docker"
    return {
        "name": settings["name"],
        "spec": {
            "schema": 1,
            "unit": settings["name"],
            "stop_grace_seconds": stop_grace_seconds,
            "fail_grace_seconds": FAIL_GRACE_SECONDS,
            "log_max_bytes": LOG_MAX_BYTES,
            "log_keep": LOG_KEEP,
            "processes": processes,
            **({"container": {**settings, "files": _mounted_files(plan.cluster, settings)}} if docker else {}),
        },
        "files": list(files),
    }


def _mounted_files(cluster: Cluster, settings: t.Mapping[str, t.Any]) -> list[str]:
    """What has to be a plain file inside the container: the launcher looks before it starts an engine."""
    mounts = [mount.split(":") for mount in settings["mounts"]]
    return [parts[1] for parts in mounts if cluster.hardware.mount_types.get(parts[0]) == "file"]


def _label(process: Process) -> str:
    first, last = process.dp_ranks[0], process.dp_ranks[-1]
    return f"rank {first}" if first == last else f"ranks {first}-{last}"


def _health_url(placement: Placement, process: Process) -> str | None:
    return None if process.api_port is None else f"http://{placement.member.node_ip}:{process.api_port}/health"


def _proxy_unit(plan: planner.Plan) -> dict[str, t.Any]:
    proxy = plan.proxy
    assert proxy is not None
    key = {} if plan.proxy_key is None else {PROXY_KEY_VARIABLE: plan.proxy_key}
    process = {
        "name": "proxy",
        "label": "proxy",
        "argv": proxy["argv"],
        "env": {**dict.fromkeys(PROXY_VARIABLES), **key},
        "health_url": f"http://{proxy['address']}:{proxy['port']}/healthcheck",
    }
    return {
        "name": proxy["name"],
        "what": "proxy",
        "container": proxy["container"],
        "launch": _launch(plan, proxy["container"], PROXY_STOP_GRACE_SECONDS, [process]),
    }


def _pool_unit(plan: planner.Plan) -> dict[str, t.Any]:
    """The pool's master as a unit; healthy when it takes connections, since its port speaks no HTTP."""
    cluster = plan.cluster
    assert cluster is not None and plan.kv_pool is not None
    settings, files = pool_container(cluster), pool.master_files(cluster)
    process = {
        "name": "master",
        "label": f"{plan.kv_pool['backend']} master",
        "argv": plan.kv_pool["argv"],
        "env": {
            **dict.fromkeys(PROXY_VARIABLES),
            **pool.library_environment(cluster),
            **pool.master_environment(cluster),
            **_sums("PD_POOL_CONFIG_SHA256", files.values()),
        },
        "health_url": f"tcp://{plan.kv_pool['address']}",
    }
    return {
        "name": settings["name"],
        "what": "kv pool",
        "container": settings,
        "launch": _launch(plan, settings, POOL_STOP_GRACE_SECONDS, [process], _files(files)),
    }


def _files(contents: t.Mapping[str, str]) -> list[dict[str, str]]:
    return [{"path": path, "content": content, "mode": "0600"} for path, content in contents.items()]


def _sums(variable: str, contents: t.Collection[str]) -> dict[str, str | None]:
    """Processes read these files once, when they start: a change of one has to be a change of the unit."""
    return {variable: _sha256("".join(contents))} if contents else {}


def _endpoints(placement: Placement) -> list[dict[str, t.Any]]:
    return [
        {
            "name": f"{placement.host}:{process.api_port}",
            "role": placement.instance.role,
            "instance": placement.instance.name,
            "host": placement.host,
            "url": f"http://{placement.member.node_ip}:{process.api_port}",
        }
        for process in placement.processes
        if process.api_port is not None
    ]


def _endpoint_folder(cluster: Cluster, placement: Placement) -> str | None:
    """The endpoint files' folder on the host; without a container it is where the engines look."""
    folder = fabric.endpoint_folder(cluster, placement.member)
    if folder is None or cluster.runtime == "process":
        return folder
    return on_host(mounts(cluster, placement), folder)


def _endpoint_files(cluster: Cluster, placements: list[Placement]) -> list[dict[str, str]]:
    """Host RoCE: what lies in the endpoint folder, for the chips whose address the inventory tells."""
    return [
        {
            "path": f"{_endpoint_folder(cluster, placement)}/{fabric.endpoint_name(chip)}",
            "content": fabric.endpoint_content(address, placement.member.net_instance_id),
        }
        for placement in placements
        for chip, address in sorted(fabric.endpoint_addresses(cluster, placement).items())
        if address is not None
    ]


def _looked_for_endpoints(cluster: Cluster, placement: Placement) -> dict[str, dict[str, t.Any]]:
    """Endpoint files that nobody here writes: they must be there already, or the engine does not start."""
    folder = _endpoint_folder(cluster, placement)
    if folder is None or not fabric.is_a5(cluster):
        return {}
    if fabric.is_host_roce(cluster):
        addresses = fabric.endpoint_addresses(cluster, placement)
        chips = [chip for chip, address in addresses.items() if address is None]
        variable, why = "pd_roce_addresses", "Host RoCE of chip {}, for which pd_roce_addresses has no address"
    else:
        chips, variable, why = placement.used_chips, "pd_endpoint_dir", "the endpoints of chip {}"
    paths = {chip: f"{folder}/{fabric.endpoint_name(chip)}" for chip in sorted(chips)}
    return {
        path: {"path": path, "type": "file", "variable": variable, "why": why.format(chip)}
        for chip, path in paths.items()
    }


def _checks(
    plan: planner.Plan, placements: list[Placement], is_proxy: bool, is_pool: bool, node_ip: str
) -> dict[str, t.Any]:
    """What preflight looks for on the host: chips, device nodes, free ports, paths of the right type."""
    cluster = plan.cluster
    assert cluster is not None
    ports: list[dict[str, t.Any]] = [
        {
            "first": item.first,
            "last": item.last,
            "owner": f"{item.owner} of {placement.instance.name}",
            "variable": item.variable,
            "address": placement.member.node_ip,
        }
        for placement in placements
        for item in placement.ports
    ]
    if is_proxy:
        port = cluster.proxy_port
        ports.append({"first": port, "last": port, "owner": "proxy", "variable": "pd_proxy_port", "address": node_ip})
    if is_pool:
        ports += [
            {
                "first": item.first,
                "last": item.last,
                "owner": item.owner,
                "variable": item.variable,
                # The metrics page of Mooncake 0.3.11 and older has no address of its own.
                "address": "0.0.0.0" if item.owner == pool.METRICS else node_ip,
            }
            for item in pool.ports(cluster)
        ]
    chips = sorted({chip for placement in placements for chip in placement.member.mapped_chips})
    paths: dict[str, dict[str, t.Any]] = {}
    for placement in placements:
        mounted = mounts(cluster, placement)
        model = on_host(mounted, cluster.model_path) if cluster.runtime == "docker" else cluster.model_path
        for mount in mounted:
            source, target = mount.split(":")[:2]
            path = target if cluster.runtime == "process" and not cluster.rehearsal else source
            plain = path.rstrip("/")
            if fabric.is_host_roce(cluster) and plain == _endpoint_folder(cluster, placement):
                continue  # made with its files
            # Role mooncake fills the prefix after the checks.
            if plain not in (model, (cluster.mooncake_prefix or model).rstrip("/")):
                kind = cluster.hardware.mount_types.get(plain) or fabric.mount_type(cluster, placement.member, plain)
                kind = kind or "any"
                paths[path] = {
                    "path": path,
                    "type": kind,
                    "variable": "pd_mounts",
                    "why": "mounted into the engine's container",
                }
        paths |= _looked_for_endpoints(cluster, placement)
        for node in fabric.device_nodes(cluster):
            why = "the RDMA devices of Host RoCE"
            paths[node] = {"path": node, "type": "directory", "variable": "pd_fabric", "why": why}
        for path, kind in ((model, "directory"), (f"{model}/config.json", "file")):
            paths[path] = {"path": path, "type": kind, "variable": "pd_model_path", "why": "the model to serve"}
    if is_pool and cluster.runtime == "docker":
        for mount in pool_mounts(cluster):
            path = mount.split(":")[0]
            kind = cluster.hardware.mount_types.get(path.rstrip("/"), "any")
            why = "mounted into the container of the pool's master"
            paths.setdefault(path, {"path": path, "type": kind, "variable": "", "why": why})
    executables = []
    if placements and cluster.runtime == "process":
        executables.append({"name": "vllm", "variable": "pd_runtime", "why": "runtime process starts it on the host"})
    if is_pool and cluster.runtime == "process" and plan.kv_pool is not None:
        name = plan.kv_pool["argv"][0]
        executables.append({"name": name, "variable": "pd_runtime", "why": "the KV pool's master"})
    return {
        "chips": chips,
        "device_nodes": list(cluster.hardware.device_nodes) if placements else [],
        "ports": ports,
        "paths": list(paths.values()),
        "executables": executables,
    }
