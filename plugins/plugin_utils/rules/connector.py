# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Connectors that the image lacks, and what a user adds to --kv-transfer-config: keys, the policy for failed loads."""

from __future__ import annotations

import difflib
import typing as t

from .. import connectors, pool, tables
from ..model import Finding, Placement
from .context import Context, error, warning

_VARIABLE = "pd_kv_transfer_config"
# vLLM's KVTransferConfig, and what the connectors read of its extra config.
_OUTER = (
    "kv_connector",
    "engine_id",
    "kv_buffer_device",
    "kv_buffer_size",
    "kv_role",
    "kv_rank",
    "kv_parallel_size",
    "kv_ip",
    "kv_port",
    "kv_connector_extra_config",
    "kv_connector_module_path",
    "kv_load_failure_policy",
    "enable_permute_local_kv",
)
_EXTRA = (
    "prefill",
    "decode",
    "connectors",
    "ascend_local_comm_res_path",
    "qos_priority",
    "d2rh_zmq_port",
    "d2rh_scheduler_ready_port",
    "tls_config",
    "transfer_backend",
    "use_layerwise",
    "use_ascend_direct",
)
_SIZES = ("dp_size", "tp_size", "pp_size", "pp_layer_partition")
_POLICIES = ("fail", "recompute")


def unread_keys(context: Context) -> t.Iterator[Finding]:
    """Misspelt or misplaced keys: vLLM ends at those outside, nobody reads those inside."""
    for placement in context.everywhere:
        config = placement.member.kv_transfer_config
        yield from _unread_outside(context, placement, config)
        extra = config.get("kv_connector_extra_config")
        if not isinstance(extra, dict):
            continue
        yield from _unread_inside(placement, extra, _EXTRA, "kv_connector_extra_config.")
        for role in ("prefill", "decode"):
            if isinstance(extra.get(role), dict):
                yield from _unread_inside(placement, extra[role], _SIZES, f"kv_connector_extra_config.{role}.")


def _unread_outside(context: Context, placement: Placement, config: t.Mapping[str, t.Any]) -> t.Iterator[Finding]:
    # vLLM 0.23 forbids others (KVTransferConfig is a dataclass without extras); early releases drop them.
    known = tables.vllm_options_known(context.cluster.versions)
    severity, then = (error, "engines end at it") if known else (warning, "engines drop it, or end at it")
    for key, value in config.items():
        if key in _OUTER:
            continue
        near = _close(key, _OUTER)
        fix = f"move it into {_VARIABLE}.kv_connector_extra_config"
        if key in pool.STORE_KEYS and key not in _EXTRA:
            fix = "move it into pd_kv_pool, from which the plan writes the store's part"
        elif key not in _EXTRA:
            fix = f"did you mean {near}?" if near else f"{fix} if your connector reads it, or leave it out"
        yield severity(
            "kv-transfer-key",
            placement.host,
            f"{_VARIABLE}.{key}",
            value,
            f"{_VARIABLE}.{key} is no key of vLLM's KVTransferConfig: {then}",
            fix,
        )


def _unread_inside(
    placement: Placement, config: t.Mapping[str, t.Any], known: t.Sequence[str], where: str
) -> t.Iterator[Finding]:
    for key, value in config.items():
        near = None if key in known else _close(key, known)
        fix = f"did you mean {near}?" if near else None
        if key in _OUTER:
            fix = f"move it up to {_VARIABLE}.{key}: it is read there only"
        elif key in pool.STORE_KEYS:
            fix = "move it into pd_kv_pool, from which the plan writes the store's part"
        elif known is _EXTRA and key in _SIZES:
            fix = "leave it out: the plan writes prefill's and decode's sizes from pd_tp_size and the like"
        if fix is not None and key not in known:
            yield warning(
                "kv-transfer-key",
                placement.host,
                f"{_VARIABLE}.{where}{key}",
                value,
                f"{_VARIABLE}.{where}{key} is no key that the connectors read",
                fix,
            )


def _close(key: str, known: t.Sequence[str]) -> str | None:
    return next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.8)), None)


def load_failure_policy(context: Context) -> t.Iterator[Finding]:
    for placement in context.everywhere:
        config = placement.member.kv_transfer_config
        policy = config.get("kv_load_failure_policy")
        problem = None
        if "kv_load_failure_policy" in config and policy not in _POLICIES:
            problem = f"is {policy!r}; it takes {' or '.join(_POLICIES)}"
        elif policy == "recompute" and context.cluster.model_family == "hybrid_mamba":
            problem = "is recompute, which engines of hybrid models refuse"
        if problem is not None:
            yield error(
                "kv-load-failure-policy",
                placement.host,
                f"{_VARIABLE}.kv_load_failure_policy",
                policy,
                f"{_VARIABLE}.kv_load_failure_policy {problem}",
                "leave it out (fail is vLLM's default)",
            )


def in_version(context: Context) -> t.Iterator[Finding]:
    """A name that the image does not register ends every engine at its start."""
    cluster = context.cluster
    named: list[tuple[str, str, t.Any]] = [("pd_connector", cluster.connector, cluster.connector)]
    if cluster.kv_pool is not None:
        named.append(("pd_kv_pool", connectors.POOL_CONNECTOR, cluster.kv_pool))
    for variable, connector, value in named:
        first = tables.connector_from(connector, cluster.versions)
        if first is not None:
            yield error(
                "connector-version",
                "all",
                variable,
                value,
                f"vLLM-Ascend {cluster.versions.vllm_ascend} has no {connector}, with which {variable} is planned: engines end at "
                "their start",
                f"use an image of vLLM-Ascend {first} or newer"
                + (", or another pd_connector" if variable == "pd_connector" else ", or leave pd_kv_pool out"),
            )


def module_path(context: Context) -> t.Iterator[Finding]:
    """vLLM refuses an empty path when it looks the connector up; one that is not given is none."""
    for placement in context.everywhere:
        path = placement.member.kv_transfer_config.get("kv_connector_module_path")
        if path is not None and (not isinstance(path, str) or not path.strip()):
            yield error(
                "variable-value",
                placement.host,
                f"{_VARIABLE}.kv_connector_module_path",
                path,
                f"{_VARIABLE}.kv_connector_module_path on {placement.host} is {path!r}, which names no module: engines end at their "
                "start",
                "leave it out, or name the module that holds the connector",
            )


RULES = (in_version, unread_keys, module_path, load_failure_policy)
