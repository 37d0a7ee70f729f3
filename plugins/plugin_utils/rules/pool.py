# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The KV pool: its settings, where they have to stand under MultiConnector, and what its master and engines agree on."""

from __future__ import annotations

import difflib
import json
import re
import typing as t

from .. import command, connectors, container, hostmemory, pool, tables
from ..model import ROLES, Finding, Placement
from .context import Context, error, given_environment, warning

# Keys that belong elsewhere: AscendStoreConnector does not read them, and nobody says so. Key -> where it belongs.
_MISPLACED = {
    "qos_priority": "pd_qos_priority (it ends in the Mooncake child, which opens the channel)",
    "ascend_local_comm_res_path": "pd_kv_transfer_config.kv_connector_extra_config (workers read it from the outer config)",
    "kv_load_failure_policy": "pd_kv_transfer_config (it is read from the outer config)",
    "kv_port": "pd_kv_port (it belongs to the Mooncake child)",
    "kv_role": "the inventory group: all three connectors have the role of the instance",
    "kv_connector": "pd_connector",
    "engine_id": "pd_kv_transfer_config",
    "connectors": "nowhere: the plan composes the connectors itself",
    "dp_size": "pd_dp_size of the instances (the Mooncake child gets both blocks)",
    "tp_size": "pd_tp_size of the instances (the Mooncake child gets both blocks)",
    "pp_size": "pd_pp_size of the instances (the Mooncake child gets both blocks)",
    "d2rh_zmq_port": "pd_kv_transfer_config.kv_connector_extra_config",
    "d2rh_scheduler_ready_port": "pd_kv_transfer_config.kv_connector_extra_config",
    # Of the client's file or the master, one level too high.
    "global_segment_size": "pd_kv_pool.config",
    "local_buffer_size": "pd_kv_pool.config",
    "master_server_address": "pd_kv_pool.master, as host:port, where the master is not the plan's",
    "protocol": "pd_kv_pool.config",
    "port": "pd_kv_pool.master",
    "default_kv_lease_ttl": "pd_kv_pool.master",
    "kv_connector_extra_config": "pd_kv_pool itself, which is that mapping",
}
# Names of flags, dashes as well; names in memcache's files.
_FLAG = re.compile(r"[a-z][a-z0-9_-]*")
_MEMCACHE_KEY = re.compile(r"ock(\.[A-Za-z0-9_]+)+")


def pool_pair(context: Context) -> t.Iterator[Finding]:
    cluster = context.cluster
    if cluster.kv_pool is None:
        if cluster.pool_host is not None:
            yield warning(
                "pool-host",
                cluster.pool_host,
                "pd_kv_pool",
                None,
                f"group kv_pool names {cluster.pool_host}, but pd_kv_pool is not set: no pool is planned",
                "set pd_kv_pool ({backend: mooncake} is enough), or drop group kv_pool",
            )
        return
    if cluster.connector == "MooncakeLayerwiseConnector":
        yield error(
            "layerwise-with-pool",
            "all",
            "pd_kv_pool",
            ["MooncakeLayerwiseConnector", "AscendStoreConnector"],
            "the connectors [MooncakeLayerwiseConnector, AscendStoreConnector] do not work together (upstream's answer)",
            "drop pd_kv_pool, or use MooncakeConnectorV1",
        )
    elsewhere = cluster.kv_pool.get("master")
    if cluster.pool_host is not None and _is_endpoint(elsewhere):
        yield warning(
            "pool-host",
            cluster.pool_host,
            "pd_kv_pool.master",
            elsewhere,
            f"group kv_pool names {cluster.pool_host}, but pd_kv_pool.master is {elsewhere}, a master that runs already: "
            "none is started",
            "drop group kv_pool, or let pd_kv_pool.master be a mapping",
        )
    backend = cluster.kv_pool.get("backend", pool.BACKENDS[0])
    if backend not in pool.BACKENDS:
        yield error(
            "variable-value",
            "all",
            "pd_kv_pool.backend",
            backend,
            f"pd_kv_pool.backend must be one of {', '.join(pool.BACKENDS)}; it is {backend!r}",
            "name a backend that AscendStoreConnector has; without one it is mooncake",
        )
        return
    if not pool.is_ours(cluster) and (backend == "yuanrong" or pool.master_address(cluster) is None):
        yield warning(
            "pool-not-started",
            "all",
            "pd_kv_pool",
            cluster.kv_pool,
            f"nothing starts the master of the {backend} pool, and engines end at their start without it: "
            + ("this release does not deploy that backend" if backend == "yuanrong" else "group kv_pool has no host"),
            "start it yourself before site.yml and give what its clients read in pd_engine_env_common"
            if backend == "yuanrong"
            else "put one host into group kv_pool, or name a master that runs already: pd_kv_pool.master: host:port",
        )


