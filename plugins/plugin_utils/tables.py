# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Facts about hardware, connectors and upstream releases; those that age are read once from data/*.yml."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import re
import typing as t

import yaml

from .model import Hardware, Transport, Versions

DATA = pathlib.Path(__file__).parent / "data"
HYBRID_CONNECTOR = "MooncakeHybridConnector"
D2RH_CONNECTOR = "MooncakeD2RHConnectorV1"
D2RH_ZMQ_PORT, D2RH_SCHEDULER_READY_PORT = 38100, 38200

_PULL = Transport("MooncakeConnectorV1", "prefill", counts_pp=True, counts_pcp=True, proxy_kind="prefill_first")
TRANSPORTS: dict[str, Transport] = {
    "MooncakeConnectorV1": _PULL,
    "MooncakeLayerwiseConnector": Transport(
        "MooncakeLayerwiseConnector", "decode", counts_pp=False, counts_pcp=True, proxy_kind="decode_first"
    ),
    HYBRID_CONNECTOR: Transport(
        HYBRID_CONNECTOR, "prefill", counts_pp=True, counts_pcp=False, proxy_kind="prefill_first"
    ),
    # Built on V1: prefill listens as there, and decode has two more ranges (ports.d2rh_listen).
    D2RH_CONNECTOR: dataclasses.replace(_PULL, connector=D2RH_CONNECTOR, has_qos=False, stages=True),
    # With vLLM-Ascend's module path the registered name resolves to the same class.
    "MooncakeConnector": dataclasses.replace(_PULL, connector="MooncakeConnector"),
}

# Mooncake's transfer engine of every worker, prefill and decode, picks a free RPC port in this range.
TRANSFER_ENGINE_FIRST, TRANSFER_ENGINE_LAST = 15000, 17000
ADXL_BASE_DEFAULT = 20000
HCCL_BASE_DEFAULT = 60000
VLLM_OPTION_KINDS = ("flag", "integer", "number", "size", "size-or-auto", "json", "json-list", "words", "text")


@functools.cache
def _load(name: str) -> dict[str, t.Any]:
    loaded: dict[str, t.Any] = yaml.safe_load((DATA / name).read_text(encoding="utf-8"))
    return loaded


@functools.cache
def vllm_options(kind: str) -> frozenset[str]:
    """Options of `vllm serve` without leading dashes; kind is one of VLLM_OPTION_KINDS."""
    return frozenset(_load("vllm_options.yml")[kind])


def vllm_option_ranges() -> dict[str, tuple[float, float | None]]:
    """Option -> (lowest, highest) number that vLLM takes; a lowest of 0 is itself too low, None is no limit."""
    return {name: (low, high) for name, (low, high) in _load("vllm_options.yml")["ranges"].items()}


@functools.cache
def vllm_option_names() -> frozenset[str]:
    return frozenset().union(*map(vllm_options, VLLM_OPTION_KINDS))


def vllm_options_known(version: Versions) -> bool:
    """Whether the table of options is that of the vLLM in this image (vLLM-Ascend counts like vLLM)."""
    key, table = version_key(version.vllm_ascend), version_key(_load("vllm_options.yml")["version"])
    return key is not None and key[:2] == table


@functools.cache
def hardware(name: str) -> Hardware | None:
    entry = _load("hardware.yml").get(name)
    if entry is None:
        return None
    lists = ("device_nodes", "mounts", "ulimits", "capabilities")
    facts: dict[str, t.Any] = {key: tuple(value) if key in lists else value for key, value in entry.items()}
    return Hardware(name=name, **facts)


@dataclasses.dataclass(frozen=True, slots=True)
class Fabric:
    """What a fabric of a5 hosts needs (data/fabrics.yml); protocol is empty where none has to be named."""

    automatic: bool
    protocol: str


@functools.cache
def fabric(name: str) -> Fabric:
    return Fabric(**_load("fabrics.yml")["fabrics"][name])


def fabric_names() -> tuple[str, ...]:
    return tuple(_load("fabrics.yml")["fabrics"])


def fabric_fact(name: str) -> t.Any:
    """Any other entry of data/fabrics.yml."""
    return _load("fabrics.yml")[name]


def needs_older_files(version: Versions) -> bool:
    return before(version.cann, fabric_fact("older_files_before_cann"))


def reads_route_conf(version: Versions) -> bool:
    """Host UB reads the routing file up to CANN 9.1; an unknown version may."""
    return version.cann is None or before(version.cann, fabric_fact("route_conf_until_cann"))


def hardware_names() -> list[str]:
    return list(_load("hardware.yml"))


def default_version() -> str:
    return str(_load("versions.yml")["default"])


def default_image(version: str, suffix: str) -> str:
    tag = f"{version}-{suffix}" if suffix else version
    return f"{_load('versions.yml')['image_repository']}:{tag}"


