# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The chips' network as hccn_tool shows it, chip by chip."""

from __future__ import annotations

import collections
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import BUSY, SPENT

from ..fleet import HCCN_CONF, Answer, Fleet, address, listing, mapping, network, one_line
from ..verdicts import Place, Severity, Words
from . import pings
from .say import Say, grouped, names, numbers, odd_ones

_UNREAD = Words(
    "{query} of chip {chips} of {host} cannot be read ({found}): {text}",
    "on {host}: `hccn_tool -i {first} -{query} -g`",
    "无法读取 {host} 芯片 {chips} 的 {query}（{found}）：{text}",
    "在 {host} 上执行：`hccn_tool -i {first} -{query} -g`",
)


def unread(
    say: Say,
    host: str,
    chips: t.Sequence[int],
    query: str,
    answers: t.Mapping[int, Answer],
    severity: Severity = "unknown",
) -> None:
    """The chips whose answer cannot be used, by how it failed: unknown or worse, never good."""
    if any(answer.state == "conf_unreadable" for answer in answers.values()):
        # hccn-conf says it once for all questions.
        say.blocked(host)
        answers = {chip: answer for chip, answer in answers.items() if answer.state != "conf_unreadable"}
    failed = ((chip, (answer.state, answer.text)) for chip, answer in answers.items())
    for (state, text), group in grouped(failed).items():
        found = "unreadable" if state == "ok" else state
        say.each(
            severity,
            _UNREAD,
            host,
            group,
            chips,
            expected="an answer",
            found=found,
            query=query,
            text=text or "no text",
        )


_MUTE = Words(
    "chip {chips} of {host} answers no query of hccn_tool: {found}",
    "an offline chip lets hccn_tool hang; see `npu-smi info` and dmesg on {host}, reset the card or reboot",
    "{host} 的芯片 {chips} 对 hccn_tool 的任何查询都没有应答：{found}",
    "芯片离线会使 hccn_tool 挂起；在 {host} 上查看 `npu-smi info` 与 dmesg，复位该卡或重启",
)


_HELD = Words(
    "hccn_tool is busy whatever it is asked about chip {chips} of {host}",
    "see which other program on {host} calls hccn_tool all the time (a monitoring agent?) and pause it: `ps -ef | grep hccn_tool`",
    "查询 {host} 的芯片 {chips} 时 hccn_tool 始终忙",
    "查看 {host} 上是哪个程序（监控代理？）不停调用 hccn_tool 并暂停它：`ps -ef | grep hccn_tool`",
)
_LEFT_ALONE = Words(
    "chip {chips} of {host} was not asked, for the tool had no time left: {text}",
    "see whether another program on {host} calls hccn_tool all the time; else give the host more time (preflight_tool_budget)",
    "未查询 {host} 的芯片 {chips}，因为没有剩余时间：{text}",
    "检查 {host} 上是否有其他程序不停调用 hccn_tool；否则增大该主机的时间（preflight_tool_budget）",
)