def pool_settings(context: Context) -> t.Iterator[Finding]:
    """Shape and type of what is ours in pd_kv_pool."""
    given = context.cluster.kv_pool
    if given is None or pool.backend(given) not in pool.MASTER_KEYS:
        return
    backend = pool.backend(given)
    for name in pool.OWN_KEYS:
        value = given.get(name)
        if value is None or isinstance(value, dict) or (name == "master" and _is_endpoint(value)):
            continue
        expected = "a mapping, or host:port of a master that runs already" if name == "master" else "a mapping"
        yield _bad(name, value, f"must be {expected}")
    yield from _master_address(context, given.get("master"))
    yield from _master(given, backend)
    if backend == "mooncake":
        yield from _mooncake_config(pool.client_settings(given))
    else:
        config = pool.client_settings(given)
        for key, value in config.items():
            if key not in ("meta", "local") or not isinstance(value, dict):
                yield _bad(f"config.{key}", value, "must be local or meta with a mapping of ock.mmc settings")
                continue
            for name, setting in value.items():
                where = f"config.{key}.{name}"
                fault = pool.size_fault(setting) if name == pool.DRAM_SIZE else None
                if not _MEMCACHE_KEY.fullmatch(name):
                    yield _bad(where, setting, "is no name of memcache's files", "those begin with ock.mmc.")
                elif fault:
                    yield _bad(where, setting, fault, _SIZE_FIX)
                elif not _is_plain(setting):
                    yield _bad(where, setting, "must be one line: a text, a number, true or false")


_SIZE_FIX = "give a number with its unit, as in 64GB"


def _is_plain(value: t.Any) -> bool:
    """Whether a value can be written behind a flag, or in a line of a file."""
    return isinstance(value, (bool, int, float)) or (isinstance(value, str) and value.isprintable())


def _master_address(context: Context, given: t.Any) -> t.Iterator[Finding]:
    """A master that runs already is looked for by every host, so it cannot be on "this" one."""
    hosts = {member.host for instance in context.cluster.instances for member in instance.members}
    if not _is_endpoint(given) or len(hosts) < 2:
        return
    name = str(given).partition(":")[0]
    if name == "localhost" or name.startswith("127."):
        yield _bad("master", given, f"names {name}, which is another host to each of the {len(hosts)} hosts")


def _is_endpoint(value: t.Any) -> bool:
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9.-]*):([0-9]{1,5})", value) if isinstance(value, str) else None
    return match is not None and 0 < int(match[2]) < 65536


def _master(given: t.Mapping[str, t.Any], backend: str) -> t.Iterator[Finding]:
    known = pool.MASTER_KEYS[backend]
    for key, value in pool.master_settings(given).items():
        where = f"master.{key}"
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}; other flags go into args"
            yield _bad(where, value, "is no setting of the master", hint)
        elif key == "args":
            if not isinstance(value, dict):
                yield _bad(where, value, "must be a mapping of flags")
                continue
            for flag in sorted(value):
                yield from _master_flag(f"{where}.{flag}", flag, value[flag], known)
        elif key in ("port", "metrics_port", "config_store_port"):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
                yield _bad(where, value, "must be a port, 1 to 65535")
        elif key.endswith("_ratio"):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
                yield _bad(where, value, "must be above 0 and at most 1")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            yield _bad(where, value, "must be a whole number of 1 or more")


