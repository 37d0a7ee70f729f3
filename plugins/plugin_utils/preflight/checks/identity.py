# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Who a chip is for the others: its address, its super pod, its SDID. None of these may repeat."""

from __future__ import annotations

import collections
import typing as t

from ..fleet import Answer, Fleet, address
from ..verdicts import Place, Words
from .fabric import unread
from .say import Say, grouped, names, odd_ones

_SET = "`hccn_tool -i {first} -ip -s address ADDRESS netmask NETMASK`"
_ADDRESS = {
    "ip": Words(
        "chip {chips} of {host} has no RoCE address",
        f"on {{host}}: {_SET}; every chip needs an address of its own",
        "{host} 芯片 {chips} 没有 RoCE 地址",
        f"在 {{host}} 上执行：{_SET}；每个芯片都需要自己的地址",
    ),
    "vnic": Words(
        "chip {chips} of {host} has no vNIC address",
        "the driver gives it: see `npu-smi info` and dmesg on {host}, then `hccn_tool -i {first} -vnic -g`",
        "{host} 芯片 {chips} 没有 vNIC 地址",
        "该地址由驱动分配：在 {host} 上查看 `npu-smi info` 与 dmesg，然后执行 `hccn_tool -i {first} -vnic -g`",
    ),
}
_ADDRESS_WRONG = Words(
    "the {kind} address of chip {chips} of {host} is none that a chip can have: {found}",
    "on {host}: `hccn_tool -i {first} -{query} -g`, and set it again",
    "{host} 芯片 {chips} 的 {kind} 地址不是芯片可用的地址：{found}",
    "在 {host} 上执行：`hccn_tool -i {first} -{query} -g`，并重新设置",
)
_KINDS = {"vnic": "vNIC", "ip": "RoCE"}


def chip_address(fleet: Fleet, say: Say) -> None:
    if fleet.plane == "ub":
        return
    query = fleet.plane_query()
    kind = _KINDS[query]
    for host in say.hosts:
        chips = fleet.chips(host)
        answers = {chip: fleet.answer(host, chip, query) for chip in chips}
        unset = []
        for chip, answer in list(answers.items()):
            if answer.state == "conf_unreadable":
                # hccn-conf says why.
                del answers[chip]
                say.blocked(host)
            elif answer.state == "not_configured" or (answer.ok and answer.word("ipaddr") is None):
                del answers[chip]
                unset.append(chip)
            elif answer.word("ipaddr") is not None and (not answer.ok or address(answer.word("ipaddr")) is None):
                del answers[chip]
                found = answer.word("ipaddr")
                say.each(
                    "error",
                    _ADDRESS_WRONG,
                    host,
                    [chip],
                    chips,
                    expected="an IPv4 address of one chip",
                    found=found,
                    kind=kind,
                    query=query,
                )
            elif answer.ok:
                del answers[chip]
                say.ok(host, chip)
        # The chip was asked and has told no address, so that nobody could ping it: engines could not reach it either.
        mute = {chip: answers.pop(chip) for chip, one in list(answers.items()) if one.state in ("unknown", "failed")}
        unread(say, host, chips, query, mute, "error")
        unread(say, host, chips, query, answers)
        say.each("error", _ADDRESS[query], host, unset, chips, expected="an address", found="none")


_TWICE = Words(
    "{kind} address {found} is on {places}: a ping of one is answered by the other",
    "give each chip an address of its own; over all hosts: `hccn_tool -i N {query} -g`",
    "{kind} 地址 {found} 同时出现在 {places}：ping 其中一个会由另一个应答",
    "为每个芯片设置各自的地址；在所有主机上查看：`hccn_tool -i N {query} -g`",
)


