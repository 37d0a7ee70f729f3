# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The inventory contract: every pd_* variable with its scope, type, default and meaning.

docs/inventory.md shows this table; a test holds the two together. Values are checked and converted here, one by one;
what they mean together is for the rules.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re
import typing as t

try:
    import netaddr

    _NETADDR = True
except ImportError:  # said in one line by missing_libraries(), not by a traceback
    _NETADDR = False

from . import tables

Scope = t.Literal["C", "I", "H"]


class BadValue(ValueError):
    """A value that does not fit its variable. The text says what would."""


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """scope: C one value per cluster, I equal on all hosts of an instance, H may differ per host.

    physical variables describe the host itself: a host in several instances has one value of them, so they are
    read from its ordinary variables even there (others then come from pd_instances).
    """

    name: str
    scope: Scope
    kind: str
    default: t.Any
    meaning: str
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    required: bool = False
    physical: bool = False


_PORT: dict[str, t.Any] = {"kind": "integer", "minimum": 1, "maximum": 65535}

_TABLE = (
    Variable("pd_cluster_name", "C", "name", "pd", "Name of the deployment; part of container names and paths."),
    Variable(
        "pd_hardware",
        "C",
        "choice",
        None,
        "Hardware generation of all hosts.",
        choices=tuple(tables.hardware_names()),
        required=True,
    ),
    Variable("pd_fabric", "C", "choice", "ub", "Fabric of a5 hosts.", choices=tables.fabric_names()),
    Variable(
        "pd_topology",
        "C",
        "choice",
        "switched",
        "How the NPU ports of the hosts are joined.",
        choices=("switched", "back_to_back"),
    ),
    Variable(
        "pd_chips_per_node",
        "H",
        "integer",
        None,
        "Chips physically in the host (default by hardware). The port reserve counts these, not the used ones.",
        minimum=1,
        maximum=64,
        physical=True,
    ),
    Variable("pd_chips", "H", "chips", None, "Physical ids of the chips this instance computes on (default: all)."),
    Variable(
        "pd_mapped_chips",
        "H",
        "chips",
        None,
        "Physical ids the container sees; a visible device is an index in this list (default: pd_chips).",
    ),
    Variable(
        "pd_node_ip",
        "H",
        "address",
        None,
        "IPv4 address the engines bind, advertise and are reached at (default: ansible_host).",
        physical=True,
    ),
    Variable(
        "pd_nic", "H", "nic", "eth0", "Network card of pd_node_ip, for the *_SOCKET_IFNAME variables.", physical=True
    ),
    Variable(
        "pd_roce_addresses",
        "H",
        "roce",
        {},
        "Host RoCE addresses (a5, host_roce): {physical id: address}.",
        physical=True,
    ),
    Variable(
        "pd_roce_library",
        "H",
        "path",
        "/usr/lib64/libhrn5-rdmav34.so",
        "RDMA provider library of the host's driver (a5, host_roce); mounted read-only at the same path.",
        physical=True,
    ),
    Variable(
        "pd_net_instance_id",
        "H",
        "text",
        "superpod_0",
        "net_instance_id in the endpoint files (a5, host_roce).",
        physical=True,
    ),
    Variable(
        "pd_endpoint_dir", "C", "path", "/etc/hixlep", "Folder of the endpoint files on the hosts (a5, host_roce)."
    ),
    Variable(
        "pd_endpoint_container_dir",
        "C",
        "path",
        None,
        "The same folder inside the containers, ascend_local_comm_res_path (default: pd_endpoint_dir).",
    ),
    Variable(
        "pd_route_conf",
        "C",
        "boolean",
        None,
        "Mount /lib/route.conf (a5; default: for Host UB where the CANN version reads it).",
    ),
    Variable(
        "pd_host_memory_gib",
        "H",
        "integer",
        None,
        "Memory of the host in GiB, for the plan's arithmetic (D2RH, KV pool).",
        minimum=1,
        maximum=1048576,
        physical=True,
    ),
    Variable(
        "pd_vllm_ascend_version",
        "C",
        "version",
        tables.default_version(),
        "vLLM-Ascend version in the image; the tag of a given pd_image wins.",
    ),
    Variable("pd_cann_version", "C", "version", None, "CANN version in the image (default by vLLM-Ascend version)."),
    Variable(
        "pd_mooncake_version", "C", "version", None, "Mooncake version in the image (default by vLLM-Ascend version)."
    ),
    Variable(
        "pd_mooncake_prefix",
        "C",
        "path",
        None,
        "Folder on every host with a Mooncake that engines use in the place of the image's own.",
    ),
    Variable("pd_hixl_version", "C", "version", None, "HIXL version in the image (not told by the tag)."),
    Variable("pd_image", "C", "image", None, "Container image of engines and proxy (default by hardware and version)."),
    Variable(
        "pd_model_path",
        "C",
        "path",
        None,
        "Folder of the model on every host; mounted at the same path.",
        required=True,
    ),
    Variable("pd_served_model_name", "C", "text", None, "Model name that clients ask for.", required=True),
    Variable("pd_mounts", "H", "mounts", [], "More mounts, as host:container or host:container:ro.", physical=True),
    Variable(
        "pd_model_is_moe",
        "C",
        "boolean",
        True,
        "Whether the model has experts. Dense models take one DP=1 instance per replica.",
    ),
    Variable(
        "pd_model_family",
        "C",
        "choice",
        "other",
        "hybrid_mamba (Qwen-Next, Qwen3.5 …) changes speculative, TP and prefix-cache rules.",
        choices=("other", "hybrid_mamba"),
    ),
    Variable(
        "pd_connector",
        "C",
        "choice",
        "MooncakeConnectorV1",
        "KV connector. MooncakeConnector only with vLLM-Ascend's kv_connector_module_path (it is V1 then).",
        choices=tuple(tables.TRANSPORTS),
    ),
    Variable(
        "pd_dp_size",
        "I",
        "integer",
        None,
        "Data-parallel ranks of the instance.",
        minimum=1,
        maximum=65536,
        required=True,
    ),
    Variable("pd_tp_size", "I", "integer", None, "Tensor-parallel size.", minimum=1, maximum=4096, required=True),
    Variable("pd_pp_size", "I", "integer", 1, "Pipeline-parallel size.", minimum=1, maximum=4096),
    Variable("pd_pcp_size", "I", "integer", 1, "Prefill-context-parallel size.", minimum=1, maximum=4096),
    Variable(
        "pd_dcp_size", "I", "integer", 1, "Decode-context-parallel size (reuses the TP ranks).", minimum=1, maximum=4096
    ),
    Variable(
        "pd_dp_mode",
        "I",
        "choice",
        "external",
        "external: one API server per rank. internal: one per instance, further hosts headless.",
        choices=("external", "internal"),
    ),
    Variable(
        "pd_dp_size_local",
        "H",
        "integer",
        None,
        "Ranks on this host (default: planned). -1 means all of the instance, as upstream's launcher reads it.",
        minimum=-1,
        maximum=65536,
    ),
    Variable(
        "pd_dp_rank_start",
        "H",
        "integer",
        None,
        "First rank on this host (default: planned).",
        minimum=0,
        maximum=65535,
    ),
    Variable("pd_dp_address", "I", "address", None, "Address of the DP group's head (default: its first host)."),
    Variable(
        "pd_dp_rpc_port", "I", default=None, meaning="RPC port of the DP group's head (default: from 12321).", **_PORT
    ),
    Variable("pd_api_port", "I", default=None, meaning="First API port on each host (default: from 7100).", **_PORT),
    Variable(
        "pd_kv_port",
        "I",
        default=None,
        meaning="Base of the connector's ports (default: from 36000 on 16-chip hosts, 28000 on 8-chip hosts).",
        **_PORT,
    ),
    Variable(
        "pd_d2rh_zmq_port",
        "I",
        default=None,
        meaning="Base of D2RH decode's pull ports (default: from 38100).",
        **_PORT,
    ),
    Variable(
        "pd_d2rh_scheduler_ready_port",
        "I",
        default=None,
        meaning="Base of D2RH decode's scheduler ports (default: from 38200).",
        **_PORT,
    ),
    Variable(
        "pd_kv_cache_gib",
        "I",
        "integer",
        None,
        "Device KV cache of one worker in GiB, rounded up, as the engine's log tells it (D2RH pins as much host memory).",
        minimum=1,
        maximum=65536,
    ),
    Variable("pd_engine_args_common", "C", "arguments", {}, "Long vllm serve options for all instances."),
    Variable("pd_engine_args", "I", "arguments", {}, "The same for one instance; merged over the common ones."),
    Variable("pd_engine_args_extra", "H", "arguments", {}, "The same for one host; merged last."),
    Variable("pd_engine_env_common", "C", "environment", {}, "Environment of the engine processes, all instances."),
    Variable("pd_engine_env", "I", "environment", {}, "The same for one instance; merged over the common one."),
    Variable("pd_engine_env_extra", "H", "environment", {}, "The same for one host; merged last."),
    Variable(
        "pd_kv_transfer_config",
        "H",
        "mapping",
        {},
        "Deep-merged into --kv-transfer-config; may not contradict what the plan must set.",
    ),
    Variable("pd_kv_pool", "C", "mapping", None, "AscendStore settings of a KV pool next to PD (backend …)."),
    Variable(
        "pd_qos_priority", "I", "integer", None, "QoS of the KV transfer, set on its initiator.", minimum=0, maximum=4
    ),
    Variable(
        "pd_kv_release_timeout",
        "C",
        "integer",
        480,
        "Seconds after which prefill frees KV cache that decode has not fetched.",
    ),
    Variable(
        "pd_port_reserve",
        "C",
        "choice",
        "documented",
        "AscendDirectTransport range to keep clear of: 1000 ports per chip, or what Mooncake really takes.",
        choices=("documented", "measured"),
    ),
    Variable("pd_container_network", "C", "text", "host", "Container network; only host works."),
    Variable(
        "pd_container_privileged",
        "C",
        "boolean",
        None,
        "Whether engine containers are privileged (default by hardware: a5 only).",
    ),
    Variable(
        "pd_container_memory_gib",
        "C",
        "integer",
        None,
        "Memory limit of an engine container in GiB (default: no limit).",
        minimum=1,
        maximum=1048576,
    ),
    Variable("pd_proxy_port", "C", default=1999, meaning="Port of the proxy, the users' door.", **_PORT),
    Variable("pd_proxy_workers", "C", "integer", 1, "Worker processes of the P-first proxy.", minimum=1, maximum=64),
    Variable(
        "pd_runtime",
        "C",
        "choice",
        "docker",
        "docker, or process: already inside a container, or no engine on the host.",
        choices=("docker", "process"),
    ),
    Variable(
        "pd_engine_launcher",
        "C",
        "choice",
        "builtin",
        "builtin (supervised) or upstream (the image's launch_online_dp.py).",
        choices=("builtin", "upstream"),
    ),
    Variable(
        "pd_instances",
        "C",
        "mapping",
        {},
        "{instance: {variable: value}}: values of I and H variables for one instance; needed where a host is in several.",
    ),
)
VARIABLES: dict[str, Variable] = {variable.name: variable for variable in _TABLE}