def _master_flag(where: str, flag: str, value: t.Any, known: t.Sequence[str]) -> t.Iterator[Finding]:
    # gflags takes dashes for underscores.
    name = flag.replace("-", "_")
    if not _FLAG.fullmatch(flag):
        hint = "write flags as mooncake_master --help has them, without the dashes before them: {rpc_thread_num: 64}"
        yield _bad(where, value, "is no name of a flag", hint)
    elif name in ("rpc_address", "rpc_port", *known):
        # mooncake_master takes rpc_port before port, which is its older name.
        own = "port" if name == "rpc_port" else name
        hint = "it follows from group kv_pool" if name == "rpc_address" else f"use pd_kv_pool.master.{own}"
        yield _bad(where, value, "is the plan's to say: engines and ports follow it", hint)
    elif value is not None and not _is_plain(value):
        yield _bad(where, value, "must be one line: a text, a number, true or false; null leaves the flag out")


def _mooncake_config(config: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    for key, value in config.items():
        where, kind = f"config.{key}", pool.CLIENT_KEYS.get(key)
        if key == "master_server_address":
            yield _bad(where, value, "is the plan's to say", "put a host into group kv_pool, or use pd_kv_pool.master")
        elif kind is None:
            near = difflib.get_close_matches(key, pool.CLIENT_KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(pool.CLIENT_KEYS)}"
            yield _bad(where, value, "is no key of mooncake.json", hint)
        elif key in ("global_segment_size", "local_buffer_size"):
            fault = pool.size_fault(value)
            if fault:
                yield _bad(where, value, fault, _SIZE_FIX)
        elif key == "protocol" and value != "ascend":
            yield _bad(where, value, "must be ascend: vLLM-Ascend has no other", "leave it out")
        elif not isinstance(value, kind):
            yield _bad(where, value, f"must be {'true or false' if kind is bool else 'text'}")


def _bad(where: str, value: t.Any, problem: str, fix: str = "correct it, or leave it out for the default") -> Finding:
    variable = f"pd_kv_pool.{where}"
    return error("variable-value", "all", variable, value, f"{variable} {problem}; it is {value!r}", fix)


def pool_without_memory(context: Context) -> t.Iterator[Finding]:
    """What the pool holds is in the memory that its engines give it."""
    cluster, given = context.cluster, context.cluster.kv_pool
    if given is None or pool.backend(given) not in pool.MASTER_KEYS or not context.placements:
        return
    name = "global_segment_size" if pool.backend(given) == "mooncake" else pool.DRAM_SIZE
    if any(pool.per_worker(cluster, placement)[name] != 0 for placement in context.placements):
        return
    settings = pool.client_settings(given)
    local = settings.get("local") if name == pool.DRAM_SIZE else settings
    variable = f"pd_kv_pool.config.{'local.' if name == pool.DRAM_SIZE else ''}{name}"
    # Clients that the plan does not know may give it memory.
    yield warning(
        "pool-no-memory",
        "all",
        variable,
        local.get(name) if isinstance(local, dict) else None,
        f"{name} is 0 for all engines, so the pool holds nothing, unless clients outside this plan give it memory",
        f"give each worker process a share of the host's memory, as in {variable}: 4GB, or drop pd_kv_pool",
    )


def pool_nesting(context: Context) -> t.Iterator[Finding]:
    """What stands in AscendStore's settings is read by AscendStore only."""
    given = context.cluster.kv_pool or {}
    places: list[tuple[str, t.Any]] = [("", given)]
    places += [(f"{role}.", given.get(role)) for role in ROLES if isinstance(given.get(role), dict)]
    for prefix, settings in places:
        for key, value in settings.items():
            if key in _MISPLACED:
                yield error(
                    "pool-nesting",
                    "all",
                    f"pd_kv_pool.{prefix}{key}",
                    value,
                    f"pd_kv_pool.{prefix}{key} would stand in the settings of AscendStoreConnector, which does not read {key}",
                    f"move it to {_MISPLACED[key]}",
                )
            elif key in pool.BACKENDS:
                yield error(
                    "pool-nesting",
                    "all",
                    f"pd_kv_pool.{prefix}{key}",
                    value,
                    f"pd_kv_pool.{prefix}{key} would stand in the settings of AscendStoreConnector, which does not read {key}",
                    f"name the backend as pd_kv_pool.backend: {key}, and its settings in pd_kv_pool.config",
                )
            elif key == "backend" and prefix and pool.backend({"backend": value}) != pool.backend(given):
                yield error(
                    "pool-nesting",
                    "all",
                    f"pd_kv_pool.{prefix}{key}",
                    value,
                    f"both roles use one pool, whose backend is {pool.backend(given)}; pd_kv_pool.{prefix}{key} is {value!r}",
                    "name the backend once, as pd_kv_pool.backend",
                )
            elif key == "use_layerwise" and value is True and pool.backend(given) != "memcache":
                yield error(
                    "pool-nesting",
                    "all",
                    f"pd_kv_pool.{prefix}{key}",
                    value,
                    f"use_layerwise works with the memcache backend only; this pool's is {pool.backend(given)}",
                    "drop use_layerwise, or set backend: memcache",
                )


def pool_store_settings(context: Context) -> t.Iterator[Finding]:
    """Keys that AscendStoreConnector does not have do nothing, and a text is true to Python whatever it says."""
    given = context.cluster.kv_pool or {}
    stages = connectors.stages_for_store(connectors.sizes(context.cluster)) if given else {}
    places: list[tuple[str, t.Any]] = [("", {key: value for key, value in given.items() if key not in pool.OWN_KEYS})]
    places += [(f"{role}.", given[role]) for role in ROLES if isinstance(given.get(role), dict)]
    for prefix, settings in places:
        for key, value in settings.items():
            if key in _MISPLACED or key in pool.BACKENDS:
                continue
            if key not in pool.STORE_KEYS:
                near = difflib.get_close_matches(key, [*pool.STORE_KEYS, *pool.OWN_KEYS], n=1, cutoff=0.7)
                yield warning(
                    "pool-unknown-setting",
                    "all",
                    f"pd_kv_pool.{prefix}{key}",
                    value,
                    f"AscendStoreConnector has no setting {key}, as far as is known; it would be ignored",
                    f"did you mean {near[0]}?" if near else "check the name in vLLM-Ascend's guide to the KV pool",
                )
            elif pool.STORE_KEYS[key] is bool and not isinstance(value, bool):
                yield _bad(f"{prefix}{key}", value, "must be true or false, without quotes")
            elif key in stages and str(value) != str(stages[key]):
                yield _bad(
                    f"{prefix}{key}",
                    value,
                    f"must be {stages[key]}, which is prefill's own",
                    "leave it out: the plan writes it from pd_pp_size and the engines' VLLM_PP_LAYER_PARTITION",
                )
            elif key == "lookup_rpc_port" and (isinstance(value, bool) or not isinstance(value, (int, str))):
                yield _bad(f"{prefix}{key}", value, "must be a number or a word")


def pool_lookup_port(context: Context) -> t.Iterator[Finding]:
    """It names a socket on the host; two instances with one name answer each other's lookups."""
    if context.cluster.kv_pool is None:
        return
    for host, placements in context.on_host.items():
        owner: dict[str, Placement] = {}
        for placement in placements:
            value = pool.store_settings(context.cluster.kv_pool, placement.instance.role).get("lookup_rpc_port")
            if value is None:
                continue  # the plan counts up over the placements of a host
            other = owner.setdefault(str(value), placement)
            if other is not placement:
                yield error(
                    "pool-lookup-port",
                    host,
                    "pd_kv_pool.lookup_rpc_port",
                    value,
                    f"instances {other.instance.name} and {placement.instance.name} on {host} both have lookup_rpc_port {value}",
                    "leave lookup_rpc_port out: the plan gives each instance of a host its own",
                )


def pool_environment(context: Context) -> t.Iterator[Finding]:
    """The pool's keys are Python hashes: one seed for all, or nobody finds what another has stored."""
    cluster = context.cluster
    if cluster.kv_pool is None:
        return
    seeds: dict[str | None, Placement] = {}
    for placement in context.placements:
        seed = placement.processes[0].env.get("PYTHONHASHSEED")
        if seed in seeds:
            continue
        seeds[seed] = placement
        if seed is None or not re.fullmatch(r"[0-9]{1,10}", seed):
            yield error(
                "pool-hash-seed",
                placement.host,
                given_environment(context, placement, "PYTHONHASHSEED"),
                seed,
                f"instance {placement.instance.name} has PYTHONHASHSEED {seed or 'unset'}: its keys in the pool differ from process to process",
                "leave PYTHONHASHSEED out (the plan sets 0), or give one number to all instances",
            )
        elif len(seeds) > 1:
            first = next(iter(seeds.values()))
            yield error(
                "pool-hash-seed",
                placement.host,
                given_environment(context, placement, "PYTHONHASHSEED"),
                seed,
                f"PYTHONHASHSEED of instance {placement.instance.name} is {seed}, that of {first.instance.name} is "
                f"{first.processes[0].env.get('PYTHONHASHSEED')}: neither would find what the other has stored",
                "leave PYTHONHASHSEED out (the plan sets 0), or give one number to all instances",
            )


def pool_client_environment(context: Context) -> t.Iterator[Finding]:
    """Two variables of the environment win over the file that the plan writes."""
    cluster = context.cluster
    if cluster.kv_pool is None or pool.backend(cluster.kv_pool) != "mooncake":
        return
    planned = pool.master_address(cluster)
    for placement in context.placements:
        env = placement.processes[0].env
        master, size = env.get("MOONCAKE_MASTER"), env.get("MOONCAKE_GLOBAL_SEGMENT_SIZE")
        if master is not None and planned is not None and master != planned:
            yield warning(
                "environment-overrides",
                placement.host,
                given_environment(context, placement, "MOONCAKE_MASTER"),
                master,
                f"MOONCAKE_MASTER is {master}, while pd_kv_pool gives {planned}; the former is used",
                "leave MOONCAKE_MASTER out, or name that master as pd_kv_pool.master",
            )
        fault = None if size is None else pool.size_fault(size)
        if fault is not None:
            yield error(
                "environment-value",
                placement.host,
                given_environment(context, placement, "MOONCAKE_GLOBAL_SEGMENT_SIZE"),
                size,
                f"MOONCAKE_GLOBAL_SEGMENT_SIZE {fault}; it is {size!r}",
                "leave it out and set pd_kv_pool.config.global_segment_size",
            )


def pool_prefix_caching(context: Context) -> t.Iterator[Finding]:
    """Prefill asks the pool for what its own prefix cache lacks; without prefix caching it asks for nothing."""
    if context.cluster.kv_pool is None:
        return
    for placement, args in context.of_role("prefill"):
        if command.option(args, "enable-prefix-caching") is False:
            given = args["enable-prefix-caching"]
            yield warning(
                "pool-prefix-caching",
                placement.host,
                f"{given.variable}.{given.name}",
                given.value,
                f"instance {placement.instance.name} runs without prefix caching, so it never takes anything from the pool",
                f"drop {given.name} for prefill",
            )


def pool_lease(context: Context) -> t.Iterator[Finding]:
    """An object whose lease ends while it is read may be evicted under the reader."""
    cluster = context.cluster
    if cluster.kv_pool is None or not pool.is_ours(cluster) or pool.backend(cluster.kv_pool) != "mooncake":
        return
    lease = pool.lease_ttl(cluster, context.placements)
    # The longest transfer decides; the others would be the same fault again.
    longest = max(context.placements, key=_longest_transfer, default=None)
    if longest is None or lease > _longest_transfer(longest):
        return
    connect, transfer = pool.transfer_timeouts(longest.processes[0].env)
    name = "ASCEND_TRANSFER_TIMEOUT" if transfer >= connect else "ASCEND_CONNECT_TIMEOUT"
    yield error(
        "pool-lease-ttl",
        longest.host,
        f"pd_kv_pool.master.{pool.LEASE_FLAG}",
        lease,
        f"{pool.LEASE_FLAG} is {lease} ms, but a transfer of instance {longest.instance.name} may take {max(connect, transfer)} ms "
        f"({name}): what it reads could be evicted meanwhile",
        f"leave {pool.LEASE_FLAG} out, give more than {max(connect, transfer)}, or set a shorter {name} in pd_engine_env_common",
    )


def _longest_transfer(placement: Placement) -> int:
    return max(pool.transfer_timeouts(placement.processes[0].env))


def pool_host_memory(context: Context) -> t.Iterator[Finding]:
    """What a host's engines pin for the pool, beside what D2RH decode pins, against limits that the inventory tells."""
    cluster = context.cluster
    limit = cluster.container_memory_gib
    for placement in context.placements:
        rows = pool.memory(cluster, [placement])
        if rows and limit is not None and rows[0]["bytes"] >= limit * pool.SIZE_DEFAULT:
            yield _too_much(
                placement.host, "pd_container_memory_gib", limit, pool.arithmetic(rows[0]), "a container may use"
            )
    for row in pool.memory_by_host(cluster, context.placements):
        placements = context.on_host[row["host"]]
        memory = placements[0].member.host_memory_gib
        staged = [found for found in (hostmemory.pinned(cluster, placement) for placement in placements) if found]
        known = [found for found in staged if found.total_gib is not None]
        needed = row["bytes"] + sum((found.total_gib or 0) * pool.SIZE_DEFAULT for found in known)
        if memory is not None and needed >= memory * pool.SIZE_DEFAULT:
            said = " and ".join([pool.arithmetic(row), *(found.arithmetic for found in known)])
            yield _too_much(row["host"], "pd_host_memory_gib", memory, said, "the host has")


def _too_much(host: str, variable: str, there: int, arithmetic: str, who: str) -> Finding:
    return error(
        "pool-memory",
        host,
        variable,
        there,
        f"engines on {host} pin {arithmetic} for the pool, but {who} {there} GiB",
        "lower pd_kv_pool.config.global_segment_size (memcache: config.local), run fewer ranks there, or raise the limit",
    )


def pool_fabric_memory(context: Context) -> t.Iterator[Finding]:
    """With fabric memory every process needs room for what it pins, or it ends with EL0004."""
    cluster = context.cluster
    if cluster.kv_pool is None or pool.backend(cluster.kv_pool) != "mooncake":
        return
    told: set[str] = set()
    for placement in context.placements:
        env = placement.processes[0].env
        if env.get("ASCEND_ENABLE_USE_FABRIC_MEM") != "1" or placement.instance.name in told:
            continue
        pinned = list(pool.per_worker(cluster, placement).values())
        needed = sum(value for value in pinned if value is not None)
        if None in pinned:
            continue  # of a value that is refused nothing follows
        room = _fabric_room(env.get("ASCEND_GLOBAL_RESOURCE_CONFIG"))
        if room is None or room * pool.SIZE_DEFAULT <= needed:
            told.add(placement.instance.name)
            least = needed // pool.SIZE_DEFAULT + 1
            yield error(
                "pool-fabric-memory",
                placement.host,
                "pd_engine_env.ASCEND_GLOBAL_RESOURCE_CONFIG",
                room,
                f"each process of instance {placement.instance.name} pins {needed / pool.SIZE_DEFAULT:.1f} GB for the pool, but "
                f"fabric_memory.max_capacity is {'not set' if room is None else f'{room} GB'}: it would end with EL0004",
                f'set "fabric_memory.max_capacity": {least} or more in ASCEND_GLOBAL_RESOURCE_CONFIG, or a smaller '
                "pd_kv_pool.config.global_segment_size",
            )


def _fabric_room(text: str | None) -> float | None:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return None
    room = found.get("fabric_memory.max_capacity") if isinstance(found, dict) else None
    return float(str(room)) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]+)?", str(room)) else None


