# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Chips as npu-smi and the driver's files show them."""

from __future__ import annotations

import re
import shlex
import typing as t

from ..fleet import VENDOR, Fleet, generation_of, listing, mapping, one_line, whole
from ..verdicts import Place, Words
from .say import Say, grouped, names, numbers, odd_ones

_SILENT = Words(
    "{host} did not answer",
    "see why Ansible cannot reach it: `ansible -m ping {quoted}`",
    "{host} 没有应答",
    "检查 Ansible 无法访问的原因：`ansible -m ping {quoted}`",
)
_HALF = Words(
    "the {half} facts of {host} were not gathered, so nothing that needs them was judged there",
    "look at the messages of this run for {host}, then run preflight again",
    "未采集到 {host} 的 {half} 信息，依赖该信息的检查均未判定",
    "查看本次运行中 {host} 的输出，然后重新执行 preflight",
)

_UNCHECKED = Words(
    "{host} was not looked at by host_check, so devices, paths, ports and containers were not judged there",
    "look at the messages of this run for {host}, then run preflight again",
    "未对 {host} 执行 host_check，设备、路径、端口与容器均未判定",
    "查看本次运行中 {host} 的输出，然后重新执行 preflight",
)


def host_answers(fleet: Fleet, say: Say) -> None:
    for host in fleet.silent:
        say.error(_SILENT, host, expected="an answer", found="none", quoted=shlex.quote(host))
    for host in say.hosts:
        halves = [("npu", bool(fleet.npu(host))), ("host", bool(fleet.host(host)))]
        wanted = [half for half in halves if half[0] in fleet.halves and fleet.concerns(half[0], host)]
        for half, there in wanted:
            if not there:
                say.unknown(_HALF, host, expected=f"{half} facts", found="none", half=half)
        unchecked = bool(fleet.host(host)) and not fleet.has("findings", host)
        if unchecked:
            say.unknown(_UNCHECKED, host, expected="findings", found="none")
        if not unchecked and all(there for _half, there in wanted):
            say.ok(host)


_OTHER_TAGS = Words(
    "{checks} could not be judged on {host}, and what stands in the way is not looked at with these tags",
    "run preflight of {host} with the tags {tags} too, or without tags",
    "{host} 上无法判定 {checks}，而所选标签不检查其原因",
    "对 {host} 同时使用标签 {tags}，或不带标签执行 preflight",
)


def other_tags(say: Say, host: str, blocked: t.Sequence[str], left_out: t.Sequence[str]) -> None:
    """What a check of a tag that was not chosen would tell."""
    tags = ",".join(left_out)
    say.unknown(_OTHER_TAGS, host, expected="a judgement", found="not judged", checks=names(blocked), tags=tags)


_TOOL = {
    "tool_missing": Words(
        "{tool} is not on {host}; looked in {places}",
        "install the Ascend driver on {host}, or put the folder of {tool} in reach",
        "{host} 上没有 {tool}；已查找 {places}",
        "在 {host} 上安装昇腾驱动，或将 {tool} 放到上述目录",
    ),
    "denied": Words(
        "{tool} may not be run by this user on {host}: {text}",
        "run preflight with become (root)",
        "当前用户在 {host} 上无权运行 {tool}：{text}",
        "以 root（become）执行 preflight",
    ),
    "failed": Words(
        "{tool} reports a failure on {host}: {text}",
        "run {tool} by hand on {host}; see dmesg and the driver's log",
        "{host} 上的 {tool} 报告失败：{text}",
        "在 {host} 上手工执行 {tool}；查看 dmesg 与驱动日志",
    ),
}
_TOOL_OTHER = Words(
    "{tool} gives no answer on {host} ({state}): {text}",
    "run {tool} by hand on {host}; see dmesg and the driver's log, and whether a monitoring agent calls it all the time",
    "{host} 上的 {tool} 没有给出结果（{state}）：{text}",
    "在 {host} 上手工执行 {tool}；查看 dmesg 与驱动日志，确认是否有监控程序不停调用它",
)
# It said something, and that is not what is known of this tool: a new release, or lines of somebody else in it.
_TOOL_UNREADABLE = Words(
    "{tool} answers on {host}, but what it says cannot be read; it begins with: {text}",
    "run {tool} by hand on {host}; take away what else prints into it (wrappers, profile scripts), or report the words of this release",
    "{host} 上的 {tool} 有应答，但内容无法解析；开头为：{text}",
    "在 {host} 上手工执行 {tool}；去除混入输出的内容（包装脚本、profile 脚本），或反馈尚不支持的版本的输出",
)
# npu-smi's own codes; the words around them differ between versions, the numbers do not.
_CODES = {
    "8005": Words(
        "npu-smi cannot reach the driver on {host} (-8005): {text}",
        "run as root; reboot {host} if driver or firmware were changed; see that /dev/davinci_manager is there",
        "{host} 上 npu-smi 无法连接驱动（-8005）：{text}",
        "使用 root 执行；若更换过驱动或固件请重启 {host}；确认 /dev/davinci_manager 存在",
    ),
    "8020": Words(
        "a chip of {host} is given to another container without privileges, so npu-smi shows none at all (-8020): {text}",
        "list containers with their devices (`docker ps`, `docker inspect`) and stop the one that has the chips of this plan",
        "{host} 的芯片已被另一个非特权容器占用，npu-smi 因此一个也不显示（-8020）：{text}",
        "列出容器及其设备（`docker ps`、`docker inspect`），停止占用本规划芯片的容器",
    ),
}


