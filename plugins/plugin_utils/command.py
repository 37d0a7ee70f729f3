# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Environment and argument vector of every `vllm serve`, as data: nothing here ever goes through a shell."""

from __future__ import annotations

import dataclasses
import json
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import mooncake

from . import fabric, pool, tables
from .layout import is_headless
from .model import Cluster, Finding, Instance, Member, Placement

# Set from the plan; a user's value for one of these would not reach the ranks it is meant for.
PLANNED_ARGUMENTS = {
    "host": "pd_node_ip",
    "port": "pd_api_port",
    "served-model-name": "pd_served_model_name",
    "model": "pd_model_path",
    "tensor-parallel-size": "pd_tp_size",
    "pipeline-parallel-size": "pd_pp_size",
    "prefill-context-parallel-size": "pd_pcp_size",
    "decode-context-parallel-size": "pd_dcp_size",
    "data-parallel-size": "pd_dp_size",
    "data-parallel-size-local": "pd_dp_size_local",
    "data-parallel-rank": "pd_dp_rank_start",
    "data-parallel-start-rank": "pd_dp_rank_start",
    "data-parallel-address": "pd_dp_address",
    "data-parallel-rpc-port": "pd_dp_rpc_port",
    "data-parallel-external-lb": "pd_dp_mode",
    "data-parallel-hybrid-lb": "pd_dp_mode",
    "data-parallel-multi-port-external-lb": "pd_dp_mode",
    "headless": "pd_dp_mode",
    "kv-transfer-config": "pd_kv_transfer_config",
}
# The gate, the proxy and status reach every rank at http://host:port, with one process per planned rank.
_UNSUPPORTED_ARGUMENTS = ("uds", "ssl-certfile", "ssl-keyfile", "ssl-ca-certs", "grpc", "nnodes", "node-rank", "config")
_SHORT_FORMS = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "dcp": "decode-context-parallel-size",
    "dp": "data-parallel-size",
    "dpr": "data-parallel-rank",
    "dpn": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
}
PROXY_VARIABLES = ("http_proxy", "https_proxy", "ftp_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY")
API_KEY_VARIABLE = "VLLM_API_KEY"
# What upstream's proxies read, and send to the engines as a bearer token.
PROXY_KEY_VARIABLE = "OPENAI_API_KEY"
DEVICES_VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
# Each is the host's own: what engines bind, advertise and are found at, and the card that it is on.
ADDRESS_VARIABLES = ("HCCL_IF_IP", "VLLM_HOST_IP")
CARD_VARIABLES = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME")


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
    """One option as the user spelled it, with the variable it came from."""

    name: str
    value: t.Any
    variable: str


Arguments = dict[str, Argument]


def canonical(name: str, value: t.Any) -> str:
    """One name for all spellings of an option: dashes and underscores alike, no-x is x. After a dot it is verbatim."""
    head, dot, rest = name.partition(".")
    head = head.replace("_", "-")
    head = _SHORT_FORMS.get(head, head)
    if head.startswith("no-") and value is True and not dot:
        head = head[3:]
    return head + dot + rest


def arguments(cluster: Cluster, instance: Instance, member: Member) -> Arguments:
    """Common, instance's and host's options merged in this order; null drops an option."""
    merged: Arguments = {}
    for variable, layer in (
        ("pd_engine_args_common", cluster.engine_args_common),
        ("pd_engine_args", instance.engine_args),
        ("pd_engine_args_extra", member.engine_args_extra),
    ):
        for name, raw in layer.items():
            value = flag(canonical(name, raw), raw)
            key = canonical(name, value)
            if value is None:
                merged.pop(key, None)
                merged.pop(key.removeprefix("no-"), None)
            else:
                merged[key] = Argument(name, value, variable)
    if cluster.model_family == "hybrid_mamba" and instance.role == "decode":
        # Decode of hybrid models hangs after a prefix-cache hit, and vLLM has the cache on by default.
        merged.setdefault("enable-prefix-caching", Argument("no-enable-prefix-caching", True, "pd_model_family"))
    return merged