def pool_ssd(context: Context) -> t.Iterator[Finding]:
    cluster = context.cluster
    if cluster.kv_pool is None or pool.backend(cluster.kv_pool) != "mooncake":
        return
    config = pool.client_settings(cluster.kv_pool)
    if config.get("enable_ssd_offload") is not True:
        return
    path = config.get("ssd_offload_path")
    if not isinstance(path, str) or not path.startswith("/"):
        yield error(
            "pool-ssd",
            "all",
            "pd_kv_pool.config.ssd_offload_path",
            path,
            "enable_ssd_offload needs ssd_offload_path, an absolute path inside the container",
            "set ssd_offload_path, and mount it with pd_mounts",
        )
    elif cluster.production_runtime == "docker":
        yield from _ssd_mount(context, path.rstrip("/") or "/")
    if tables.before(cluster.versions.mooncake, "0.3.11"):
        yield error(
            "pool-ssd",
            "all",
            "pd_kv_pool.config.enable_ssd_offload",
            True,
            f"Mooncake {cluster.versions.mooncake} in this image cannot offload to SSD (0.3.11 and newer do)",
            "drop enable_ssd_offload, or use vLLM-Ascend v0.23.0 or newer",
        )


def _ssd_mount(context: Context, path: str) -> t.Iterator[Finding]:
    """Without a mount the pool is written into the container's own layer: docker's disk fills up, and it is gone with it."""
    for placement in context.placements:
        held = container.holding(container.mounts(context.cluster, placement), path)
        read_only = held is not None and "ro" in held.split(":")[2:]
        if held is not None and not read_only:
            continue
        yield warning(
            "pool-ssd",
            placement.host,
            "pd_kv_pool.config.ssd_offload_path",
            path,
            f"{path} is read-only in the containers on {placement.host} (mount {held}), so nothing can be offloaded there"
            if held
            else f"no mount of the containers on {placement.host} holds {path}: the pool would fill docker's own disk, and be gone "
            "with the container",
            f"mount a folder of the SSD there (pd_mounts: ['{path}:{path}'])",
        )