def version_key(version: str) -> tuple[int, ...] | None:
    """(0, 20, 2) for v0.20.2rc1; None where the text is no release number (main, nightly-...)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else None


def before(version: str | None, limit: str) -> bool:
    """Whether a release number is older than the limit; False where it is not known."""
    key, bound = version_key(version or ""), version_key(limit)
    if key is None or bound is None:
        return False
    # 9.1 is 9.1.0, not something older.
    return key + (0,) * (len(bound) - len(key)) < bound


def versions(vllm_ascend: str) -> Versions:
    """What the image of this vLLM-Ascend version holds; known is False for versions the table has not."""
    key = version_key(vllm_ascend)
    minor = ".".join(str(part) for part in key[:2]) if key else ""
    for row in _load("versions.yml")["images"]:
        if row["match"] == minor:
            return Versions(vllm_ascend, row["cann"], row["mooncake"], None, known=True)
    return Versions(vllm_ascend, None, None, None, known=False)


def release_of(version: str) -> str | None:
    """The release that a version without its last number (v0.23) may mean; empty where the table has none, else None."""
    key = version_key(version)
    if key is None or not re.fullmatch(r"v?\d+\.\d+", version):
        return None
    minor = ".".join(map(str, key))
    return next((row.get("release", "") for row in _load("versions.yml")["images"] if row["match"] == minor), None)


def kv_release_timeout_names(version: Versions, connector: str) -> list[str]:
    """Environment variables that this version reads as the KV release limit; all known ones when unsure."""
    table = _load("versions.yml")
    if not version.known or version.assumed:
        return list(table["kv_release_timeout_all"])
    for row in table["kv_release_timeout"]:
        if not row["before"] or before(version.vllm_ascend, row["before"]):
            return list(row.get("hybrid_names", row["names"]) if connector == HYBRID_CONNECTOR else row["names"])
    raise AssertionError("the last row of kv_release_timeout has no limit")


def kv_release_timeout_every_name() -> list[str]:
    """All names there have ever been, also the one that no release reads."""
    table = _load("versions.yml")
    return [*table["kv_release_timeout_all"], *table["kv_release_timeout_unread"]]


def image_shell_environment() -> dict[str, str]:
    """Variables that an interactive shell in the image has and a container's command has not."""
    return dict(_load("versions.yml")["image_shell_environment"])


def environment_numbers() -> dict[str, dict[str, t.Any]]:
    """Environment variables that hold a whole number: name -> minimum, maximum, unit."""
    return dict(_load("environment.yml")["numbers"])


def engine_id_must_differ(version: Versions) -> bool:
    return before(version.vllm_ascend, _load("versions.yml")["engine_id_must_differ_before"])


def proxy_has_workers(version: Versions) -> bool:
    return not before(version.vllm_ascend, _load("versions.yml")["proxy_workers_from"])


def connector_from(connector: str, version: Versions) -> str | None:
    """The first minor version that has a connector, where this version is known to be older."""
    first = _load("versions.yml")["connectors_from"].get(connector)
    return first if first is not None and before(version.vllm_ascend, first) else None


def described_from(feature: str, version: Versions) -> str | None:
    """The first minor version whose tutorial has a connector or key, where this version is known to be older."""
    first = str(_load("versions.yml")["described_from"][feature])
    return first if before(version.vllm_ascend, first) else None


def default_block_size() -> int:
    """Tokens of a KV block without --block-size; hybrid models have others."""
    return int(_load("versions.yml")["block_size"])


def hccl_port_count(version: Versions) -> int:
    return 16 if before(version.cann, _load("versions.yml")["hccl_ports_32_from_cann"]) else 32


def adxl_ports_per_chip(version: Versions, port_reserve: str) -> int:
    """Ports per chip to keep clear of: the documented 1000, or what the image's Mooncake really does."""
    measured = version.mooncake is not None and not before(
        version.mooncake, _load("versions.yml")["adxl_ports_100_from_mooncake"]
    )
    return 100 if measured and port_reserve == "measured" else 1000


def default_kv_base(chips_per_node: int) -> int:
    """First port above the documented reserve: 36000 with 16 chips, 28000 with 8 or fewer."""
    return ADXL_BASE_DEFAULT + 1000 * max(chips_per_node, 8)


def port_variables() -> tuple[str, ...]:
    """Environment variables that move a range of Mooncake, as they are properly spelt."""
    return tuple(_load("versions.yml")["port_variables"])


def port_variable_names(variable: str, version: Versions) -> tuple[str, ...]:
    """The names under which the image's Mooncake reads one of port_variables, in its order; all when it is not known."""
    fact = _load("versions.yml")["port_variables"][variable]
    own = () if before(version.mooncake, fact["from_mooncake"]) else (variable,)
    return (*own, fact["misspelt"]) if "misspelt" in fact else own


def port_variable(
    environment: t.Mapping[str, t.Any], variable: str, default: int, version: Versions
) -> tuple[int, str]:
    """(port, the name that gave it) of one of port_variables; without a usable value the default, and the proper name."""
    for name in port_variable_names(variable, version):
        # A variable that is there, if only as an empty text, wins over the next name.
        if environment.get(name) is not None:
            return port(environment[name]) or default, name
    return default, variable


def adxl_base(environment: t.Mapping[str, t.Any], version: Versions) -> int:
    """First port of AscendDirectTransport; ASCEND_BASE_PORT moves it."""
    return port_variable(environment, "ASCEND_BASE_PORT", ADXL_BASE_DEFAULT, version)[0]


def transfer_engine_ports(environment: t.Mapping[str, t.Any], version: Versions) -> tuple[int, int, str]:
    """(first, last, variable of the first) of where Mooncake's transfer engine picks its RPC port."""
    first, name = port_variable(environment, "MC_MIN_RPC_PORT", TRANSFER_ENGINE_FIRST, version)
    last, _name = port_variable(environment, "MC_MAX_RPC_PORT", TRANSFER_ENGINE_LAST, version)
    return (first, last, name) if first <= last else (TRANSFER_ENGINE_FIRST, TRANSFER_ENGINE_LAST, name)


def port(text: t.Any) -> int | None:
    """A port number out of an environment variable; None when it holds none."""
    return int(text) if re.fullmatch(r"[0-9]{1,5}", str(text)) and int(text) <= 65535 else None
