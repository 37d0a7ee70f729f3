# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The host under the chips: network card, clock, memory, disks, model files, and what the module host_check found."""

from __future__ import annotations

import collections
import ipaddress
import json
import shlex
import statistics
import typing as t

from ..fleet import HCCN_CONF, VENDOR, Fleet, mapping, one_line, whole
from ..verdicts import Place, Severity, Words
from .say import Odd, Say, names, odd_ones

_FACT_UNKNOWN = Words(
    "{what} of {host} is not known",
    "on {host}: `{command}`",
    "无法得知 {host} 的 {what_zh}",
    "在 {host} 上执行：`{command}`",
)


def _missing(say: Say, host: str, what: str, what_zh: str, command: str) -> None:
    say.unknown(_FACT_UNKNOWN, host, expected="a value", found="none", what=what, what_zh=what_zh, command=command)


# What host_check found ------------------------------------------------------------------------------------------------

_AS_SAID = Words("{host}: {text}", "{remedy}", "{host}：{text}", "{remedy}")
# A mount source that is missing, and the check that says more about the same thing.
_TOLD_BETTER = {
    HCCN_CONF: "hccn-conf",
    f"{VENDOR}/tools/hccn_tool": "hccn-tool",
    "/usr/local/bin/npu-smi": "npu-smi",
}


def _told_elsewhere(fleet: Fleet, host: str, finding: t.Mapping[str, t.Any]) -> bool:
    if finding["check"] != "path" or "npu" not in fleet.halves:
        return False
    other = _TOLD_BETTER.get(str(finding.get("value")))
    if other == "hccn-conf":
        return str(mapping(fleet.npu(host).get("hccn_conf")).get("state")) in ("missing", "is_directory", "unreadable")
    if other == "hccn-tool":
        return fleet.has("npu", host) and fleet.hccn_state(host) == "tool_missing"
    return other == "npu-smi" and fleet.has("npu", host) and fleet.smi_state(host) == "tool_missing"


# What the module host_check looks at with one runtime only.
_WITH_DOCKER = frozenset(("docker", "requests", "container", "image", "space"))
_WITH_PROCESSES = frozenset(("executable",))


def _looked_at(fleet: Fleet, host: str, check: str) -> bool:
    """Whether host_check has looked at this at all on the host: silence is no good word without that."""
    if check in (_WITH_DOCKER if fleet.view["runtime"] != "docker" else _WITH_PROCESSES):
        return False
    image = mapping(mapping(fleet.host(host).get("docker")).get("image"))
    # An archive is only read where the image is missing, and whether one was given is not known here.
    return check not in ("image", "space") or image.get("present") is True


def of_host_check(fleet: Fleet, say: Say) -> None:
    """The findings of the module host_check with this check's id, as they are."""
    for host in say.hosts:
        found = [one for one in fleet.findings(host) if one["check"] == say.check.id]
        for one in found:
            if _told_elsewhere(fleet, host, one):
                say.blocked(host)
                continue
            severity: Severity = "warning" if one.get("severity") == "warning" else "error"
            value = one.get("value")
            held = (value if isinstance(value, list) else [value]) if say.check.id == "chip" else []
            chips = [number for number in held if isinstance(number, int) and not isinstance(number, bool)]
            # Several chips in one container are one finding about the host.
            chip = chips[0] if len(chips) == 1 else None
            also = [Place(host, number) for number in chips if chip is None]
            shown = value if isinstance(value, (str, int)) else json.dumps(value)
            variable = f"{one['variable']}: " if one.get("variable") else ""
            say.say(
                severity,
                _AS_SAID,
                host,
                chip,
                expected="nothing in the way",
                found=one_line(f"{variable}{shown}"),
                also=also,
                text=one.get("message") or "",
                remedy=one.get("fix") or "",
            )
        if not found and _needs_daemon(say.check.id) and any(one["check"] == "docker" for one in fleet.findings(host)):
            say.blocked(host)
        elif not found and _looked_at(fleet, host, say.check.id):
            say.ok(host)


def _needs_daemon(check: str) -> bool:
    return check in ("container", "image", "space")


# Network card ---------------------------------------------------------------------------------------------------------