def pool_memcache_protocol(context: Context) -> t.Iterator[Finding]:
    """The protocol belongs to the hardware and its fabric; memcache takes any word and fails when engines join."""
    cluster = context.cluster
    if cluster.kv_pool is None or pool.backend(cluster.kv_pool) != "memcache":
        return
    local = pool.client_settings(cluster.kv_pool).get("local")
    given = local.get(pool.PROTOCOL) if isinstance(local, dict) else None
    planned = pool.memcache_protocol(cluster)
    if given is not None and given != planned:
        place = cluster.hardware.name + (f" with {cluster.fabric}" if cluster.hardware.name == "a5" else "")
        yield warning(
            "pool-protocol",
            "all",
            f"pd_kv_pool.config.local.{pool.PROTOCOL}",
            given,
            f"{pool.PROTOCOL} is {given!r}, while {place} has {planned}; the former is written into {pool.MEMCACHE_LOCAL_FILE}",
            f"leave it out: the plan sets {planned}",
        )


RULES = (
    pool_pair,
    pool_settings,
    pool_without_memory,
    pool_nesting,
    pool_store_settings,
    pool_lookup_port,
    pool_environment,
    pool_client_environment,
    pool_prefix_caching,
    pool_lease,
    pool_host_memory,
    pool_fabric_memory,
    pool_ssd,
    pool_memcache_protocol,
)