def chip_answers(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        answers = {
            chip: [fleet.answer(host, chip, query) for query in fleet.queries(host, chip)]
            for chip in fleet.mute_chips(host)
        }
        for chip in fleet.chips(host):
            say.ok(host, chip)
        alone = [chip for chip, told in answers.items() if told and all(SPENT in (one.text or "") for one in told)]
        if alone:
            say.unknown(
                _LEFT_ALONE,
                host,
                expected="answers",
                found="not asked",
                also=[Place(host, chip) for chip in alone],
                chips=numbers(alone),
                text=answers[alone[0]][0].text,
            )
        held = [chip for chip, told in answers.items() if told and {one.state for one in told} == {BUSY}]
        if held:
            say.unknown(
                _HELD,
                host,
                expected="answers",
                found=BUSY,
                also=[Place(host, chip) for chip in held],
                chips=numbers(held),
            )
        why = {
            chip: names(sorted({one.state for one in told}))
            for chip, told in answers.items()
            if chip not in alone and chip not in held
        }
        for states, group in grouped(why.items()).items():
            say.each(
                "unknown", _MUTE, host, group, fleet.planned_chips(host), expected="answers", found=states or "nothing"
            )


# /etc/hccn.conf -------------------------------------------------------------------------------------------------------

_CONF = {
    "missing": Words(
        "{file} is not on {host}; in a container without it the transfer has no device address and answers turn wrong",
        "set the addresses once (`hccn_tool -i N -ip -s address A netmask M`), which writes it, or restore it from a copy",
        "{host} 上没有 {file}；容器中缺少该文件时传输没有设备地址，推理结果会出错",
        "重新配置地址（`hccn_tool -i N -ip -s address A netmask M`）会写入该文件，或从备份恢复",
    ),
    "is_directory": Words(
        "{file} on {host} is a folder: docker makes one where a mounted file was missing",
        "on {host}: `rmdir {file}`, restore the file, then recreate the container",
        "{host} 上的 {file} 是目录：挂载源文件缺失时 docker 会创建目录",
        "在 {host} 上：`rmdir {file}`，恢复该文件，然后重建容器",
    ),
    "unreadable": Words(
        "{file} on {host} cannot be read: missing, a folder, or not root",
        "run preflight with become (root); on {host}: `ls -l {file}`",
        "{host} 上的 {file} 无法读取：不存在、是目录，或没有 root 权限",
        "以 root（become）执行 preflight；在 {host} 上：`ls -l {file}`",
    ),
    "malformed": Words(
        "{file} on {host} has lines that are not understood: {found}",
        "correct them; one KEY_CHIP=VALUE a line, as in address_0=192.0.2.1",
        "{host} 上的 {file} 有无法识别的行：{found}",
        "请更正；每行一个 KEY_芯片=值，例如 address_0=192.0.2.1",
    ),
}
_CONF_LINE_ENDS = Words(
    "{file} on {host} has Windows line ends, which hccn_tool takes for a part of every value",
    "on {host}: `sed -i 's/\\r$//' {file}`",
    "{host} 上的 {file} 使用 Windows 换行符，hccn_tool 会将其视为值的一部分",
    "在 {host} 上执行：`sed -i 's/\\r$//' {file}`",
)
_CONF_EMPTY = Words(
    "{file} on {host} holds no address: those that the chips have now are gone after a reboot, and unknown in the container",
    "set them again, which writes the file: `hccn_tool -i N -ip -s address A netmask M`",
    "{host} 上的 {file} 中没有地址：芯片当前的地址重启后丢失，容器内也不可见",
    "重新配置地址（会写入该文件）：`hccn_tool -i N -ip -s address A netmask M`",
)
_CONF_UNKNOWN = Words(
    "it is not known whether {file} is on {host} ({found})",
    "on {host}: `cat {file}`",
    "无法得知 {host} 上是否有 {file}（{found}）",
    "在 {host} 上执行：`cat {file}`",
)
_CONF_DIFFERS = Words(
    "chip {chip} of {host} has {key} {found}, {file} says {expected}",
    "set the live value as the file has it (`hccn_tool -i {chip} -ip -s address {address} netmask {netmask}`), or correct the file",
    "{host} 芯片 {chip} 的实际 {key} 为 {found}，{file} 中为 {expected}",
    "将实际值设为与文件一致（`hccn_tool -i {chip} -ip -s address {address} netmask {netmask}`），或更正文件",
)
_CONF_STALE = Words(
    "{file} on {host} gives other addresses than the chips have, on all of {chips} (chip {first} has {found}, the file says "
    "{expected}){whose}",
    "set the file's addresses on the chips (`hccn_tool -i N -ip -s address A netmask M`), or write the file anew from the live ones",
    "{host} 的 {file} 中的地址与芯片 {chips} 的实际地址全部不同（芯片 {first} 实际为 {found}，文件中为 {expected}）{whose_zh}",
    "将文件中的地址设到芯片上（`hccn_tool -i N -ip -s address A netmask M`），或按实际地址重写该文件",
)
_CONF_LACKS = Words(
    "chip {chip} of {host} has address {found}, {file} has none: it is gone after a reboot and unknown in the container",
    "on {host}: `hccn_tool -i {chip} -ip -s address {found} netmask {netmask}`, which writes the file",
    "{host} 芯片 {chip} 的地址为 {found}，但 {file} 中没有：重启后丢失，容器内也不可见",
    "在 {host} 上执行：`hccn_tool -i {chip} -ip -s address {found} netmask {netmask}`，该命令会写入文件",
)


_CONF_NOT_LIVE = Words(
    "{file} gives chip {chip} of {host} the address {expected}, the chip has none",
    "set it (`hccn_tool -i {chip} -ip -s address {expected} netmask NETMASK`), or take the line out of the file",
    "{file} 为 {host} 芯片 {chip} 设置了地址 {expected}，但该芯片没有地址",
    "设置该地址（`hccn_tool -i {chip} -ip -s address {expected} netmask NETMASK`），或从文件中删除该行",
)


def hccn_conf(fleet: Fleet, say: Say) -> None:
    if fleet.plane == "ub":
        return
    for host in say.hosts:
        conf = mapping(fleet.npu(host).get("hccn_conf"))
        state = str(conf.get("state") or "unknown")
        unreadable = any(
            fleet.answer(host, chip, query).state == "conf_unreadable"
            for chip in fleet.planned_chips(host)
            for query in fleet.queries(host, chip)
        )
        if state == "ok" and unreadable:
            state = "unreadable"
        if state == "coming":
            say.ok(host)
        elif state in _CONF:
            wrong = [str(line) for line in listing(conf.get("lines_not_understood"))]
            found = names((one_line(line, 40) for line in wrong), 3) if state == "malformed" and wrong else state
            words = _CONF_LINE_ENDS if wrong and all(line.endswith("\r") for line in wrong) else _CONF[state]
            say.error(words, host, expected="a readable file", found=found, file=HCCN_CONF)
        elif state == "empty" and fleet.plane == "roce":
            say.error(_CONF_EMPTY, host, expected="an address per chip", found="none", file=HCCN_CONF)
        elif state not in ("ok", "empty"):
            say.unknown(_CONF_UNKNOWN, host, expected="a readable file", found=state, file=HCCN_CONF)
        elif not fleet.has("hccn", host) or not fleet.has("generation", host):
            say.blocked(host)
        else:
            entries = {chip: fleet.filed(host, chip) for chip in fleet.chips(host)}
            if _empty_as_a_whole(fleet, say, host, entries) or _stale_as_a_whole(fleet, say, host, entries):
                continue
            for chip, entry in entries.items():
                _conf_of_chip(fleet, say, host, chip, entry)


def _empty_as_a_whole(fleet: Fleet, say: Say, host: str, entries: t.Mapping[int, t.Mapping[str, t.Any]]) -> bool:
    """A file without any of the addresses that all chips have: said once, not once per chip."""
    live = [address(fleet.answer(host, chip, "ip").word("ipaddr")) for chip in entries]
    if len(entries) < 2 or None in live or any(entry.get("address") for entry in entries.values()):
        return False
    also = [Place(host, chip) for chip in entries]
    say.error(_CONF_EMPTY, host, expected="an address per chip", found="none", also=also, file=HCCN_CONF)
    return True


def _stale_as_a_whole(fleet: Fleet, say: Say, host: str, entries: t.Mapping[int, t.Mapping[str, t.Any]]) -> bool:
    """A file of other times or of another host: said once, not once per chip."""
    live = {chip: address(fleet.answer(host, chip, "ip").word("ipaddr")) for chip in entries}
    filed = {chip: address(str(entry.get("address") or "")) for chip, entry in entries.items()}
    if len(entries) < 2 or any(live[chip] is None or filed[chip] in (None, live[chip]) for chip in entries):
        return False
    theirs = [
        other
        for other in fleet.hosts
        if other != host
        and all(address(fleet.answer(other, chip, "ip").word("ipaddr")) == filed[chip] for chip in entries)
    ]
    first = next(iter(entries))
    say.error(
        _CONF_STALE,
        host,
        expected=filed[first],
        found=live[first],
        also=[Place(host, chip) for chip in entries],
        file=HCCN_CONF,
        chips=numbers(list(entries)),
        first=first,
        whose=f"; they are those of {theirs[0]}, so the file was copied" if theirs else "",
        whose_zh=f"；与 {theirs[0]} 的地址相同，文件可能是复制来的" if theirs else "",
    )
    return True


def _conf_of_chip(fleet: Fleet, say: Say, host: str, chip: int, entry: t.Mapping[str, t.Any]) -> None:
    live = fleet.answer(host, chip, "ip")
    if not live.ok:
        # Nothing to compare with. Over RoCE chip-address tells why; with HCCS the address need not be set.
        if fleet.plane == "roce":
            say.blocked(host)
        elif live.state == "not_configured" and entry.get("address"):
            say.warning(_CONF_NOT_LIVE, host, chip, expected=entry["address"], found="none", file=HCCN_CONF)
        elif live.state == "not_configured":
            say.ok(host, chip)
        else:
            unread(say, host, [chip], "ip", {chip: live})
        return
    ip = live.word("ipaddr")
    if address(ip) is None:
        # With HCCS nobody else looks at this address.
        say.blocked(host) if fleet.plane == "roce" else unread(say, host, [chip], "ip", {chip: live})
    elif not entry.get("address"):
        netmask = live.word("netmask") or "NETMASK"
        say.error(_CONF_LACKS, host, chip, expected=f"address_{chip}={ip}", found=ip, netmask=netmask, file=HCCN_CONF)
    else:
        pairs = [("address", ip), ("netmask", live.word("netmask"))]
        wrong = [
            (key, value)
            for key, value in pairs
            if value and entry.get(key) and _octets(str(entry[key])) != _octets(value)
        ]
        for key, value in wrong[:1]:
            say.error(
                _CONF_DIFFERS,
                host,
                chip,
                expected=entry[key],
                found=value,
                key=key,
                file=HCCN_CONF,
                address=entry["address"],
                netmask=entry.get("netmask") or live.word("netmask") or "NETMASK",
            )
        if not wrong:
            say.ok(host, chip)


def _octets(text: str) -> list[int | str]:
    """An address or a netmask, however its numbers are written."""
    return [int(part) if part.isdecimal() else part for part in text.strip().split(".")]


# Links ----------------------------------------------------------------------------------------------------------------

_LINK = Words(
    "the RoCE link of chip {chips} of {host} is {found}",
    "check cable and optics of the chip and the switch port; `hccn_tool -i {first} -link -g` must say UP",
    "{host} 芯片 {chips} 的 RoCE 链路为 {found}",
    "检查该芯片的线缆、光模块与交换机端口；`hccn_tool -i {first} -link -g` 应为 UP",
)
_HARMLESS = "; its hccs_pings pass, so the RoCE port is not used here"
_HARMLESS_ZH = "；其 hccs_ping 通过，说明此处未使用 RoCE 端口"
_LINK_HARMLESS = Words(
    _LINK.message + _HARMLESS,
    "nothing, if this host has no RoCE cabling; else: " + _LINK.fix,
    _LINK.message_zh + _HARMLESS_ZH,
    "若该主机未接 RoCE 线缆则无需处理；否则：" + _LINK.fix_zh,
)
_LINK_OPEN = Words(
    _LINK.message + "; with HCCS only an hccs_ping can tell whether that matters, and there was none",
    "ping the chip from another host (run preflight over more than one host)",
    _LINK.message_zh + "；HCCS 下只有 hccs_ping 能判断是否有影响，而本次没有执行",
    "从其他主机 ping 该芯片（对多台主机执行 preflight）",
)


def _softened(fleet: Fleet, host: str, chip: int) -> Severity:
    """How bad a bad RoCE link is: on A3 over HCCS it is a false alarm where every hccs_ping passes (seen on real sites)."""
    if fleet.plane != "hccs":
        return "error"
    passes = pings.reachable(fleet, Place(host, chip))
    return "unknown" if passes is None else "warning" if passes else "error"


def _by_pings(
    fleet: Fleet,
    say: Say,
    host: str,
    bad: t.Mapping[int, str],
    words: t.Mapping[Severity, Words],
    expected: str,
    **values: t.Any,
) -> None:
    """Bad states of a chip's RoCE port, chips that are alike together."""
    chips = fleet.chips(host)
    same = ((chip, (value, _softened(fleet, host, chip))) for chip, value in bad.items())
    for (value, severity), group in grouped(same).items():
        say.each(severity, words[severity], host, group, chips, expected=expected, found=value, **values)


_UB = Words(
    "the UB link of chip {chips} of {host} is {found}",
    "see the ports one by one: `hccn_tool -g -link -i {first} -u UDIE -p PORT` on {host}, and their cabling",
    "{host} 芯片 {chips} 的 UB 链路为 {found}",
    "逐个端口检查：在 {host} 上执行 `hccn_tool -g -link -i {first} -u UDIE -p PORT`，并检查线缆",
)


def link(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        answers = {chip: fleet.answer(host, chip, "link") for chip in fleet.chips(host)}
        down = {}
        for chip, answer in list(answers.items()):
            word = (answer.word("link") or "").upper() if answer.ok else ""
            if word:
                del answers[chip]
            # NA: a card of A5 that has no ports to be linked.
            if word == "UP" or (word == "NA" and fleet.plane == "ub"):
                say.ok(host, chip)
            elif word:
                down[chip] = word
        unread(say, host, fleet.chips(host), "link", answers)
        if fleet.plane == "ub":
            for word, group in grouped(down.items()).items():
                severity: Severity = "warning" if word.startswith("PARTIAL") else "error"
                say.each(severity, _UB, host, group, fleet.chips(host), expected="UP", found=word)
        else:
            words: dict[Severity, Words] = {"error": _LINK, "warning": _LINK_HARMLESS, "unknown": _LINK_OPEN}
            _by_pings(fleet, say, host, down, words, "UP")


_VNIC = Words(
    "the vNIC of chip {chips} of {host} is {found}",
    "`hccn_tool -i {first} -vnic -g` must say UP; see `npu-smi info` and dmesg on {host}",
    "{host} 芯片 {chips} 的 vNIC 为 {found}",
    "`hccn_tool -i {first} -vnic -g` 应为 UP；查看 {host} 的 `npu-smi info` 与 dmesg",
)


def vnic_link(fleet: Fleet, say: Say) -> None:
    if fleet.plane != "hccs":
        return
    for host in say.hosts:
        down = []
        for chip in fleet.chips(host):
            answer = fleet.answer(host, chip, "vnic")
            word = answer.word("link") if answer.ok else None
            if word is None and answer.ok:
                unread(say, host, fleet.chips(host), "vnic", {chip: answer})
            elif word is None:
                # The same answer is what chip-address reads, and complains about.
                say.blocked(host)
            elif word.upper() == "UP":
                say.ok(host, chip)
            else:
                down.append((chip, word))
        for word, group in grouped(down).items():
            say.each("error", _VNIC, host, group, fleet.chips(host), expected="UP", found=word)


_HEALTH = Words(
    "the network health of chip {chips} of {host} is {found}",
    "`hccn_tool -i {first} -netdetect -g` must name an address that answers (the gateway); then ask -net_health again",
    "{host} 芯片 {chips} 的网络健康状态为 {found}",
    "`hccn_tool -i {first} -netdetect -g` 应给出一个可达地址（网关）；然后再次查询 -net_health",
)
_HEALTH_NO_TARGET = Words(
    "the network health of chip {chips} of {host} is {found}: the detection address was only just set, or none is set",
    "on {host}: `hccn_tool -i {first} -netdetect -s address {target}`, then ask -net_health again",
    "{host} 芯片 {chips} 的网络健康状态为 {found}：检测地址刚刚设置或尚未设置",
    "在 {host} 上执行：`hccn_tool -i {first} -netdetect -s address {target}`，然后再次查询 -net_health",
)


def _health_words(base: Words) -> dict[Severity, Words]:
    return {
        "error": base,
        "warning": Words(base.message + _HARMLESS, base.fix, base.message_zh + _HARMLESS_ZH, base.fix_zh),
        "unknown": Words(
            base.message + "; no hccs_ping was made", base.fix, base.message_zh + "；未执行 hccs_ping", base.fix_zh
        ),
    }


NO_TARGET = ("init", "detect ip set")


def _usual_target(fleet: Fleet, host: str, query: str) -> str:
    """The gateway or detection address that most chips have, of this host or else of all: what a fix can name."""
    for hosts in ([host], fleet.hosts):
        found = [fleet.answer(one, chip, query).word(query) for one in hosts for chip in fleet.chips(one)]
        usable = [text for text in found if address(text) is not None]
        if usable:
            return str(max(usable, key=usable.count))
    return "GATEWAY"


def net_health(fleet: Fleet, say: Say) -> None:
    if fleet.plane == "ub":
        return
    for host in say.hosts:
        chips = fleet.chips(host)
        answers = {chip: fleet.answer(host, chip, "net_health") for chip in chips}
        faults: dict[int, str] = {}
        idle: dict[int, str] = {}
        for chip, answer in list(answers.items()):
            word = answer.word("net_health") if answer.ok else None
            if word is None:
                continue
            del answers[chip]
            if word.lower() == "success":
                say.ok(host, chip)
            elif fleet.link_down(host, chip):
                # What a link that is down leads to; link tells it.
                say.blocked(host)
            else:
                (idle if word.lower() in NO_TARGET else faults)[chip] = word
        unread(say, host, chips, "net_health", answers)
        _by_pings(fleet, say, host, faults, _health_words(_HEALTH), "Success")
        target = _usual_target(fleet, host, "netdetect")
        _by_pings(fleet, say, host, idle, _health_words(_HEALTH_NO_TARGET), "Success", target=target)


_DETECT = Words(
    "chip {chips} of {host} has no detection address, so its network health says nothing",
    "on {host}: `hccn_tool -i {first} -netdetect -s address {target}`",
    "{host} 芯片 {chips} 未设置网络检测地址，其网络健康状态没有意义",
    "在 {host} 上执行：`hccn_tool -i {first} -netdetect -s address {target}`",
)
_DETECT_SELF = Words(
    "chip {chip} of {host} has its own address {found} as detection address, so its network health proves nothing",
    "on {host}: `hccn_tool -i {chip} -netdetect -s address {target}`",
    "{host} 芯片 {chip} 的检测地址是它自己的地址 {found}，其网络健康状态没有意义",
    "在 {host} 上执行：`hccn_tool -i {chip} -netdetect -s address {target}`",
)


_DETECT_FAR = Words(
    "the detection address {found} of chip {chip} of {host} is neither in the chip's own subnet {expected} nor its gateway, unlike "
    "those of other chips, so its network health tells of another way",
    "on {host}: `hccn_tool -i {chip} -netdetect -s address {target}`",
    "{host} 芯片 {chip} 的检测地址 {found} 既不在其网段 {expected} 内也不是其网关，与其他芯片不同，其网络健康状态反映的是另一条路径",
    "在 {host} 上执行：`hccn_tool -i {chip} -netdetect -s address {target}`",
)


def _odd_targets(fleet: Fleet, places: t.Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """Chips whose detection address is behind a router that is not their gateway's own address, unlike most chips'."""
    targets = {place: address(fleet.answer(*place, "netdetect").word("netdetect")) for place in places}
    counts = collections.Counter(targets.values())
    far = set()
    for place, target in targets.items():
        subnet = network(fleet.answer(*place, "ip"))
        way = address(fleet.answer(*place, "gateway").word("gateway"))
        if target is not None and subnet is not None and target not in subnet and target != way:
            far.add(place)
    # One address for all, or one for each beyond the switches, is a site's choice.
    return (
        set() if 2 * len(far) > len(places) else {place for place in far if 2 * counts[targets[place]] <= len(places)}
    )


def netdetect(fleet: Fleet, say: Say) -> None:
    odd = _odd_targets(
        fleet, [(host, chip) for host in say.hosts if fleet.roce_used(host) for chip in fleet.chips(host)]
    )
    for host in say.hosts:
        chips = fleet.chips(host)
        if not fleet.roce_used(host):
            continue
        answers = {chip: fleet.answer(host, chip, "netdetect") for chip in chips}
        unset = []
        for chip, answer in list(answers.items()):
            target = address(answer.word("netdetect")) if answer.ok else None
            health = fleet.answer(host, chip, "net_health").word("net_health") or ""
            if answer.state == "not_configured" or (answer.ok and target is None):
                del answers[chip]
                if health.lower() in NO_TARGET or fleet.link_down(host, chip):
                    say.blocked(host)
                else:
                    unset.append(chip)
            elif target is not None:
                del answers[chip]
                if target == address(fleet.answer(host, chip, "ip").word("ipaddr")):
                    say.warning(_DETECT_SELF, host, chip, expected="another address", found=target, target="GATEWAY")
                elif (host, chip) in odd:
                    subnet = network(fleet.answer(host, chip, "ip"))
                    best = _usual_target(fleet, host, "netdetect")
                    say.warning(_DETECT_FAR, host, chip, expected=subnet, found=target, target=best)
                else:
                    say.ok(host, chip)
        unread(say, host, chips, "netdetect", answers)
        if unset:
            target_text = _usual_target(fleet, host, "netdetect")
            say.each("warning", _DETECT, host, unset, chips, expected="an address", found="none", target=target_text)


# Gateway --------------------------------------------------------------------------------------------------------------

_GATEWAY = Words(
    "chip {chips} of {host} has no gateway, and the fleet's chips are in different subnets: {subnets}",
    "on {host}: `hccn_tool -i {first} -gateway -s gateway {target}`, or put all chips into one subnet",
    "{host} 芯片 {chips} 没有网关，而各芯片位于不同网段：{subnets}",
    "在 {host} 上执行：`hccn_tool -i {first} -gateway -s gateway {target}`，或将所有芯片放到同一网段",
)
_GATEWAY_FLAT = Words(
    "chip {chips} of {host} has no gateway; all chips are in {subnets}, so none is needed inside it",
    "nothing in a flat network; else on {host}: `hccn_tool -i {first} -gateway -s gateway {target}`",
    "{host} 芯片 {chips} 没有网关；所有芯片都在 {subnets} 内，网段内不需要网关",
    "扁平网络无需处理；否则在 {host} 上执行：`hccn_tool -i {first} -gateway -s gateway {target}`",
)
_GATEWAY_OUTSIDE = Words(
    "the gateway {found} of chip {chip} of {host} is not in the chip's own subnet {expected}",
    "on {host}: `hccn_tool -i {chip} -gateway -s gateway {target}` with an address in {expected}",
    "{host} 芯片 {chip} 的网关 {found} 不在其网段 {expected} 内",
    "在 {host} 上执行：`hccn_tool -i {chip} -gateway -s gateway {target}`，地址取自 {expected}",
)


def gateway(fleet: Fleet, say: Say) -> None:
    hosts = [host for host in say.hosts if fleet.roce_used(host)]
    subnets = {
        Place(host, chip): network(fleet.answer(host, chip, "ip")) for host in hosts for chip in fleet.chips(host)
    }
    known = sorted({subnet for subnet in subnets.values() if subnet is not None})
    severity: Severity = "error" if fleet.plane == "roce" else "warning"
    for host in hosts:
        chips = fleet.chips(host)
        answers = {chip: fleet.answer(host, chip, "gateway") for chip in chips}
        unset = []
        for chip, answer in list(answers.items()):
            target = address(answer.word("gateway")) if answer.ok else None
            subnet = subnets[Place(host, chip)]
            if answer.state == "not_configured":
                del answers[chip]
                # Chips without an address have chip-address to tell it, and a cable from chip to chip needs no gateway.
                if subnet is None or (len(known) < 2 and fleet.view["topology"] == "back_to_back"):
                    say.blocked(host) if subnet is None else say.ok(host, chip)
                else:
                    unset.append(chip)
            elif target is not None:
                del answers[chip]
                if subnet is not None and target not in subnet:
                    if _moved(fleet, host, chip):
                        # The address is what has changed; hccn-conf says so.
                        say.blocked(host)
                        continue
                    say.say(severity, _GATEWAY_OUTSIDE, host, chip, expected=subnet, found=target, target="GATEWAY")
                else:
                    say.ok(host, chip)
        unread(say, host, chips, "gateway", answers)
        if unset:
            values = {"expected": "a gateway", "found": "none", "subnets": names(known, 4)}
            values["target"] = _usual_target(fleet, host, "gateway")
            if len(known) > 1:
                say.each(severity, _GATEWAY, host, unset, chips, **values)
            else:
                say.each("warning", _GATEWAY_FLAT, host, unset, chips, **values)


def _moved(fleet: Fleet, host: str, chip: int) -> bool:
    """Whether a chip has left the subnet that hccn.conf puts it into, where its gateway still is."""
    entry = fleet.filed(host, chip)
    planned = network(Answer("ok", {"ipaddr": entry.get("address"), "netmask": entry.get("netmask")}))
    way = address(fleet.answer(host, chip, "gateway").word("gateway"))
    if planned is None or planned == network(fleet.answer(host, chip, "ip")):
        return False
    return way is not None and way in planned


# Switch ---------------------------------------------------------------------------------------------------------------

_LLDP = Words(
    "chip {chips} of {host} sees no switch (LLDP), other chips of the fleet do",
    "check the cable of the chip; is LLDP on at that switch port?",
    "{host} 芯片 {chips} 看不到交换机（LLDP），而其他芯片可以",
    "检查该芯片的线缆；该交换机端口是否启用了 LLDP？",
)
_LLDP_NONE = Words(
    "no chip sees a switch (LLDP): it is off there, or the hosts are cabled to one another without a switch",
    "set pd_topology: back_to_back if there is no switch; else turn LLDP on, so that cabling can be checked",
    "没有任何芯片能看到交换机（LLDP）：交换机未启用 LLDP，或主机之间直连而没有交换机",
    "若没有交换机请设置 pd_topology: back_to_back；否则启用 LLDP 以便检查布线",
)


def lldp(fleet: Fleet, say: Say) -> None:
    hosts = [host for host in say.hosts if fleet.roce_used(host)]
    blind: dict[str, list[int]] = {}
    seeing: list[Place] = []
    for host in hosts:
        answers = {chip: fleet.answer(host, chip, "lldp") for chip in fleet.chips(host)}
        for chip, answer in list(answers.items()):
            if answer.ok and (answer.word("ifname") or answer.word("system_name")):
                del answers[chip]
                seeing.append(Place(host, chip))
            elif answer.ok or answer.state == "not_configured":
                del answers[chip]
                if fleet.link_down(host, chip):
                    say.blocked(host)
                else:
                    blind.setdefault(host, []).append(chip)
        unread(say, host, fleet.chips(host), "lldp", answers)
    for place in seeing:
        say.ok(*place)
    if fleet.view["topology"] == "back_to_back":
        for host, chips in blind.items():
            for chip in chips:
                say.ok(host, chip)
    elif seeing:
        for host, chips in blind.items():
            say.each("warning", _LLDP, host, chips, fleet.chips(host), expected="a neighbour", found="none")
    elif blind:
        first = next(iter(blind))
        say.warning(_LLDP_NONE, first, expected="a neighbour", found="none", also=[Place(host) for host in blind])


# TLS ------------------------------------------------------------------------------------------------------------------

_SWITCH = {0: "off (0)", 1: "on (1)"}
_TLS_HOST = Words(
    "{host} has TLS {found} on chips {chips}, the other chips have it {expected} ({count} chips of {where}): they cannot link",
    "on {host}: `for i in {list}; do hccn_tool -i $i -tls -s enable {switch}; done`",
    "{host} 芯片 {chips} 的 TLS 为 {found}，其余芯片为 {expected}（{where} 的 {count} 个芯片）：无法互连",
    "在 {host} 上执行：`for i in {list}; do hccn_tool -i $i -tls -s enable {switch}; done`",
)
_TLS_CHIP = Words(
    "chip {chip} of {host} has TLS {found}, the other chips have it {expected} ({count} chips of {where}): they cannot link",
    "on {host}: `hccn_tool -i {chip} -tls -s enable {switch}`",
    "{host} 芯片 {chip} 的 TLS 为 {found}，其余芯片为 {expected}（{where} 的 {count} 个芯片）：无法互连",
    "在 {host} 上执行：`hccn_tool -i {chip} -tls -s enable {switch}`",
)
_TLS_SPLIT = Words(
    "TLS is on and off in equal parts, and such chips cannot link: {found}",
    "choose one for all chips of all hosts: `for i in {list}; do hccn_tool -i $i -tls -s enable 0; done`",
    "TLS 开与关各占一半，二者无法互连：{found}",
    "为所有主机的所有芯片统一设置：`for i in {list}; do hccn_tool -i $i -tls -s enable 0; done`",
)


def tls_equal(fleet: Fleet, say: Say) -> None:
    values: dict[Place, int] = {}
    for host in say.hosts:
        answers = {chip: fleet.answer(host, chip, "tls") for chip in fleet.chips(host)}
        for chip, answer in list(answers.items()):
            switch = answer.number("tls_switch") if answer.ok else None
            if switch is not None:
                del answers[chip]
                values[Place(host, chip)] = switch
        unread(say, host, fleet.chips(host), "tls", answers)
    odd = odd_ones(values)
    strangers = {place for places in odd.minority.values() for place in places} if odd else set()
    if odd is not None and odd.usual is None:
        strangers |= set(odd.majority)
        _tls_split(fleet, say, values, odd.majority)
    elif odd is not None:
        where = names((place.host for place in odd.majority), 4)
        for value, places in odd.minority.items():
            for host, chips in grouped_by_host(places).items():
                common: dict[str, t.Any] = {
                    "expected": _SWITCH.get(odd.usual, odd.usual),
                    "found": _SWITCH.get(value, value),
                    "switch": odd.usual,
                    "count": len(odd.majority),
                    "where": where,
                }
                if len(chips) > 1 and len(chips) == len(fleet.chips(host)):
                    also = [Place(host, chip) for chip in chips]
                    listed = " ".join(map(str, chips))
                    say.error(_TLS_HOST, host, also=also, chips=numbers(chips), list=listed, **common)
                else:
                    for chip in chips:
                        say.error(_TLS_CHIP, host, chip, **common)
    for place in values:
        if place not in strangers:
            say.ok(*place)


def _tls_split(fleet: Fleet, say: Say, values: t.Mapping[Place, int], majority: list[Place]) -> None:
    camps: dict[int, list[str]] = {}
    for place, value in values.items():
        camps.setdefault(value, []).append(place.host)
    found = "; ".join(f"{_SWITCH.get(value, value)}: {names(hosts)}" for value, hosts in sorted(camps.items()))
    first = next(place for place in values if place not in set(majority))
    listed = " ".join(map(str, fleet.planned_chips(first.host)))
    everywhere = list(dict.fromkeys(Place(place.host) for place in values))
    one = first.chip if len(everywhere) == 1 else None
    also = list(values) if len(everywhere) == 1 else everywhere
    say.error(_TLS_SPLIT, first.host, one, expected="one value", found=found, also=also, list=listed)


def grouped_by_host(places: t.Iterable[Place]) -> dict[str, list[int]]:
    """Chips by their host."""
    out: dict[str, list[int]] = {}
    for place in places:
        assert place.chip is not None
        out.setdefault(place.host, []).append(place.chip)
    return out


_RENEW = "renew it on {host} (`hccn_tool -i {first} -tls -s ...`), or turn TLS off on all chips of all hosts"
_RENEW_ZH = "在 {host} 上更新证书（`hccn_tool -i {first} -tls -s ...`），或在所有主机的所有芯片上关闭 TLS"
_EXPIRES = Words(
    "the TLS certificate of chip {chips} of {host} expires soon",
    _RENEW,
    "{host} 芯片 {chips} 的 TLS 证书即将过期",
    _RENEW_ZH,
)
_EXPIRED = Words(
    "the TLS certificate of chip {chips} of {host} has expired",
    _RENEW,
    "{host} 芯片 {chips} 的 TLS 证书已过期",
    _RENEW_ZH,
)
_EXPIRY: dict[str, tuple[Severity, Words]] = {
    "1": ("warning", _EXPIRES),
    "near expiration": ("warning", _EXPIRES),
    "2": ("error", _EXPIRED),
    "has expired": ("error", _EXPIRED),
    "expired": ("error", _EXPIRED),
}


def tls_certificate(fleet: Fleet, say: Say) -> None:
    for host in say.hosts:
        ends: list[tuple[int, str]] = []
        for chip in fleet.chips(host):
            answer = fleet.answer(host, chip, "tls")
            # Without TLS a certificate is not used; whether TLS can be read is what tls-equal says.
            if not answer.ok or answer.number("tls_switch") != 1:
                continue
            state = (answer.word("cert_expiration") or "").lower().replace("_", " ")
            if state in _EXPIRY:
                ends.append((chip, state))
            else:
                say.ok(host, chip)
        for state, group in grouped(ends).items():
            severity, words = _EXPIRY[state]
            say.each(severity, words, host, group, fleet.chips(host), expected="valid", found=state)