def address_unique(fleet: Fleet, say: Say) -> None:
    if fleet.plane == "ub":
        return
    twice: set[Place] = set()
    for query in ("vnic", "ip"):
        if query == "vnic" and fleet.plane != "hccs":
            continue
        owners: dict[object, list[Place]] = collections.defaultdict(list)
        for host in say.hosts:
            for chip in fleet.chips(host):
                answer = fleet.answer(host, chip, query)
                ip = address(answer.word("ipaddr")) if answer.ok else None
                if ip is not None:
                    owners[ip].append(Place(host, chip))
                elif query == fleet.plane_query():
                    # chip-address says that there is none.
                    say.blocked(host)
        for found, places in _shared(fleet, owners):
            twice.update(places)
            if query == "ip" and sum(not _misfiled(fleet, place) for place in places) < 2:
                # hccn-conf says whose address is not the one that it should have.
                for place in places:
                    say.blocked(place.host)
                continue
            _same(say, _TWICE, found, places, kind=_KINDS[query], query=f"-{query}")
        if query == fleet.plane_query():
            for places in owners.values():
                if places[0] not in twice:
                    say.ok(*places[0])


def _misfiled(fleet: Fleet, place: Place) -> bool:
    """Whether hccn.conf gives a chip another address than it has."""
    assert place.chip is not None
    filed = address(str(fleet.filed(place.host, place.chip).get("address") or ""))
    return filed is not None and filed != address(fleet.answer(place.host, place.chip, "ip").word("ipaddr"))


def _shared(fleet: Fleet, owners: t.Mapping[t.Any, list[Place]]) -> t.Iterator[tuple[str, list[Place]]]:
    """What several places have that only one may: (the value, places). A host that copies another is one case."""
    by_hosts: dict[tuple[str, ...], dict[object, list[Place]]] = collections.defaultdict(dict)
    for value, places in owners.items():
        if len(places) > 1:
            by_hosts[tuple(place.host for place in places)][value] = places
    for hosts, shared in by_hosts.items():
        whole = len(set(hosts)) > 1 and all(len(fleet.chips(host)) == len(shared) for host in set(hosts))
        if whole and len(shared) > 1:
            yield names(shared, 3), [place for places in shared.values() for place in places]
        else:
            yield from ((str(value), places) for value, places in shared.items())


def _same(say: Say, words: Words, found: str, places: list[Place], **values: t.Any) -> None:
    hosts = list(dict.fromkeys(place.host for place in places))
    if len(places) > 2 and len(hosts) > 1 and len(places) >= 2 * len(hosts):
        # A whole host's worth.
        say.error(
            words,
            hosts[0],
            expected="one owner",
            found=found,
            also=places,
            places=" and ".join(hosts[:2]) if len(hosts) == 2 else names(hosts),
            **values,
        )
        return
    listed = " and ".join(map(str, places)) if len(places) == 2 else names(places)
    say.error(words, *places[0], expected="one owner", found=found, also=places, places=listed, **values)


# Super pod (A3 over HCCS) ---------------------------------------------------------------------------------------------

_POD = Words(
    "{host} is in super pod {found}, the other hosts are in {expected}: HCCS does not reach from one to the other{same}",
    "take {host} out of this cluster or move it; a wrong logical id is set on the super pod's management side",
    "{host} 位于超节点 {found}，其余主机位于 {expected}：HCCS 不能跨超节点{same_zh}",
    "将 {host} 移出本集群或迁移；逻辑 ID 设置有误时在超节点管理侧修改",
)
_POD_SPLIT = Words(
    "the hosts are in different super pods: {found}; HCCS does not reach from one to the other{same}",
    "take the hosts of one super pod for a cluster; a wrong logical id is set on the super pod's management side",
    "主机位于不同的超节点：{found}；HCCS 不能跨超节点{same_zh}",
    "一个集群应使用同一超节点的主机；逻辑 ID 设置有误时在超节点管理侧修改",
)
_POD_CHIP = Words(
    "chip {chip} of {host} says super pod {found}, the other chips say {expected}",
    "on {host}: `npu-smi info -t spod-info -i {card} -c {die}`; restart the driver if one chip differs",
    "{host} 芯片 {chip} 的超节点 ID 为 {found}，其余芯片为 {expected}",
    "在 {host} 上执行：`npu-smi info -t spod-info -i {card} -c {die}`；若仅个别芯片不同请重启驱动",
)


