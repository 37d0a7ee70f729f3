# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The KV pool next to PD: its master, what its clients read, and the memory that they pin.

pd_kv_pool holds the settings of AscendStoreConnector as vLLM-Ascend names them, and beside them four keys of ours:
master (the process that keeps the pool's index, or the address of one that runs already), config (what mooncake.json or
memcache's files shall hold), prefill and decode (AscendStore settings of one role only).
"""

from __future__ import annotations

import json
import re
import typing as t

from . import tables
from .container import unit_folder, unit_name
from .model import Cluster, Placement, PortRange, Role

# What AscendStoreConnector knows; the first one is its default.
BACKENDS = ("mooncake", "memcache", "yuanrong")
OWN_KEYS = ("master", "config", "prefill", "decode")
MOONCAKE_FILE, MEMCACHE_LOCAL_FILE, MEMCACHE_META_FILE = "mooncake.json", "mmc-local.conf", "mmc-meta.conf"
VARIABLE = "pd_kv_pool.master"
METRICS = "kv pool metrics"

# Mooncake's own defaults are 50051 and 9003; upstream's guide and CI use these.
MASTER_PORT, MASTER_METRICS_PORT = 50088, 50089
MEMCACHE_META_PORT, MEMCACHE_STORE_PORT = 5000, 6000
# The master's flags as upstream's recipes set them. The lease must outlast a transfer, so it follows from the engines'.
MASTER_FLAGS: dict[str, t.Any] = {"eviction_high_watermark_ratio": 0.9, "eviction_ratio": 0.1, "client_ttl": 120}
LEASE_FLAG, LEASE_MINIMUM, LEASE_MARGIN = "default_kv_lease_ttl", 11000, 1000
MASTER_KEYS = {
    "mooncake": ("port", "metrics_port", LEASE_FLAG, *MASTER_FLAGS, "args"),
    "memcache": ("port", "config_store_port"),
}
# Keys of mooncake.json, with the type of each; what is left out has Mooncake's default.
CLIENT_KEYS: dict[str, type] = {
    "metadata_server": str,
    "protocol": str,
    "device_name": str,
    "global_segment_size": str,
    "local_buffer_size": str,
    "preferred_segment": bool,
    "prefer_alloc_in_same_node": bool,
    "enable_ssd_offload": bool,
    "ssd_offload_path": str,
}
# What AscendStoreConnector reads, as far as is known, and what kind of value it takes (None: any).
STORE_KEYS: dict[str, type | None] = {
    "backend": str,
    "lookup_rpc_port": None,
    "load_async": bool,
    "consumer_is_to_put": bool,
    "consumer_is_to_load": bool,
    "discard_partial_chunks": bool,
    "save_decode_cache": bool,
    "use_layerwise": bool,
    "prefill_pp_size": None,
    "prefill_pp_layer_partition": None,
    "h2d_stagger_us": None,
    "layerwise_max_transfer_blocks": None,
    "layerwise_max_transfer_bytes": None,
    "layerwise_prefetch_layers": None,
    "layerwise_num_shared_buffers": None,
    "layerwise_independent_layers": None,
}
SIZE_DEFAULT = 1 << 30
PROTOCOL = "ock.mmc.local_service.protocol"
DRAM_SIZE = "ock.mmc.local_service.dram.size"
OFFLOAD_BUFFER_DEFAULT = 1280 << 20
_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
# Milliseconds; what the Mooncake connector sets when the environment has no transfer timeout, see transfer_timeouts.
CONNECT_TIMEOUT_DEFAULT = 3000


def backend(pool: t.Mapping[str, t.Any]) -> str:
    return str(pool.get("backend", BACKENDS[0]))


def store_settings(pool: t.Mapping[str, t.Any], role: Role) -> dict[str, t.Any]:
    """kv_connector_extra_config of the role's AscendStoreConnector, without what is not its own."""
    common = {key: value for key, value in pool.items() if key not in OWN_KEYS}
    own = pool.get(role)
    return {**common, **(own if isinstance(own, dict) else {})}


def master_settings(pool: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    given = pool.get("master")
    return given if isinstance(given, dict) else {}


def client_settings(pool: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    given = pool.get("config")
    return given if isinstance(given, dict) else {}


def ports(cluster: Cluster) -> list[PortRange]:
    """What the master binds on its host; nothing without one of ours."""
    if cluster.kv_pool is None or not is_ours(cluster):
        return []
    given = master_settings(cluster.kv_pool)
    if backend(cluster.kv_pool) == "memcache":
        wanted = [
            ("kv pool meta service", "port", MEMCACHE_META_PORT),
            ("kv pool config store", "config_store_port", MEMCACHE_STORE_PORT),
        ]
    else:
        wanted = [("kv pool master", "port", MASTER_PORT), (METRICS, "metrics_port", MASTER_METRICS_PORT)]
    out = []
    for owner, key, default in wanted:
        number = tables.port(given.get(key, default)) or default
        out.append(PortRange(number, number, owner, f"{VARIABLE}.{key}"))
    return out


def is_ours(cluster: Cluster) -> bool:
    """Whether the plan starts the pool's master: there is a host for it and no address of another."""
    pool = cluster.kv_pool
    return (
        pool is not None
        and cluster.pool_host is not None
        and cluster.pool_address is not None
        and not isinstance(pool.get("master"), str)
        and backend(pool) in MASTER_KEYS
    )


def master_address(cluster: Cluster) -> str | None:
    """host:port of the master that the engines talk to; None when the inventory names none."""
    if cluster.kv_pool is None:
        return None
    given = cluster.kv_pool.get("master")
    if isinstance(given, str):
        return given
    return f"{cluster.pool_address}:{ports(cluster)[0].first}" if is_ours(cluster) else None


# What the engines get --------------------------------------------------------------------------------------------


def client_files(cluster: Cluster) -> dict[str, str]:
    """Files of an engine's unit folder, by name: what its pool client reads."""
    address, pool = master_address(cluster), cluster.kv_pool
    if pool is None or address is None:
        return {}
    given = client_settings(pool)
    if backend(pool) == "memcache":
        local = given.get("local")
        return {MEMCACHE_LOCAL_FILE: _lines({**_memcache_local(cluster, address), **(local or {})})}
    content = {
        "metadata_server": "P2PHANDSHAKE",
        "protocol": "ascend",
        "device_name": "",
        **given,
        "master_server_address": address,
    }
    return {MOONCAKE_FILE: json.dumps(content, indent=2) + "\n"}


def memcache_protocol(cluster: Cluster) -> str:
    """What memcache moves data by: the hardware's own, on a5 that of the fabric."""
    protocol = {"a2": "device_rdma", "a3": "device_sdma"}.get(cluster.hardware.name)
    return protocol or ("device_uboe" if cluster.fabric == "uboe" else "device_urma")


def _memcache_local(cluster: Cluster, address: str) -> dict[str, t.Any]:
    host = address.rpartition(":")[0]
    return {
        "ock.mmc.meta_service_url": f"tcp://{address}",
        "ock.mmc.local_service.config_store_url": f"tcp://{host}:{_memcache_store_port(cluster)}",
        "ock.mmc.local_service.world_size": 256,
        PROTOCOL: memcache_protocol(cluster),
        DRAM_SIZE: "1GB",
    }


def _memcache_store_port(cluster: Cluster) -> int:
    given = master_settings(cluster.kv_pool or {}).get("config_store_port")
    return tables.port(given) or MEMCACHE_STORE_PORT


def _lines(settings: t.Mapping[str, t.Any]) -> str:
    return "".join(f"{key} = {_text(value)}\n" for key, value in settings.items())


def _text(value: t.Any) -> str:
    """A value as memcache's files and gflags take it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def environment(cluster: Cluster, instance_name: str) -> dict[str, str]:
    """What every engine of a pool needs: keys are hashes, which must be equal in all processes."""
    if cluster.kv_pool is None:
        return {}
    env = {"PYTHONHASHSEED": "0"}
    folder = unit_folder(cluster, unit_name(cluster, instance_name))
    if backend(cluster.kv_pool) == "mooncake" and cluster.hardware.name == "a2":
        env["HCCL_INTRA_ROCE_ENABLE"] = "1"
    for name in client_files(cluster):
        variable = "MMC_LOCAL_CONFIG_PATH" if name == MEMCACHE_LOCAL_FILE else "MOONCAKE_CONFIG_PATH"
        env[variable] = f"{folder}/{name}"
    return env


# The master -------------------------------------------------------------------------------------------------------


def transfer_timeouts(env: t.Mapping[str, t.Any]) -> tuple[int, int]:
    """(connect, transfer) in milliseconds, as the engine's connector ends up with.

    Without ASCEND_TRANSFER_TIMEOUT the connector works it out of HCCL's RDMA retries: 4.096 us * 2^timeout each.
    """
    connect = _number(env.get("ASCEND_CONNECT_TIMEOUT"), CONNECT_TIMEOUT_DEFAULT)
    exponent = _number(env.get("HCCL_RDMA_TIMEOUT"), 20)
    retries = _number(env.get("HCCL_RDMA_RETRY_CNT"), 7)
    transfer = _number(env.get("ASCEND_TRANSFER_TIMEOUT"), int(4.096 * 2**exponent * retries // 1000 + 3000))
    return connect, transfer


def _number(value: t.Any, default: int) -> int:
    return int(value) if re.fullmatch(r"[0-9]{1,9}", str(value)) else default


def lease_ttl(cluster: Cluster, placements: t.Iterable[Placement]) -> int:
    """Milliseconds that a read object stays: longer than any engine's transfer, or a block goes while it is read."""
    given = master_settings(cluster.kv_pool or {}).get(LEASE_FLAG)
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    needed = [max(transfer_timeouts(placement.processes[0].env)) for placement in placements]
    return max([LEASE_MINIMUM, *(value + LEASE_MARGIN for value in needed)])


def master(cluster: Cluster, placements: t.Sequence[Placement]) -> dict[str, t.Any] | None:
    """The pool's part of the plan; None without a pool."""
    pool = cluster.kv_pool
    if pool is None:
        return None
    ours = is_ours(cluster)
    out: dict[str, t.Any] = {
        "backend": backend(pool),
        "host": cluster.pool_host if ours else None,
        "address": master_address(cluster),
        "started": ours,
        "memory": memory_by_host(cluster, placements),
    }
    if ours:
        out |= {
            "name": unit_name(cluster, "kv-pool"),
            "ports": [
                {"first": p.first, "last": p.last, "owner": p.owner, "variable": p.variable} for p in ports(cluster)
            ],
            "argv": _argv(cluster, placements),
            "files": master_files(cluster),
        }
    return out


def _argv(cluster: Cluster, placements: t.Sequence[Placement]) -> list[str]:
    assert cluster.kv_pool is not None
    if backend(cluster.kv_pool) == "memcache":
        # memcache_hybrid has no command of its own.
        return ["python3", "-c", "from memcache_hybrid import MetaService; MetaService.main()"]
    given = master_settings(cluster.kv_pool)
    first, metrics = ports(cluster)
    flags: dict[str, t.Any] = {
        "rpc_address": cluster.pool_address,
        "port": first.first,
        "metrics_port": metrics.first,
        **{name: given.get(name, default) for name, default in MASTER_FLAGS.items()},
        LEASE_FLAG: lease_ttl(cluster, placements),
    }
    if client_settings(cluster.kv_pool).get("enable_ssd_offload") is True:
        flags["enable_offload"] = True
    more = given.get("args")
    flags |= more if isinstance(more, dict) else {}
    return ["mooncake_master", *(f"--{name}={_text(value)}" for name, value in flags.items() if value is not None)]


def master_files(cluster: Cluster) -> dict[str, str]:
    """Files of the master's unit folder, by name."""
    pool = cluster.kv_pool
    if pool is None or not is_ours(cluster) or backend(pool) != "memcache":
        return {}
    meta = client_settings(pool).get("meta")
    first, store = ports(cluster)
    planned = {
        "ock.mmc.meta_service_url": f"tcp://{cluster.pool_address}:{first.first}",
        "ock.mmc.meta_service.config_store_url": f"tcp://{cluster.pool_address}:{store.first}",
    }
    return {MEMCACHE_META_FILE: _lines({**planned, **(meta or {})})}


def library_environment(cluster: Cluster) -> dict[str, str]:
    """Where the image has Mooncake's libraries; what else its shells set is for engines."""
    if cluster.production_runtime != "docker":
        return {}
    return {name: value for name, value in tables.image_shell_environment().items() if name == "LD_LIBRARY_PATH"}


def master_environment(cluster: Cluster) -> dict[str, str]:
    folder = unit_folder(cluster, unit_name(cluster, "kv-pool"))
    return {"MMC_META_CONFIG_PATH": f"{folder}/{MEMCACHE_META_FILE}"} if master_files(cluster) else {}


# Memory -----------------------------------------------------------------------------------------------------------


def size(value: t.Any) -> int | None:
    """Bytes of 1GB, "512 MB" or a number; None when it is no size."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?b)?\s*", str(value), re.IGNORECASE)
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else None


# A segment below this is no pool: somebody has left the unit out.
SMALLEST_SIZE = 1 << 20


def size_fault(value: t.Any) -> str | None:
    """What is wrong with a size; None when nothing is."""
    found = None if isinstance(value, float) or str(value).lower().rstrip().endswith("tb") else size(value)
    if found is None:
        return "must be a size: bytes, or a number with KB, MB or GB"
    return f"would be {found} bytes" if 0 < found < SMALLEST_SIZE else None


def _pinned(value: t.Any) -> int | None:
    """Bytes of a size; None for one that is refused, of which nothing is worked out."""
    return None if size_fault(value) else size(value)


def per_worker(cluster: Cluster, placement: Placement) -> dict[str, int | None]:
    """What one worker process (one chip) pins of the host's memory, by the setting that decides it, in bytes.

    None stands for a value that is refused.
    """
    assert cluster.kv_pool is not None
    env, given = placement.processes[0].env, client_settings(cluster.kv_pool)
    if backend(cluster.kv_pool) == "memcache":
        local = given.get("local")
        value = (local if isinstance(local, dict) else {}).get(DRAM_SIZE, "1GB")
        return {DRAM_SIZE: _pinned(value)}
    segment = _pinned(env.get("MOONCAKE_GLOBAL_SEGMENT_SIZE") or given.get("global_segment_size", SIZE_DEFAULT))
    out = {
        # Segments come in whole gigabytes.
        "global_segment_size": None if segment is None else -(-segment // SIZE_DEFAULT) * SIZE_DEFAULT,
        "local_buffer_size": _pinned(given.get("local_buffer_size", SIZE_DEFAULT)),
    }
    if given.get("enable_ssd_offload") is True:
        name = "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES"
        out[name] = _pinned(env.get(name) or OFFLOAD_BUFFER_DEFAULT)
    return out


def memory(cluster: Cluster, placements: t.Iterable[Placement]) -> list[dict[str, t.Any]]:
    """Per placement: host, workers, bytes of each by setting, and the sum that memory must hold beside the engines.

    Without a placement of which a size is refused: a sum with a hole in it would look like one.
    """
    if cluster.kv_pool is None or backend(cluster.kv_pool) == "yuanrong":
        return []
    rows = []
    for placement in placements:
        workers = placement.dp_size_local * placement.instance.rank_width
        found = per_worker(cluster, placement)
        each = {name: value for name, value in found.items() if value is not None}
        if len(each) < len(found):
            continue
        total = workers * sum(each.values())
        rows.append({"host": placement.host, "workers": workers, "per_worker": each, "bytes": total})
    return rows


def arithmetic(row: t.Mapping[str, t.Any]) -> str:
    """A row of memory() for people."""
    each = " + ".join(f"{value / SIZE_DEFAULT:g} GB {name}" for name, value in row["per_worker"].items())
    return f"{row['workers']} workers x ({each}) = {row['bytes'] / SIZE_DEFAULT:g} GB"


def memory_by_host(cluster: Cluster, placements: t.Iterable[Placement]) -> list[dict[str, t.Any]]:
    """The rows of memory(), one per host: those of several instances are added up, the first tells what a worker takes."""
    hosts: dict[str, dict[str, t.Any]] = {}
    for row in memory(cluster, placements):
        if row["host"] in hosts:
            hosts[row["host"]]["workers"] += row["workers"]
            hosts[row["host"]]["bytes"] += row["bytes"]
        else:
            hosts[row["host"]] = row
    return list(hosts.values())