def flag(name: str, value: t.Any) -> t.Any:
    """true and false as text are truth values where vLLM has a flag; any other option gets its text as it is."""
    known = tables.vllm_options("flag")
    if isinstance(value, str) and value.lower() in ("true", "false") and name.removeprefix("no-") in known:
        return value.lower() == "true"
    return value


def option(args: Arguments, name: str) -> t.Any:
    """Value of an option; False for its negated form, None when it is not given."""
    argument = args.get(name)
    if argument is None:
        return None
    negated = argument.value is True and argument.name.replace("_", "-") == f"no-{name}"
    return False if negated else argument.value


def json_option(args: Arguments, name: str) -> dict[str, t.Any]:
    """A JSON option as a mapping, given as mapping or as text; {} when it is neither. --name.key sets one of its keys."""
    value = option(args, name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = {}
    fields = {key: a.value for key, a in args.items() if key.startswith(f"{name}.") and key.count(".") == 1}
    return {**(value if isinstance(value, dict) else {}), **{key.partition(".")[2]: v for key, v in fields.items()}}


def text(value: t.Any) -> str:
    """A value as the process gets it: text verbatim, everything else as compact JSON (true, not True)."""
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def api_keys(args: Arguments, env: t.Mapping[str, str | None]) -> list[str]:
    """The keys that an engine takes at /v1, as vLLM reads them: --api-key wins over the environment; [] is open to all."""
    given = option(args, "api-key")
    if given is None or given == []:
        given = env.get(API_KEY_VARIABLE)
    words = given if isinstance(given, (list, tuple)) else [given]
    return [text(word) for word in words if word is not None and not isinstance(word, bool) and word != ""]


def proxy_key(served: t.Iterable[tuple[Arguments, t.Mapping[str, str | None]]]) -> str | None:
    """The key that upstream's proxies have to send: the first that all engines with keys take; None without one.

    The proxies send one key to all engines, whatever their clients sent. Engines without keys take any.
    """
    common: list[str] | None = None
    for keys in (api_keys(args, env) for args, env in served):
        if keys:
            common = keys if common is None else [key for key in common if key in keys]
    return common[0] if common else None


def rendered(args: Arguments) -> list[str]:
    """The options as words of an argument vector."""
    words: list[str] = []
    for argument in args.values():
        if "." in argument.name and isinstance(argument.value, bool):
            # A dotted name sets one field of a JSON option; vLLM takes the next word as its value.
            words += [f"--{argument.name}", text(argument.value)]
        elif argument.value is True:
            words.append(f"--{argument.name}")
        elif argument.value is False:
            words.append(f"--no-{argument.name}")
        elif isinstance(argument.value, (list, tuple)) and canonical(argument.name, None) in tables.vllm_options(
            "words"
        ):
            words += [f"--{argument.name}", *map(text, argument.value)]
        else:
            value = text(argument.value)
            # argparse takes a separate word with a leading dash for an option.
            words += [f"--{argument.name}={value}"] if value.startswith("-") else [f"--{argument.name}", value]
    return words


def fill(
    cluster: Cluster, placement: Placement, args: Arguments, kv_transfer_config: dict[str, t.Any]
) -> list[Finding]:
    """Write env and argv of every process of a placement."""
    instance, member = placement.instance, placement.member
    findings = _planned_arguments(cluster, placement, args)
    kept = {name: a for name, a in args.items() if name not in PLANNED_ARGUMENTS}
    if is_headless(placement):
        # vLLM refuses it where there is no API server.
        kept.pop("api-server-count", None)
    user_args = rendered(kept)
    serve = ["vllm", "serve", cluster.model_path]
    tail = _parallel_sizes(instance)
    tail += ["--served-model-name", cluster.served_model_name, *user_args]
    tail += ["--kv-transfer-config", text(kv_transfer_config)]
    env, env_findings = environment(cluster, instance, member)
    for process in placement.processes:
        address = [] if process.api_port is None else ["--host", member.node_ip, "--port", str(process.api_port)]
        process.argv = [*serve, *address, *_data_parallel(placement, process.dp_rank), *tail]
        process.env = {**env, DEVICES_VARIABLE: process.visible_devices}
    return findings + env_findings


def _parallel_sizes(instance: Instance) -> list[str]:
    words = ["--tensor-parallel-size", str(instance.tp_size)]
    for option_name, size in (
        ("--pipeline-parallel-size", instance.pp_size),
        ("--prefill-context-parallel-size", instance.pcp_size),
        ("--decode-context-parallel-size", instance.dcp_size),
    ):
        if size > 1:
            words += [option_name, str(size)]
    return words


def _data_parallel(placement: Placement, dp_rank: int) -> list[str]:
    """Nothing for a group of one: vLLM refuses data-parallel options for dense models."""
    instance = placement.instance
    if instance.dp_size == 1:
        return []
    words = ["--data-parallel-size", str(instance.dp_size)]
    head = [
        "--data-parallel-address",
        str(instance.dp_address),
        "--data-parallel-rpc-port",
        str(instance.dp_rpc_port),
    ]
    if instance.external:
        return [*words, "--data-parallel-rank", str(dp_rank), *head]
    if len(instance.members) == 1:
        # One process keeps to IPC and binds nothing; given values are passed on all the same, as recipes have them.
        given = instance.given & {"pd_dp_address", "pd_dp_rpc_port"}
        return [*words, *head] if given else words
    words += ["--data-parallel-size-local", str(placement.dp_size_local), *head]
    if is_headless(placement):
        words += ["--headless", "--data-parallel-start-rank", str(placement.dp_rank_start)]
    return words


def environment(cluster: Cluster, instance: Instance, member: Member) -> tuple[dict[str, str | None], list[Finding]]:
    """Environment of a placement's processes; None unsets a variable. What the user gives wins."""
    planned = _planned_environment(cluster, instance, member)
    env: dict[str, str | None] = {name: value for name, (value, _source) in planned.items()}
    findings: list[Finding] = []
    given = cluster.given | instance.given
    for variable, layer in (
        ("pd_engine_env_common", cluster.engine_env_common),
        ("pd_engine_env", instance.engine_env),
        ("pd_engine_env_extra", member.engine_env_extra),
    ):
        for name, raw in layer.items():
            if name == fabric.GLOBAL_RESOURCE_CONFIG:
                raw = fabric.with_planned(planned.get(name, (None, ""))[0], raw)
            value = None if raw is None else text(raw)
            if name == DEVICES_VARIABLE:
                findings.append(
                    Finding(
                        "planned-environment",
                        "error",
                        member.host,
                        f"{variable}.{name}",
                        raw,
                        f"{name} differs from rank to rank and is worked out by the plan",
                        "name the chips in pd_chips (physical ids) and, if the container sees others too, pd_mapped_chips",
                    )
                )
                continue
            source = planned.get(name, (None, ""))[1]
            # Addresses and unset cards have reasons of their own, and rules (rules/environment.py).
            elsewhere = name in ADDRESS_VARIABLES or (name in CARD_VARIABLES and value is None)
            if source in given and not elsewhere and fabric.contradicts(name, value, planned[name][0]):
                findings.append(
                    Finding(
                        "environment-overrides",
                        "warning",
                        member.host,
                        f"{variable}.{name}",
                        raw,
                        f"{name} is set to {value!r} in {variable}, while {source} gives {planned[name][0]!r}; the former is used",
                        f"keep one of the two: {source} or {variable}.{name}",
                    )
                )
            env[name] = value
    return env, findings


def _planned_environment(cluster: Cluster, instance: Instance, member: Member) -> dict[str, tuple[str | None, str]]:
    """Variable -> (value, pd_ variable it comes from).

    VLLM_HOST_IP makes connectors bind and advertise the planned address: upstream otherwise takes the default
    route's. The proxy variables are unset because prefill, decode and proxy talk HTTP to each other.
    """
    env: dict[str, tuple[str | None, str]] = dict.fromkeys(PROXY_VARIABLES, (None, ""))
    if cluster.production_runtime == "docker":
        env |= {name: (value, "") for name, value in tables.image_shell_environment().items()}
    if cluster.mooncake_prefix:
        # Before the image's own of the same name; the launcher keeps what is there.
        for name, value in mooncake.environment(cluster.mooncake_prefix).items():
            rest = env.get(name, (None, ""))[0] or f"${name}"
            env[name] = (f"{value}:{rest}", "pd_mooncake_prefix")
    for name in ADDRESS_VARIABLES:
        env[name] = (member.node_ip, "pd_node_ip")
    for name in CARD_VARIABLES:
        env[name] = (member.nic, "pd_nic")
    env |= fabric.environment(cluster, member)
    if instance.role == "prefill":
        for name in tables.kv_release_timeout_names(cluster.versions, cluster.connector):
            env[name] = (str(cluster.kv_release_timeout), "pd_kv_release_timeout")
    env |= {name: (value, "pd_kv_pool") for name, value in pool.environment(cluster, instance.name).items()}
    return env


def _planned_arguments(cluster: Cluster, placement: Placement, args: Arguments) -> list[Finding]:
    findings = []
    for name, argument in args.items():
        if name in _UNSUPPORTED_ARGUMENTS:
            findings.append(
                Finding(
                    "planned-argument",
                    "error",
                    placement.host,
                    f"{argument.variable}.{argument.name}",
                    argument.value,
                    f"--{name} takes instance {placement.instance.name} out of the plan: every rank is reached at "
                    "http://host:port and runs on one host",
                    "remove it; for TLS put a gateway in front of the proxy",
                )
            )
            continue
        owner = PLANNED_ARGUMENTS.get(name) or _owner_of_beginning(name)
        if owner is None or _equals_plan(cluster, placement, name, argument.value):
            continue
        findings.append(
            Finding(
                "planned-argument",
                "error",
                placement.host,
                f"{argument.variable}.{argument.name}",
                argument.value,
                _planned_reason(placement.instance, name),
                f"remove it and use {owner}",
            )
        )
    return findings


def _owner_of_beginning(name: str) -> str | None:
    """vLLM takes the beginning of an option for the option, as long as it is no option itself."""
    if name in tables.vllm_option_names():
        return None
    owners = {owner for planned, owner in PLANNED_ARGUMENTS.items() if planned.startswith(name) and len(name) > 1}
    return min(owners) if owners else None


def _planned_reason(instance: Instance, name: str) -> str:
    if name == "headless":
        return (
            f"--headless hides the API server of instance {instance.name}, whose ranks the proxy addresses one by one; "
            "only internal data parallelism has headless hosts, and the plan sets them"
        )
    return f"--{name} is set by the plan for every process of instance {instance.name}"


def _equals_plan(cluster: Cluster, placement: Placement, name: str, value: t.Any) -> bool:
    """An option that repeats what the plan sets anyway does no harm (recipes often carry sizes)."""
    instance = placement.instance
    planned: dict[str, t.Any] = {
        "host": placement.member.node_ip,
        "model": cluster.model_path,
        "served-model-name": cluster.served_model_name,
        "tensor-parallel-size": instance.tp_size,
        "pipeline-parallel-size": instance.pp_size,
        "prefill-context-parallel-size": instance.pcp_size,
        "decode-context-parallel-size": instance.dcp_size,
        "data-parallel-size": instance.dp_size,
        "data-parallel-size-local": placement.dp_size_local,
        "data-parallel-address": instance.dp_address,
        "data-parallel-rpc-port": instance.dp_rpc_port,
    }
    return name in planned and not isinstance(value, bool) and text(value) == str(planned[name])