def _used(fleet: Fleet) -> bool:
    """Super pods matter where chips talk over HCCS between hosts."""
    return fleet.hardware == "a3" and fleet.plane == "hccs"


def _spod(fleet: Fleet, say: Say, field: str, complain: bool) -> dict[Place, int]:
    """A number of spod-info for every chip that tells it; 0 is one. The others are unknown once, not once per field."""
    values: dict[Place, int] = {}
    for host in say.hosts:
        chips = fleet.present_chips(host)
        answers: dict[int, Answer] = {}
        for chip in chips:
            answer = fleet.answer(host, chip, "spod")
            number = answer.number(field) if answer.ok else None
            if number is not None:
                values[Place(host, chip)] = number
            else:
                answers[chip] = answer
        # npu-smi says that the tool does not work; chip-answers, that a chip hangs and was left alone; super-pod, that
        # nothing of this chip can be read.
        mute = fleet.mute_chips(host)
        works = fleet.smi_state(host) == "ok"
        told = {
            chip
            for chip, one in answers.items()
            if not works
            or (one.state == "timeout" and chip in mute)
            or (not complain and one.number("super_pod_id") is None)
        }
        if told:
            say.blocked(host)
        _spod_unread(say, host, chips, {chip: one for chip, one in answers.items() if chip not in told})
    return values


def _pods(fleet: Fleet, say: Say) -> dict[Place, int]:
    """The super pod of every chip that tells it."""
    found = {}
    for host in say.hosts:
        for chip in fleet.present_chips(host):
            answer = fleet.answer(host, chip, "spod")
            pod = answer.number("super_pod_id") if answer.ok else None
            if pod is not None:
                found[Place(host, chip)] = pod
    return found


_SPOD_UNREAD = Words(
    "the super pod information of chip {chips} of {host} cannot be read ({found}): {text}",
    "on {host}: `npu-smi info -t spod-info -i {card} -c {die}`",
    "无法读取 {host} 芯片 {chips} 的超节点信息（{found}）：{text}",
    "在 {host} 上执行：`npu-smi info -t spod-info -i {card} -c {die}`",
)


def _spod_unread(say: Say, host: str, chips: t.Sequence[int], answers: t.Mapping[int, Answer]) -> None:
    for (state, text), group in grouped((chip, (one.state, one.text)) for chip, one in answers.items()).items():
        found = "unreadable" if state == "ok" else state
        say.each("unknown", _SPOD_UNREAD, host, group, chips, expected="an id", found=found, text=text or "no text")


def _per_host(values: t.Mapping[Place, int]) -> dict[Place, int]:
    """The value of each host: that of most of its chips."""
    counts: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    for place, value in values.items():
        counts[place.host][value] += 1
    return {Place(host): counter.most_common(1)[0][0] for host, counter in counts.items()}


def super_pod(fleet: Fleet, say: Say) -> None:
    if not _used(fleet):
        return
    values = _spod(fleet, say, "super_pod_id", complain=True)
    hosts = _per_host(values)
    bad: set[Place] = set()
    for place, value in values.items():
        usual = hosts[Place(place.host)]
        if value != usual:
            bad.add(place)
            say.error(_POD_CHIP, *place, expected=usual, found=value)
    odd = odd_ones(hosts)
    if odd is not None:
        sdids = {place: fleet.answer(*_asked(place)).number("sdid") for place in values}
        if odd.usual is None:
            camps = {hosts[odd.majority[0]]: odd.majority, **odd.minority}
            found = "; ".join(f"{pod}: {names(p.host for p in places)}" for pod, places in sorted(camps.items()))
            first = next(iter(odd.minority.values()))[0]
            same = _same_sdids(sdids, first.host)
            bad.update(hosts)
            say.error(
                _POD_SPLIT, first.host, expected="one super pod", found=found, also=hosts, same=same[0], same_zh=same[1]
            )
        else:
            for pod, places in odd.minority.items():
                for place in places:
                    bad.add(place)
                    same = _same_sdids(sdids, place.host)
                    say.error(_POD, place.host, expected=odd.usual, found=pod, same=same[0], same_zh=same[1])
    for place in values:
        if place not in bad and Place(place.host) not in bad:
            say.ok(*place)