_NIC = Words(
    "{host} has no network card {expected}; it has {found}",
    "set pd_nic of {host} to the card that has {address}",
    "{host} 没有网卡 {expected}；现有 {found}",
    "将 {host} 的 pd_nic 设为拥有 {address} 的网卡",
)
_NIC_DOWN = Words(
    "network card {nic} of {host} is {found}",
    "on {host}: `ip link set {nic} up`; check the cable",
    "{host} 的网卡 {nic} 状态为 {found}",
    "在 {host} 上执行：`ip link set {nic} up`；检查线缆",
)


def _nics(fleet: Fleet, host: str) -> t.Mapping[str, t.Any] | None:
    nics = fleet.host(host).get("nics")
    return nics if isinstance(nics, dict) and nics else None


def _card(fleet: Fleet, host: str) -> t.Mapping[str, t.Any] | None:
    """The planned card, where it is there."""
    nics, name = _nics(fleet, host), fleet.planned(host)["nic"]
    return mapping(nics[name]) if nics and name is not None and name in nics else None


def nic(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        name, nics = fleet.planned(host)["nic"], _nics(fleet, host)
        if name is None:
            continue
        card = _card(fleet, host)
        if nics is None:
            _missing(say, host, "the list of network cards", "网卡列表", "ip -br address")
        elif card is None:
            say.error(_NIC, host, expected=name, found=names(nics, 8), address=fleet.planned(host)["node_ip"])
        elif not card.get("state"):
            _missing(say, host, f"the state of network card {name}", f"网卡 {name} 状态", f"ip link show {name}")
        elif str(card["state"]).lower() == "down":
            say.error(_NIC_DOWN, host, expected="up", found="down", nic=name)
        else:
            say.ok(host)


_NODE_IP = Words(
    "{expected} is not on {nic} of {host} (it has {found}){elsewhere}",
    "set pd_node_ip of {host} to an address of {nic}, or pd_nic to the card that has it",
    "{host} 的 {nic} 上没有 {expected}（现有 {found}）{elsewhere}",
    "将 {host} 的 pd_node_ip 设为 {nic} 的地址，或将 pd_nic 设为拥有该地址的网卡",
)


def _addresses(card: t.Mapping[str, t.Any]) -> list[str]:
    raw = card.get("addresses")
    return [str(one) for one in raw] if isinstance(raw, list) else []


def _has(card: t.Mapping[str, t.Any], wanted: str) -> bool:
    ip = ipaddress.ip_address(wanted)
    for text in _addresses(card):
        try:
            interface = ipaddress.ip_interface(text)
        except ValueError:
            continue
        # All of 127.0.0.0/8 belongs to the loopback card, which shows only its first address.
        if interface.ip == ip or (ip.is_loopback and interface.ip.is_loopback):
            return True
    return False


def lacks_node_ip(fleet: Fleet, host: str) -> bool:
    """Whether no card of the host has its node address, so that nothing can listen there."""
    nics = _nics(fleet, host)
    wanted = fleet.planned(host)["node_ip"]
    return nics is not None and not any(_has(mapping(card), wanted) for card in nics.values())


def node_ip(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        planned, nics = fleet.planned(host), _nics(fleet, host)
        if nics is None:
            say.blocked(host)
            continue
        wanted, name = planned["node_ip"], planned["nic"]
        owners = [other for other, card in nics.items() if _has(mapping(card), wanted)]
        card = _card(fleet, host)
        if name is not None and card is None:
            # nic says that the card is not there.
            say.blocked(host)
        elif owners and (name is None or name in owners):
            say.ok(host)
        else:
            found = names(_addresses(card)) if card and _addresses(card) else "no address"
            # The same in both languages: a card and an equals sign.
            elsewhere = f" [{owners[0]}: {wanted}]" if owners else ""
            say.error(_NODE_IP, host, expected=wanted, found=found, nic=name or "any card", elsewhere=elsewhere)


# Alike on all hosts ---------------------------------------------------------------------------------------------------

_ODD = Words(
    "{what} of {host} is {found}, that of {others} is {expected}",
    "{remedy}",
    "{host} 的 {what_zh} 为 {found}，其他 {count} 台主机为 {expected}",
    "{remedy_zh}",
)
_SPLIT = Words(
    "{what} differs and no value is in the majority: {found}",
    "{remedy}",
    "{what_zh} 不一致，且没有多数：{found}",
    "{remedy_zh}",
)


def alike(
    say: Say,
    values: t.Mapping[str, t.Hashable],
    severity: Severity,
    show: t.Callable[[t.Any], str] = str,
    **words: t.Any,
) -> None:
    """Name the hosts that differ from the majority, or both camps where there is none."""
    places = {Place(host): value for host, value in values.items()}
    odd = odd_ones(places)
    bad: set[Place] = set()
    if odd is not None and odd.usual is None:
        bad = set(places)
        camps: dict[t.Hashable, list[str]] = collections.defaultdict(list)
        for place, value in places.items():
            camps[value].append(place.host)
        found = "; ".join(f"{show(value)}: {names(hosts)}" for value, hosts in camps.items())
        first = next(iter(odd.minority.values()))[0]
        say.say(severity, _SPLIT, first.host, expected="one value", found=found, also=places, **words)
    elif odd is not None:
        for value, strangers in odd.minority.items():
            for place in strangers:
                bad.add(place)
                found = show(value)
                say.say(
                    severity, _ODD, place.host, expected=show(odd.usual), found=found, count=len(odd.majority), **words
                )
    for place in places:
        if place not in bad:
            say.ok(*place)


def mtu_equal(fleet: Fleet, say: Say) -> None:
    values = {}
    for host in say.hosts:
        if fleet.planned(host)["nic"] is None:
            continue
        card = _card(fleet, host)
        mtu = whole(card.get("mtu")) if card else None
        if mtu is not None:
            values[host] = mtu
        elif card is None:
            say.blocked(host)
        else:
            _missing(say, host, "the MTU", "MTU", f"ip link show {fleet.planned(host)['nic']}")
    cards = {str(fleet.planned(host)["nic"]) for host in values}
    odd = odd_ones({Place(host): value for host, value in values.items()})
    usual = "N" if odd is None or odd.usual is None else odd.usual
    command = f"`ip link set {cards.pop() if len(cards) == 1 else 'NIC'} mtu {usual}`"
    remedy = f"set one MTU on all hosts and the switches between them: {command}"
    remedy_zh = f"在所有主机及其间的交换机上设置相同的 MTU：{command}"
    alike(say, values, "error", what="the MTU", what_zh="MTU", remedy=remedy, remedy_zh=remedy_zh)


def hugepages_equal(fleet: Fleet, say: Say) -> None:
    values = {}
    for host in say.hosts:
        if not fleet.planned_chips(host):
            continue
        total, size = (whole(fleet.host(host).get(key)) for key in ("hugepages_total", "hugepage_kb"))
        if total is None:
            _missing(say, host, "the number of huge pages", "大页数量", "grep Huge /proc/meminfo")
        else:
            values[host] = (total, size or 0)
    remedy = "set vm.nr_hugepages alike on all hosts, or find out who else reserves them"
    remedy_zh = "在所有主机上统一设置 vm.nr_hugepages，或查明是谁预留了大页"
    words = {"what": "the number of huge pages", "what_zh": "大页数量", "remedy": remedy, "remedy_zh": remedy_zh}
    alike(say, values, "warning", lambda value: f"{value[0]} x {value[1]} kB" if value[1] else str(value[0]), **words)


def kernel_equal(fleet: Fleet, say: Say) -> None:
    values = {}
    for host in say.hosts:
        if not fleet.planned_chips(host):
            continue
        kernel = fleet.host(host).get("kernel")
        if isinstance(kernel, str) and kernel:
            values[host] = kernel
        else:
            _missing(say, host, "the kernel's release", "内核版本", "uname -r")
    remedy, remedy_zh = (
        "usually harmless; boot the same kernel if the driver was built for one",
        "通常无害；若驱动针对特定内核编译，请使用相同内核",
    )
    alike(say, values, "info", what="the kernel", what_zh="内核", remedy=remedy, remedy_zh=remedy_zh)


# Clock ----------------------------------------------------------------------------------------------------------------

_CLOCK = Words(
    "the clock of {host} is {found} {direction} the fleet's (at least)",
    "on {host}: `chronyc makestep`, and see that a time service runs (`timedatectl`)",
    "{host} 的时钟与其他主机至少相差 {found}（{sign}）",
    "在 {host} 上执行：`chronyc makestep`，并确认时间服务在运行（`timedatectl`）",
)
_CLOCK_VAGUE = Words(
    "the clock of {host} could only be read to within {found}, so nothing can be said of it",
    "run preflight again when host and connection are less busy",
    "{host} 的时钟读取误差达 {found}，无法判断",
    "待主机与连接不繁忙时重新执行 preflight",
)


def clock(fleet: Fleet, say: Say) -> None:
    """Offsets from the controller with error bars: the host read its clock some time between asking and answer."""
    offsets: dict[str, tuple[float, float]] = {}
    for host in say.hosts:
        clock = mapping(fleet.host(host).get("clock"))
        readings = [clock.get(key) for key in ("host", "before", "after")]
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in readings):
            at, before, after = (float(t.cast(float, value)) for value in readings)
            offsets[host] = (at - max(before, after), at - before)
        else:
            _missing(say, host, "the clock", "时钟", "date +%s.%N")
    if not offsets:
        return
    usual = statistics.median(low + (high - low) / 2 for low, high in offsets.values())
    limits = fleet.limits
    for host, (low, high) in offsets.items():
        # What is certain: how far the nearest end of the interval is from the fleet's usual offset.
        certain = max(0.0, low - usual, usual - high)
        ahead = low > usual
        if certain > limits.clock_warning_seconds:
            severity: Severity = "error" if certain > limits.clock_error_seconds else "warning"
            say.say(
                severity,
                _CLOCK,
                host,
                expected=f"within {limits.clock_warning_seconds:g} s",
                found=f"{certain:.1f} s",
                direction="ahead of" if ahead else "behind",
                sign="+" if ahead else "-",
            )
        elif max(high - usual, usual - low) > limits.clock_error_seconds:
            say.unknown(
                _CLOCK_VAGUE, host, expected=f"within {limits.clock_warning_seconds:g} s", found=f"{high - low:.1f} s"
            )
        else:
            say.ok(host)


# Memory and disks -----------------------------------------------------------------------------------------------------

_MEMORY = Words(
    "{host} has {found} MB of memory available, its {workers} engine workers want about {expected} MB",
    "end what else uses it, or put fewer ranks on {host}",
    "{host} 可用内存 {found} MB，其 {workers} 个引擎进程约需 {expected} MB",
    "结束占用内存的其他进程，或减少 {host} 上的 rank",
)
_POOL = Words(
    "{host} has {found} MB of memory available, the KV pool alone takes {expected} MB: {arithmetic}",
    "lower global_segment_size in pd_kv_pool.config, or put fewer ranks on {host}",
    "{host} 可用内存 {found} MB，仅 KV 池就需要 {expected} MB：{arithmetic}",
    "减小 pd_kv_pool.config 中的 global_segment_size，或减少 {host} 上的 rank",
)
_POOL_AND_PINNED = Words(
    "{host} has {found} MB of memory available, the KV pool ({arithmetic}) and the KV cache that decode pins "
    "(pd_kv_cache_gib of every worker) take {expected} MB",
    "lower global_segment_size in pd_kv_pool.config or gpu-memory-utilization of decode, or put fewer ranks on {host}",
    "{host} 可用内存 {found} MB，KV 池（{arithmetic}）与 decode 暂存 KV 缓存（各 worker 的 pd_kv_cache_gib 之和）共需 {expected} MB",
    "减小 pd_kv_pool.config 中的 global_segment_size 或 decode 的 gpu-memory-utilization，或减少 {host} 上的 rank",
)
_PINNED = Words(
    "{host} has {found} MB of memory available, decode alone pins {expected} MB of it for its KV cache "
    "(pd_kv_cache_gib of every worker)",
    "lower gpu-memory-utilization of decode, or put fewer ranks on {host}",
    "{host} 可用内存 {found} MB，仅 decode 暂存 KV 缓存就需锁定 {expected} MB（各 worker 的 pd_kv_cache_gib 之和）",
    "减小 decode 的 gpu-memory-utilization，或减少 {host} 上的 rank",
)
_MEMORY_ODD = Words(
    "{host} has {found} MB of memory in all, the other hosts have {expected} MB",
    "look for a memory module that is not seen any more: `dmidecode -t memory` on {host}",
    "{host} 的内存总量为 {found} MB，其他主机为 {expected} MB",
    "检查是否有内存条未被识别：在 {host} 上执行 `dmidecode -t memory`",
)


def memory(fleet: Fleet, say: Say) -> None:
    totals: dict[str, int] = {}
    for host in say.hosts:
        if fleet.planned_chips(host):
            total = whole(fleet.host(host).get("memory_total_mb"))
            if total is not None:
                totals[host] = total
    usual = statistics.median_low(totals.values()) if totals else 0
    for host in say.hosts:
        planned = fleet.planned(host)
        available = whole(fleet.host(host).get("memory_available_mb"))
        if available is None or (planned["chips"] and host not in totals):
            _missing(say, host, "the memory in all or available", "内存总量或可用内存", "free -m")
            continue
        # Simulated engines take next to nothing, and all hosts of a rehearsal share one memory.
        running = bool(fleet.host(host).get("own_pids")) or fleet.view["rehearsal"]
        wanted = planned["workers"] * fleet.limits.worker_memory_mb
        if running:
            # What it wants, this cluster has already.
            wanted = 0
        taken = 0 if running else planned["pool_mb"] + planned["pinned_mb"]
        if taken > available:
            words = _POOL_AND_PINNED if planned["pool_mb"] else _PINNED
            words = words if planned["pinned_mb"] else _POOL
            say.error(words, host, expected=taken, found=available, arithmetic=planned["pool_arithmetic"])
        elif wanted > available:
            say.warning(_MEMORY, host, expected=wanted, found=available, workers=planned["workers"])
        elif (
            host in totals
            and len(totals) > 2
            and totals[host] * 100 < usual * (100 - fleet.limits.memory_differs_percent)
        ):
            say.warning(_MEMORY_ODD, host, expected=usual, found=totals[host])
        else:
            say.ok(host)


_DISK = Words(
    "{path} on {host} has {found} MB free",
    "make room there: `du -xh {quoted} | sort -h | tail`; old images: `docker image prune`",
    "{host} 的 {path} 仅剩 {found} MB",
    "清理空间：`du -xh {quoted} | sort -h | tail`；旧镜像：`docker image prune`",
)


def disk(fleet: Fleet, say: Say) -> None:
    limits = fleet.limits
    for host in say.hosts:
        disks = fleet.host(host).get("disks")
        if not isinstance(disks, dict) or not disks:
            _missing(say, host, "the room on the disks", "磁盘空间", "df -m")
            continue
        good = True
        for path, free in disks.items():
            room = whole(free)
            if room is None:
                good = False
                _missing(say, host, f"the room in {path}", f"{path} 的空间", f"df -m {shlex.quote(path)}")
            elif room < (limits.disk_error_mb if fleet.view["rehearsal"] else limits.disk_warning_mb):
                good = False
                low = room < limits.disk_error_mb
                expected = f"{limits.disk_error_mb if low else limits.disk_warning_mb} MB"
                say.say(
                    "error" if low else "warning",
                    _DISK,
                    host,
                    expected=expected,
                    found=room,
                    path=path,
                    quoted=shlex.quote(path),
                )
        if good:
            say.ok(host)


# Model ----------------------------------------------------------------------------------------------------------------

_MODEL = Words(
    "the model in {path} on {host} differs from that on {others}: {part} {found}, there {expected}",
    "copy it again from a host that has the right one: `rsync -a --checksum {source} {target}`",
    "{host} 上 {path} 的模型与其他 {count} 台主机不同：{part} {found}，其他主机为 {expected}",
    "从正确的主机重新复制：`rsync -a --checksum {source} {target}`",
)
_MODEL_SPLIT = Words(
    "the model in {path} differs between the hosts and no copy is in the majority ({part}): {found}",
    "find out which copy is whole (compare with its source), then: `rsync -a --checksum HOST:{target} {target}`",
    "各主机上 {path} 的模型不同，且没有多数（{part}）：{found}",
    "先与来源比对确认哪份完整，然后执行：`rsync -a --checksum HOST:{target} {target}`",
)
_MODEL_GONE = Words(
    "the model is not in {path} on {host}",
    "put it there, or set pd_model_path",
    "{host} 的 {path} 中没有模型",
    "将模型放到该目录，或设置 pd_model_path",
)
_PARTS = (
    ("config_digest", "config.json"),
    ("index_digest", "*.index.json"),
    ("count", "files"),
    ("bytes", "bytes"),
)


def model_alike(fleet: Fleet, say: Say) -> None:
    """Per role: config and index by digest, the files with weights by number and size. One verdict per odd host."""
    models: dict[str, t.Mapping[str, t.Any]] = {}
    for host in say.hosts:
        path = fleet.planned(host)["model_path"]
        if path is None:
            continue
        model = mapping(mapping(fleet.host(host).get("models")).get(path))
        state = model.get("state")
        if state == "ok" and all(whole(model.get(key)) is not None for key in ("count", "bytes")):
            models[host] = model
        elif state == "missing" and any(
            one["check"] == "path" and str(one.get("value", "")).startswith(path) for one in fleet.findings(host)
        ):
            say.blocked(host)
        elif state == "missing":
            say.error(_MODEL_GONE, host, expected="a model", found="none", path=path)
        else:
            _missing(say, host, f"the model in {path}", f"{path} 中的模型", f"ls -l {shlex.quote(path)}")
    everywhere = {key: {Place(host): _value(model.get(key)) for host, model in models.items()} for key, _part in _PARTS}
    for host in models:
        if _misses_config(fleet, host):
            # Check path has said so, and there is nothing to compare.
            del everywhere["config_digest"][Place(host)]
            say.blocked(host)
    told: set[str] = set()
    for role in ("prefill", "decode"):
        _alike_in_role(fleet, say, [host for host in models if role in fleet.planned(host)["roles"]], everywhere, told)
    for host in models:
        if host not in told:
            say.ok(host)


def _misses_config(fleet: Fleet, host: str) -> bool:
    file = f"{fleet.planned(host)['model_path']}/config.json"
    return any(one["check"] == "path" and one.get("value") == file for one in fleet.findings(host))


_Values = t.Mapping[Place, str]


def _settled(odd: Odd, everywhere: _Values) -> Odd:
    """Of a role without a majority: the copy that more than half of all hosts have is the right one there too."""
    groups = {**odd.minority, everywhere[odd.majority[0]]: odd.majority}
    usual, number = collections.Counter(everywhere.values()).most_common(1)[0]
    if usual not in groups or 2 * number <= len(everywhere):
        return odd
    return Odd(usual, groups.pop(usual), groups)


def _alike_in_role(
    fleet: Fleet, say: Say, hosts: t.Sequence[str], everywhere: t.Mapping[str, _Values], told: set[str]
) -> None:
    for key, part in _PARTS:
        values = {
            place: value for place, value in everywhere[key].items() if place.host in hosts and place.host not in told
        }
        odd = odd_ones(values)
        if odd is None:
            continue
        if odd.usual is None:
            odd = _settled(odd, everywhere[key])
        if odd.usual is None:
            camps: dict[str, list[str]] = collections.defaultdict(list)
            for place, value in values.items():
                camps[value].append(place.host)
            found = "; ".join(f"{value}: {names(hosts)}" for value, hosts in camps.items())
            first = next(iter(odd.minority.values()))[0].host
            told.update(place.host for place in values)
            path = fleet.planned(first)["model_path"]
            say.error(
                _MODEL_SPLIT,
                first,
                expected="one copy",
                found=found,
                also=values,
                part=part,
                path=path,
                target=shlex.quote(f"{path}/"),
            )
            continue
        for value, places in odd.minority.items():
            for place in places:
                told.add(place.host)
                path, good = fleet.planned(place.host)["model_path"], odd.majority[0].host
                say.error(
                    _MODEL,
                    place.host,
                    expected=odd.usual,
                    found=value,
                    part=part,
                    count=len(odd.majority),
                    path=path,
                    source=shlex.quote(f"{good}:{fleet.planned(good)['model_path']}/"),
                    target=shlex.quote(f"{path}/"),
                )


def _value(value: t.Any) -> str:
    """A digest shortened as people compare them, a number as it is."""
    if value is None:
        return "none"
    text = str(value).removeprefix("sha256:")
    return text[:12] if len(text) > 20 else text