# Switches of a run, not properties of a cluster.
RUN_SWITCHES = ("pd_query", "pd_rehearsal", "pd_rehearsal_dir")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
# As the engines parse it: [registry[:port]/]path[:tag][@digest].
_IMAGE = re.compile(
    r"(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?"
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[A-Za-z0-9_+.-]+:[0-9a-fA-F]{32,})?\Z"
)
_VERSION = re.compile(r"(?!V[0-9])[A-Za-z0-9][A-Za-z0-9_.+-]*\Z")
_TAG_SUFFIX = re.compile(r"-(a[235]|310p|openeuler)\b")
_NIC = re.compile(r"[A-Za-z0-9_.:@-]{1,15}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_ARGUMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# As many digits as any size or port has; int() of a longer text would be refused by Python itself.
_DIGITS = re.compile(r"-?[0-9]{1,9}\Z")

Converted = tuple[t.Any, bool]


def missing_libraries() -> list[str]:
    """Python libraries that planning needs and this controller has not."""
    return [] if _NETADDR else ["netaddr"]


def convert(variable: Variable, value: t.Any) -> Converted:
    """Return (value of the variable's type, whether text was converted), or raise BadValue."""
    check = _CHECKS[variable.kind]
    return check(variable, value)


def whole_number(value: t.Any) -> int:
    """A number, or the text of one as templates make it; anything else is a ValueError or TypeError."""
    if isinstance(value, (bool, float)):
        raise BadValue(f"{value!r} is no whole number")
    return int(value)


def _integer(variable: Variable, value: t.Any) -> Converted:
    converted = False
    if isinstance(value, str) and _DIGITS.match(value.strip()):
        value, converted = int(value.strip()), True
    if isinstance(value, bool) or not isinstance(value, int) or not _within(variable, value):
        raise BadValue(f"must be a whole number{_limits(variable)}")
    return value, converted


def _within(variable: Variable, value: int) -> bool:
    if variable.minimum == -1 and value == 0:
        return False
    low_enough = variable.maximum is None or value <= variable.maximum
    return low_enough and (variable.minimum is None or value >= variable.minimum)


def _limits(variable: Variable) -> str:
    if variable.minimum == -1:
        return f" from 1 to {variable.maximum}, or -1 for all ranks of the instance"
    if variable.maximum is not None:
        return f" from {variable.minimum} to {variable.maximum}"
    return "" if variable.minimum is None else f", {variable.minimum} or more"


def _boolean(variable: Variable, value: t.Any) -> Converted:
    if isinstance(value, bool):
        return value, False
    if isinstance(value, str) and value.strip().lower() in _BOOLEANS:
        return _BOOLEANS[value.strip().lower()], True
    raise BadValue("must be true or false")


def _text(variable: Variable, value: t.Any) -> Converted:
    if isinstance(value, (bool, int, float)):
        # 0.20 has become 0.2 by now, so nothing can be converted.
        raise BadValue("must be text; put it in quotes, or YAML takes it for a number or truth value")
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise BadValue("must be text")
    if value.startswith("-"):
        raise BadValue("must not begin with a dash, by which commands know their options")
    return value, False


def _version(variable: Variable, value: t.Any) -> Converted:
    text, _converted = _text(variable, value)
    if not _VERSION.match(text):
        raise BadValue("must be a version, such as v0.23.0, without blanks and with a small v")
    if variable.name == "pd_vllm_ascend_version":
        if _TAG_SUFFIX.search(text):
            raise BadValue("must be the version alone; the suffix of the image's tag follows from pd_hardware")
    elif not re.match(r"v?[0-9]", text):
        # Rules compare it; a branch or "latest" would only switch them off.
        raise BadValue("must be a version that begins with its number, such as 9.1.0 or 8.3.RC2")
    return text, False


def _image(variable: Variable, value: t.Any) -> Converted:
    if isinstance(value, str) and _IMAGE.match(value):
        return value, False
    raise BadValue("must be the name of an image, such as registry.example:5000/team/vllm-ascend:v0.23.0-a3")


def _choice(variable: Variable, value: t.Any) -> Converted:
    if isinstance(value, str) and value in variable.choices:
        return value, False
    raise BadValue("must be one of " + ", ".join(variable.choices))


def _name(variable: Variable, value: t.Any) -> Converted:
    if isinstance(value, str) and _NAME.match(value) and len(value) > 1:
        return value, False
    raise BadValue("must be two or more letters, digits, '_', '.' or '-', beginning with a letter or digit")


def _nic(variable: Variable, value: t.Any) -> Converted:
    if isinstance(value, str) and _NIC.match(value):
        if _is_address(value):
            raise BadValue("must be the name of a network card, as 'ip link' shows it, not an address")
        return value, False
    raise BadValue("must be the name of a network card, as 'ip link' shows it")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _path(variable: Variable, value: t.Any) -> Converted:
    if not isinstance(value, str) or not _is_path(value):
        raise BadValue("must be an absolute path without '..', ':' and control characters")
    if not value.strip("/"):
        raise BadValue("must be a folder of its own, not the whole file system")
    return value.rstrip("/"), False


def _is_path(text: str) -> bool:
    """A path that can be mounted (docker splits at colons) and that stays where it points."""
    return text.startswith("/") and ".." not in text.split("/") and ":" not in text and text.isprintable()


def _address(variable: Variable, value: t.Any) -> Converted:
    if not isinstance(value, str):
        raise BadValue("must be an IPv4 address as text")
    try:
        address = netaddr.IPAddress(value.strip(), flags=netaddr.INET_PTON)
    except (netaddr.AddrFormatError, ValueError):
        raise BadValue("must be an IPv4 address") from None
    if address.version != 4:
        raise BadValue("is IPv6, which the Mooncake connectors do not support")
    if int(address) == 0 or address.is_multicast() or int(address) == 0xFFFFFFFF:
        raise BadValue("must be the address of one host, not a wildcard, broadcast or multicast address")
    return str(address), False


def _chips(variable: Variable, value: t.Any) -> Converted:
    if not isinstance(value, (list, tuple)) or not value:
        raise BadValue("must be a list of chip numbers, such as [0, 1, 2, 3]")
    chips, converted = [], False
    for item in value:
        if isinstance(item, str) and _DIGITS.match(item.strip()):
            item, converted = int(item.strip()), True
        if isinstance(item, bool) or not isinstance(item, int) or item < 0:
            raise BadValue(f"must be a list of chip numbers; {item!r} is none")
        chips.append(item)
    twice = sorted({chip for chip in chips if chips.count(chip) > 1})
    if twice:
        raise BadValue("names chip " + ", ".join(map(str, twice)) + " twice")
    return chips, converted


def _roce(variable: Variable, value: t.Any) -> Converted:
    if not isinstance(value, dict):
        raise BadValue("must be a mapping {physical id: address}")
    out, bad = {}, []
    for chip, address in value.items():
        if not re.fullmatch(r"[0-9]{1,4}", str(chip)):
            raise BadValue(f"has the key {chip!r}, which is no chip number")
        if str(int(chip)) in out:
            raise BadValue(f"names chip {int(chip)} twice")
        try:
            out[str(int(chip))] = _address(variable, address)[0]
            if out[str(int(chip))].startswith("127."):
                raise BadValue("is a loopback address, which no other host reaches")
        except BadValue as problem:
            bad.append(f"chip {int(chip)}: {address!r} {problem}")
    if bad:
        raise BadValue(f"has wrong addresses: {'; '.join(bad)}")
    if len(set(out.values())) < len(out):
        raise BadValue("gives one address to two chips")
    return out, False


def _mounts(variable: Variable, value: t.Any) -> Converted:
    if not isinstance(value, (list, tuple)):
        raise BadValue("must be a list of host:container[:ro]")
    bad = [repr(item) for item in value if not _is_mount(item)]
    if bad:
        entries = f"has the entry {bad[0]}" if len(bad) == 1 else f"has the entries {', '.join(bad)}"
        raise BadValue(f"{entries}; an entry is /host/path:/container/path, with :ro or :rw behind if wanted")
    targets = [item.split(":")[1].rstrip("/") for item in value]
    twice = next((target for target in targets if targets.count(target) > 1), None)
    if twice is not None:
        raise BadValue(f"mounts two folders or files at {twice}")
    return list(value), False


def _is_mount(item: t.Any) -> bool:
    parts = item.split(":") if isinstance(item, str) else []
    return len(parts) in (2, 3) and all(map(_is_path, parts[:2])) and parts[2:] in ([], ["ro"], ["rw"])


def _mapping(variable: Variable, value: t.Any) -> Converted:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        raise BadValue(
            "is text that looks like JSON, not a mapping; INI inventories take Python literals (True, None) only"
        )
    if not isinstance(value, dict):
        raise BadValue("must be a mapping with text keys")
    odd = [_odd_key(key, where) for key, where in _odd_keys(value)]
    if odd:
        raise BadValue("; it ".join(odd))
    _check_content(value, "")
    return value, False


def _odd_keys(value: t.Any, where: str = "") -> t.Iterator[tuple[t.Any, str]]:
    """Keys that are no text, at any depth, and the dotted path of the mapping that has them."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                yield key, where
            yield from _odd_keys(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _odd_keys(item, where)


def _odd_key(key: t.Any, where: str) -> str:
    place = f" in {where}" if where else ""
    if isinstance(key, bool):
        words = "yes, on and true" if key else "no, off and false"
        return f"has the key {str(key).lower()}{place}, which YAML makes of {words} (in any case); quote the key if text is meant"
    if key is None:
        return f"has the key null{place}, which YAML makes of null, ~ and nothing; quote the key if text is meant"
    return f"has the key {key!r}{place}, which is no text; quote the key"


def _arguments(variable: Variable, value: t.Any) -> Converted:
    converted = _keyed(variable, value, _argument_problem)
    spelled: dict[str, str] = {}
    for name in value:
        plain = name if "." in name else name.replace("_", "-")
        other = spelled.setdefault(plain, name)
        if other != name:
            raise BadValue(f"gives one option twice, as {other} and as {name}")
    for plain, name in spelled.items():
        opposite = spelled.get(f"no-{plain}")
        if opposite is not None and value[name] is True and value[opposite] is True:
            raise BadValue(f"has an option and its opposite, {name} and {opposite}")
    return converted


def _argument_problem(name: str, argument: t.Any) -> str | None:
    if name.startswith("-"):
        return f"has the key {name!r}; give long options without leading dashes"
    if not _ARGUMENT.match(name):
        return f"has the key {name!r}, which is no option name"
    if name.startswith("no-") and argument is False:
        return f"has {name}: false; give {name[3:]}: true instead"
    return _word_problem(name, argument) or _nul_problem(name, argument)


def _word_problem(name: str, argument: t.Any) -> str | None:
    """Options that take words get each entry as one: a null, from a variable that is empty, would be the word "null"."""
    plain = name.replace("_", "-")
    words, is_list = tables.vllm_options("words"), isinstance(argument, (list, tuple))
    if plain not in words and not (is_list and plain in tables.vllm_options("json-list")):
        return None
    entries = argument if is_list else [argument]
    if is_list and None in entries:
        return f"has a null in the list of {name}, which would be passed on as the word null"
    for entry in entries:
        # An adapter is named by a word or by a JSON object.
        if isinstance(entry, (list, tuple)) or (isinstance(entry, dict) and plain != "lora-modules"):
            return f"has a {'mapping' if isinstance(entry, dict) else 'list'} in {name}, which takes words"
    return None


def _environment(variable: Variable, value: t.Any) -> Converted:
    return _keyed(variable, value, _environment_problem)


def _environment_problem(name: str, content: t.Any) -> str | None:
    if not _ENV_NAME.match(name):
        return f"has the key {name!r}, which is no environment variable name"
    return _nul_problem(name, content)


def _keyed(variable: Variable, value: t.Any, problem_of: t.Callable[[str, t.Any], str | None]) -> Converted:
    """A mapping whose entries are looked at one by one; everything wrong is said."""
    _mapping(variable, value)
    problems = [problem for name, item in value.items() if (problem := problem_of(name, item))]
    if problems:
        raise BadValue("; it ".join(problems))
    return value, False


def _check_content(value: t.Any, where: str) -> None:
    """Refuse what JSON cannot carry: NaN, infinity, anything but text, numbers, lists and mappings."""
    if isinstance(value, dict):
        for key, item in value.items():
            _check_content(item, f"{where}.{key}" if where else str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_content(item, where)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise BadValue(f"has {value} in {where}, which is no number that JSON has")
    elif value is not None and not isinstance(value, (str, bool, int)):
        raise BadValue(f"has a value of type {type(value).__name__} in {where}")


def _nul_problem(name: str, value: t.Any) -> str | None:
    """A word of a command line or environment ends at a NUL; inside JSON it is escaped."""
    return f"has a NUL character in {name}" if isinstance(value, str) and "\0" in value else None


_CHECKS: dict[str, t.Callable[[Variable, t.Any], Converted]] = {
    "integer": _integer,
    "boolean": _boolean,
    "text": _text,
    "version": _version,
    "choice": _choice,
    "image": _image,
    "name": _name,
    "nic": _nic,
    "path": _path,
    "address": _address,
    "chips": _chips,
    "roce": _roce,
    "mounts": _mounts,
    "mapping": _mapping,
    "arguments": _arguments,
    "environment": _environment,
}