def _tool(fleet: Fleet, say: Say, host: str, name: str, state: str, text: str, places: str) -> None:
    words = _TOOL.get(state, _TOOL_UNREADABLE if state == "unknown" and text.strip() else _TOOL_OTHER)
    values: dict[str, t.Any] = {"tool": name, "state": state, "text": one_line(text) or "no text", "places": places}
    severity = "error" if state in ("tool_missing", "denied", "failed") else "unknown"
    if name == "npu-smi":
        coded = [found for code, found in _CODES.items() if code in text]
        words, severity = (coded[0], "error") if coded else (words, severity)
    assert severity in ("error", "unknown")
    say.say("error" if severity == "error" else "unknown", words, host, expected="ok", found=state, **values)


def npu_smi(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        state = fleet.smi_state(host)
        if state == "ok":
            say.ok(host)
            continue
        text = str(fleet.tool(host, "npu_smi").get("text") or fleet.smi(host).get("text") or "")
        code = whole(fleet.smi(host).get("code"))
        if code is not None and str(abs(code)) not in text:
            text = f"{code}: {text}"
        _tool(fleet, say, host, "npu-smi", state, text, "/usr/local/bin, /usr/local/sbin")


def hccn_tool(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        state = fleet.hccn_state(host)
        if state == "ok":
            say.ok(host)
            continue
        texts = [fleet.tool(host, "hccn_tool").get("text") or ""]
        texts += [fleet.answer(host, chip, "link").text for chip in fleet.planned_chips(host)]
        text = next((text for text in texts if text), "")
        _tool(fleet, say, host, "hccn_tool", state, text, f"{VENDOR}/tools")


_GENERATION = Words(
    "{host} looks like another generation than pd_hardware={hardware}: {found}",
    "set pd_hardware to the generation of {host}, or take {host} out of the inventory: one cluster has one generation",
    "{host} 的代际与 pd_hardware={hardware} 不符：{found}",
    "将 pd_hardware 设为 {host} 的代际，或将 {host} 移出清单：一个集群只能是同一代际",
)
_CHIPS_OF = {"a2": "910B", "a3": "Ascend910 / 910C", "a5": "Ascend950"}


def generation(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        found = fleet.other_generation(host)
        if found is not None:
            expected = f"{fleet.hardware} ({_CHIPS_OF.get(fleet.hardware, '?')})"
            say.error(_GENERATION, host, expected=expected, found=found, hardware=fleet.hardware)
        elif not fleet.has("smi", host):
            say.blocked(host)
        elif any(generation_of(str(mapping(chip).get("name") or "")) for chip in fleet.smi_chips(host).values()):
            say.ok(host)
        else:
            say.unknown(_NAMELESS, host, expected=_CHIPS_OF.get(fleet.hardware, "?"), found="no name")


_NAMELESS = Words(
    "npu-smi on {host} names no chip, so its generation cannot be told",
    "run `npu-smi info` on {host}",
    "{host} 上 npu-smi 未显示芯片名称，无法判断代际",
    "在 {host} 上执行 `npu-smi info`",
)

_MISSING = Words(
    "{host} does not have chip {chips}, which the plan uses; it has {found}",
    "set pd_chips (or pd_chips_per_node) of {host} to what `npu-smi info -m` lists, or repair the chip",
    "规划使用了 {host} 的芯片 {chips}，但该芯片不存在；实际有 {found}",
    "将 {host} 的 pd_chips（或 pd_chips_per_node）改为 `npu-smi info -m` 列出的芯片，或修复该芯片",
)


def chip_present(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        # A missing device node is the same fault, and host_check has said so.
        told = [one.get("value") for one in fleet.findings(host) if one["check"] == "chip"]
        missing = [chip for chip in fleet.missing_chips(host) if chip not in told]
        for chip in fleet.present_chips(host):
            if fleet.has("smi", host) or fleet.answer(host, chip, "link").ok:
                say.ok(host, chip)
            else:
                say.blocked(host)
        if len(missing) != len(fleet.missing_chips(host)):
            say.blocked(host)
        if missing:
            there = [chip for chip in map(whole, fleet.smi_chips(host)) if chip is not None]
            found = f"chips {numbers(there)}" if there else "another set"
            only = missing[0] if len(missing) == 1 else None
            also = [Place(host, chip) for chip in missing]
            say.error(
                _MISSING,
                host,
                only,
                expected=f"chips {numbers(fleet.planned_chips(host))}",
                found=found,
                also=also,
                chips=numbers(missing),
            )


_HEALTH = Words(
    "npu-smi reports {found} for chip {chips} of {host}",
    "`npu-smi info -t health -i {card}` and dmesg tell the cause; leave the chip out of pd_chips until it is repaired",
    "npu-smi 报告 {host} 的芯片 {chips} 为 {found}",
    "用 `npu-smi info -t health -i {card}` 与 dmesg 查明原因；修复前从 pd_chips 中去掉该芯片",
)
_HEALTH_UNKNOWN = Words(
    "npu-smi does not tell the health of chip {chips} of {host}: {found}",
    "run `npu-smi info` on {host}",
    "npu-smi 未给出 {host} 芯片 {chips} 的健康状态：{found}",
    "在 {host} 上执行 `npu-smi info`",
)


def _health(fleet: Fleet, host: str, chip: int) -> str:
    entry = fleet.smi_chip(host, chip)
    health = str(entry.get("health") or "").strip()
    if health != "-":
        return health
    # The second die of a card may show "-": what npu-smi says of the card is on its first.
    same = [
        str(mapping(other).get("health") or "").strip()
        for other in fleet.smi_chips(host).values()
        if entry.get("card") is not None and mapping(other).get("card") == entry.get("card")
    ]
    return next((other for other in same if other not in ("", "-")), "-")


def chip_health(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        chips = fleet.present_chips(host)
        for health, group in grouped((chip, _health(fleet, host, chip)) for chip in chips).items():
            if health.upper() == "OK":
                for chip in group:
                    say.ok(host, chip)
            elif health.upper() in ("", "-", "NA", "N/A", "UNKNOWN"):
                say.each("unknown", _HEALTH_UNKNOWN, host, group, chips, expected="OK", found=health or "nothing")
            else:
                severity: t.Literal["warning", "error"] = "warning" if health.upper() == "WARNING" else "error"
                say.each(severity, _HEALTH, host, group, chips, expected="OK", found=health)


_BUSY = Words(
    "chip {chip} of {host} is in use by others than this cluster: {found}",
    "end them if nobody needs them (on {host}: `ps -fp {pids}`), or leave the chip out of pd_chips",
    "{host} 的芯片 {chip} 被不属于本集群的进程占用：{found}",
    "若无人使用请结束它们（在 {host} 上：`ps -fp {pids}`），或从 pd_chips 中去掉该芯片",
)
_PROCESSES_UNKNOWN = Words(
    "whether processes are on chip {chip} of {host} is not known",
    "run `npu-smi info` on {host}",
    "无法得知 {host} 的芯片 {chip} 上是否有进程",
    "在 {host} 上执行 `npu-smi info`",
)
_FULL = Words(
    "chip {chip} of {host} has {used} of {total} MB in use and no process to show for it; the engine wants {wanted} MB",
    "look for left-over workers in other containers (`docker ps`, `npu-smi info -t proc-mem -i {card} -c {die}`); a reset or reboot frees it",
    "{host} 的芯片 {chip} 已用 {used}/{total} MB，却没有对应进程；引擎需要 {wanted} MB",
    "在其他容器中查找残留进程（`docker ps`、`npu-smi info -t proc-mem -i {card} -c {die}`）；复位或重启可释放",
)
_FULL_UNKNOWN = Words(
    "npu-smi does not tell the memory use of chip {chips} of {host}",
    "run `npu-smi info` on {host}",
    "npu-smi 未给出 {host} 芯片 {chips} 的显存用量",
    "在 {host} 上执行 `npu-smi info`",
)
_PIDS_UNKNOWN = Words(
    "chip {chip} of {host} has processes ({found}) and it is not known which belong to this cluster",
    "run preflight without --tags, so that the host's own processes are gathered too",
    "{host} 的芯片 {chip} 上有进程（{found}），但无法判断是否属于本集群",
    "不带 --tags 执行 preflight，以便同时采集主机自身的进程信息",
)


def _processes(fleet: Fleet, host: str, chip: int) -> list[t.Mapping[str, t.Any]]:
    return [one for one in listing(fleet.smi_chip(host, chip).get("processes")) if isinstance(one, dict)]


def _foreign(fleet: Fleet, host: str, chip: int) -> list[t.Mapping[str, t.Any]]:
    """Processes that are not known to be this cluster's: npu_facts has marked them, or host_facts lists their pids."""
    own = {whole(pid) for pid in listing(fleet.host(host).get("own_pids"))} - {None}
    found = _processes(fleet, host, chip)
    return [one for one in found if one.get("own") is not True and whole(one.get("pid")) not in own]


def chip_free(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        known = isinstance(fleet.host(host).get("own_pids"), list)
        for chip in fleet.present_chips(host):
            if not isinstance(fleet.smi_chip(host, chip).get("processes"), list):
                say.unknown(_PROCESSES_UNKNOWN, host, chip, expected="no process", found="unknown")
                continue
            foreign = _foreign(fleet, host, chip)
            if not foreign:
                say.ok(host, chip)
                continue
            # A process of another container has no name here.
            found = names(f"pid {one.get('pid')} ({one.get('name') or 'no name'})" for one in foreign)
            pids = ",".join(str(one.get("pid")) for one in foreign)
            if known or all(one.get("own") is False for one in foreign):
                say.error(_BUSY, host, chip, expected="no process", found=found, pids=pids)
            else:
                say.unknown(_PIDS_UNKNOWN, host, chip, expected="no process", found=found)


def hbm_free(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        chips = fleet.present_chips(host)
        unread = []
        for chip in chips:
            entry = fleet.smi_chip(host, chip)
            used, total = whole(entry.get("hbm_used_mb")), whole(entry.get("hbm_total_mb"))
            if used is None or not total:
                unread.append(chip)
                continue
            wanted = int(total * fleet.planned(host)["memory_utilization"])
            # An idle chip shows some use too: the driver's, which engines do not count.
            room = max(total - wanted, fleet.limits.idle_memory_mb, total // 20)
            if _processes(fleet, host, chip):
                # Whose they are is what chip-free tells.
                say.blocked(host) if _foreign(fleet, host, chip) else say.ok(host, chip)
            elif used > room:
                say.error(
                    _FULL,
                    host,
                    chip,
                    expected=f"at most {room} MB used",
                    found=f"{used} MB used",
                    used=used,
                    total=total,
                    wanted=wanted,
                )
            else:
                say.ok(host, chip)
        say.each("unknown", _FULL_UNKNOWN, host, unread, chips, expected="a number", found="none")


_DRIVER = Words(
    "{host} has {part} {found}, {others} {have} {expected}",
    "install {part} {expected} on {host}; all hosts of a cluster should have the same",
    "{host} 的 {part_zh}版本为 {found}，其他 {count} 台主机为 {expected}",
    "在 {host} 上安装{part_zh} {expected}；同一集群的主机应一致",
)
_DRIVER_SPLIT = Words(
    "the hosts have different {part} versions and none is in the majority: {found}",
    "choose one and install it on all hosts",
    "各主机的{part_zh}版本不同，且没有多数：{found}",
    "选定一个版本并安装到所有主机",
)
_DRIVER_UNKNOWN = Words(
    "the {part} version of {host} cannot be read",
    "see {place} on {host}",
    "无法读取 {host} 的{part_zh}版本",
    "查看 {host} 上的 {place}",
)


_DRIVER_NOT_LOADED = Words(
    "npu-smi on {host} shows driver {found}, {place} says {expected}: another one is loaded than was installed",
    "reboot {host}, which loads what was installed; if it stays, install driver {expected} again",
    "{host} 上 npu-smi 显示驱动 {found}，{place} 为 {expected}：加载的驱动与安装的不同",
    "重启 {host} 以加载已安装的驱动；若仍不同，请重新安装驱动 {expected}",
)


def _same_version(one: str, other: str) -> bool:
    """Either may leave out the last parts."""
    one, other = one.strip().lower(), other.strip().lower()
    return one.startswith(other) or other.startswith(one)


def _not_loaded(fleet: Fleet, say: Say) -> set[str]:
    """Hosts that were not rebooted since another driver was installed."""
    hosts = set()
    for host in say.hosts:
        told, loaded = mapping(fleet.npu(host).get("driver")), fleet.smi(host).get("version")
        # The file may count the component apart from its package; npu-smi shows the latter.
        filed = [
            told[key] for key in ("driver", "driver_package") if isinstance(told.get(key), str) and told[key].strip()
        ]
        if not filed or not isinstance(loaded, str) or not loaded.strip():
            continue
        if not any(_same_version(one, loaded) for one in filed):
            hosts.add(host)
            say.warning(_DRIVER_NOT_LOADED, host, expected=filed[-1], found=loaded, place=f"{VENDOR}/version.info")
    return hosts


def driver_equal(fleet: Fleet, say: Say) -> None:
    unread: set[str] = set()
    not_loaded = _not_loaded(fleet, say)
    odd_hosts = set(not_loaded)
    for part, part_zh, place in (
        ("driver", "驱动", f"{VENDOR}/version.info"),
        ("firmware", "固件", "/usr/local/Ascend/firmware/version.info"),
    ):
        values = {}
        for host in say.hosts:
            if part == "driver" and host in not_loaded:
                continue  # which of the two to compare is open
            version = mapping(fleet.npu(host).get("driver")).get(part)
            if not version and part == "driver":
                version = fleet.smi(host).get("version")
            if isinstance(version, str) and version.strip():
                values[Place(host)] = version.strip()
            else:
                unread.add(host)
                say.unknown(
                    _DRIVER_UNKNOWN, host, expected="a version", found="none", part=part, part_zh=part_zh, place=place
                )
        odd = odd_ones(values)
        if odd is None:
            continue
        if odd.usual is None:
            # Two camps: nobody knows which is right.
            camps = {odd.majority[0]: odd.majority, **{places[0]: places for places in odd.minority.values()}}
            found = "; ".join(f"{values[first]}: {names(p.host for p in places)}" for first, places in camps.items())
            everyone = list(values)
            odd_hosts.update(place.host for place in everyone)
            first = next(iter(odd.minority.values()))[0]
            say.warning(
                _DRIVER_SPLIT,
                first.host,
                expected="one version",
                found=found,
                also=everyone,
                part=part,
                part_zh=part_zh,
            )
            continue
        for value, places in odd.minority.items():
            for odd_place in places:
                odd_hosts.add(odd_place.host)
                say.warning(
                    _DRIVER,
                    odd_place.host,
                    expected=odd.usual,
                    found=value,
                    count=len(odd.majority),
                    part=part,
                    part_zh=part_zh,
                )
    for host in say.hosts:
        if host not in unread | odd_hosts:
            say.ok(host)


_FIRMWARE = Words(
    "{host} has firmware {found}, its driver {driver} is made for {expected}",
    "install the firmware that was released with the driver on {host}, then reboot",
    "{host} 的固件为 {found}，其驱动 {driver} 适配 {expected}",
    "在 {host} 上安装与驱动配套的固件，然后重启",
)
_RANGE = re.compile(r"\[([0-9]+(?:\.[0-9]+)*),([0-9]+(?:\.[0-9]+)*)\]")


def firmware_fits(fleet: Fleet, say: Say) -> None:
    """The driver's version.info may name ranges of firmware versions (compatible_version_fw=[7.0.0,8.9.9])."""
    for host in say.hosts:
        driver = mapping(fleet.npu(host).get("driver"))
        named, firmware = str(driver.get("compatible_firmware") or ""), str(driver.get("firmware") or "")
        ranges = [(_numbers(first), _numbers(last)) for first, last in _RANGE.findall(named)]
        # A text of another form says nothing, and what is no release number cannot be placed.
        if not ranges or _RANGE.sub("", named).strip(", ") or not re.fullmatch(r"[0-9]+(\.[0-9]+)*", firmware):
            continue
        version = _numbers(firmware)
        # A bound of three numbers holds for everything that begins with them.
        if any(first <= version and version[: len(last)] <= last for first, last in ranges):
            say.ok(host)
        else:
            say.warning(_FIRMWARE, host, expected=named, found=firmware, driver=driver.get("driver") or "?")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