def _same_sdids(sdids: t.Mapping[Place, int | None], host: str) -> tuple[str, str]:
    """Ids repeat from pod to pod, which makes a host of another pod look like one of this."""
    own = {sdid for place, sdid in sdids.items() if place.host == host and sdid is not None}
    others = list(dict.fromkeys(place.host for place, sdid in sdids.items() if place.host != host and sdid in own))
    if not others:
        return "", ""
    return f"; its chips have the SDIDs of {names(others)}", f"；其芯片的 SDID 与 {names(others)} 相同"


_INDEX = Words(
    "{hosts} have the same server index {found} in super pod {pod}",
    "see the super pod's management side: every host has an index of its own",
    "{hosts} 在超节点 {pod} 中的 Server Index 相同：{found}",
    "在超节点管理侧检查：每台主机应有各自的 Server Index",
)


def server_index(fleet: Fleet, say: Say) -> None:
    if not _used(fleet):
        return
    pods = _per_host(_pods(fleet, say))
    indexes = _per_host(_spod(fleet, say, "server_index", complain=False))
    owners: dict[tuple[int | None, int], list[Place]] = collections.defaultdict(list)
    for place, index in indexes.items():
        owners[pods.get(place), index].append(place)
    for (pod, index), places in owners.items():
        if len(places) == 1:
            say.ok(places[0].host)
        else:
            listed = names(place.host for place in places)
            say.error(
                _INDEX,
                places[0].host,
                expected="one host",
                found=index,
                also=places,
                hosts=listed,
                pod="?" if pod is None else pod,
            )


def _indexes(fleet: Fleet, say: Say) -> dict[Place, int]:
    """The server index of every chip that tells it; server-index complains of the others."""
    numbers = {place: fleet.answer(*_asked(place)).number("server_index") for place in _pods(fleet, say)}
    return {place: number for place, number in numbers.items() if number is not None}


def _asked(place: Place) -> tuple[str, int, str]:
    assert place.chip is not None
    return place.host, place.chip, "spod"


_SDID = Words(
    "SDID {found} is on {places} in super pod {pod}",
    "see the super pod's management side and `npu-smi info -t spod-info`: every die has an SDID of its own",
    "超节点 {pod} 中 SDID {found} 同时出现在 {places}",
    "在超节点管理侧与 `npu-smi info -t spod-info` 中检查：每个芯片应有各自的 SDID",
)


def sdid_unique(fleet: Fleet, say: Say) -> None:
    """Within one super pod: between pods SDIDs repeat, and super-pod tells that."""
    if not _used(fleet):
        return
    pods = _pods(fleet, say)
    indexes = _per_host(_indexes(fleet, say))
    per_pod: dict[int | None, dict[int, list[Place]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for place, sdid in _spod(fleet, say, "sdid", complain=False).items():
        per_pod[pods.get(place)][sdid].append(place)
    for pod, owners in per_pod.items():
        for places in owners.values():
            if len(places) == 1:
                say.ok(*places[0])
        for found, places in _shared(fleet, owners):
            hosts = {place.host for place in places}
            numbers = {indexes.get(Place(host)) for host in hosts}
            if len(hosts) > 1 and len(numbers) == 1 and None not in numbers:
                # An SDID is made of the server index: hosts that share that share these, and server-index tells it.
                for host in hosts:
                    say.blocked(host)
            else:
                _same(say, _SDID, found, places, pod="?" if pod is None else pod)
