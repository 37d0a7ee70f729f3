# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Reads what hccn_tool prints: the queries of A2 and A3 (``-i N -WHAT -g``) and of A5 (``-g -WHAT -i N``).

All functions are pure, take the text as it was printed, and never raise; see ``answers`` for what they return.
Newer drivers may add to the long answers; the short ones have been the same for years, so anything else in them is a
sign that two answers were mixed or that the text is another one, and makes them unknown.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import (
    NOT_CONFIGURED,
    OK,
    UNKNOWN,
    Answer,
    Result,
    fault_of,
    is_address,
    is_ipv4,
    is_netmask,
    is_own_address,
    is_unset,
    listen,
)

LINK_STATES = ("UP", "DOWN")

NET_HEALTH_STATES = (
    "Success",
    "Socket fail",
    "Receive timeout",
    "Unreachable",
    "Time exceeded",
    "Fault",
    "Init",
    "Thread error",
    "Detect ip set",
    "Unknown",
)
"""Everything that the tool calls the health of a port. Only the first is good."""

UB_LINK_STATES = ("UP", "DOWN", "PARTIAL LINK", "NA")
UB_PORT_STATES = ("UP", "DOWN", "PARTIAL LINK", "PARTIAL UP", "INITIAL")

CERT_EXPIRATION = ("normal", "near expiration", "has expired")
"""The states of a certificate, by the tool's number, from good to bad."""

Parser = t.Callable[[str, t.Optional[int]], Result]


# ---------------------------------------------------------------------------------------------------------------------
# Short answers
# ---------------------------------------------------------------------------------------------------------------------


def parse_link(text: str, chip: int | None = None) -> Result:
    """``-link -g``: *link* is UP or DOWN. Exits with 0 in both cases."""
    return _one_of(listen(text), "link status", "link", LINK_STATES)


def parse_net_health(text: str, chip: int | None = None) -> Result:
    """``-net_health -g``: *net_health* is one of ``NET_HEALTH_STATES``. ``Init`` where no address is to be probed."""
    return _one_of(listen(text), "net health status", "net_health", NET_HEALTH_STATES)


def _one_of(answer: Answer, label: str, field: str, values: t.Collection[str]) -> Result:
    pairs = answer.pairs()
    good = pairs is not None and len(pairs) == 1 and pairs[0][0] == label and pairs[0][1] in values
    return answer.settled({field: pairs[0][1]} if good and pairs else None)


def parse_netdetect(text: str, chip: int | None = None) -> Result:
    """``-netdetect -g``: *netdetect* is the address that the chip probes. 0.0.0.0 is what drivers show for none."""
    answer = listen(text)
    pairs = answer.pairs()
    # A5's tool says "addr".
    if not answer.complete or pairs is None or len(pairs) != 1:
        return answer.refused()
    label, value = pairs[0]
    if label not in ("netdetect address", "netdetect addr"):
        return answer.refused()
    if is_unset(value):
        return answer.refused(NOT_CONFIGURED, netdetect=None)
    return answer.settled({"netdetect": value} if is_address(value) else None)


_GATEWAY = re.compile(r"\s*default gateway\s*:\s*([0-9.]+)\s*,\s*Iface\s*:\s*([A-Za-z][\w.-]*)\s*", re.ASCII)


def parse_gateway(text: str, chip: int | None = None) -> Result:
    """``-gateway -g``: *gateway* and *iface*. None is no fault by itself where all chips share one network."""
    answer = listen(text)
    match = _GATEWAY.fullmatch(answer.lines[0]) if len(answer.lines) == 1 and answer.complete else None
    if match and is_unset(match.group(1)):
        return answer.refused(NOT_CONFIGURED, gateway=None)
    good = match is not None and is_address(match.group(1))
    result = answer.settled({"gateway": match.group(1), "iface": match.group(2)} if match and good else None)
    return _named_null(result, "gateway")


def parse_ip(text: str, chip: int | None = None) -> Result:
    """``-ip -g``: *ipaddr* and *netmask* of the RoCE port."""
    answer = listen(text)
    pairs = answer.pairs()
    if pairs is None or [label for label, _value in pairs] != ["ipaddr", "netmask"]:
        return _named_null(answer.refused(), "ipaddr")
    return _named_null(_address(answer, pairs[0][1], pairs[1][1], {}), "ipaddr")


def _address(answer: Answer, address: str, netmask: str, more: t.Mapping[str, t.Any]) -> Result:
    if is_unset(address) and not answer.fault:
        return answer.refused(NOT_CONFIGURED, ipaddr=None, **more)
    if not is_ipv4(address) or not is_netmask(netmask):
        return answer.settled(None)
    fields = {**more, "ipaddr": address, "netmask": netmask}
    if is_address(address) and is_own_address(address, netmask):
        return answer.settled(fields)
    # It was read, and no chip can have it.
    return answer.refused(UNKNOWN, **fields)


def _named_null(result: Result, field: str) -> Result:
    """An address that is not configured is given as null, so that nobody takes an empty text for one."""
    return {**result, field: None} if result["state"] == NOT_CONFIGURED else result


def parse_vnic(text: str, chip: int | None = None) -> Result:
    """``-vnic -g`` (A3): *link* of the vNIC (not of the RoCE port), *ipaddr* and *netmask*.

    Without lines of an address it has none, whether it is up or down.
    """
    answer = listen(text)
    pairs = answer.pairs() or []
    labels = [label for label, _value in pairs]
    if not pairs or pairs[0][0] != "vnic link status" or pairs[0][1] not in LINK_STATES:
        return answer.refused()
    link = {"link": pairs[0][1]}
    if labels == ["vnic link status", "vnic ipaddr", "vnic netmask"]:
        return _address(answer, pairs[1][1], pairs[2][1], link)
    if labels == ["vnic link status"] and answer.complete and not answer.fault:
        return answer.refused(NOT_CONFIGURED, ipaddr=None, **link)
    return answer.refused()


# ---------------------------------------------------------------------------------------------------------------------
# LLDP and TLS
# ---------------------------------------------------------------------------------------------------------------------

_IFNAME = re.compile(r"\s*Ifname\s*:\s*(\S+)\s*", re.IGNORECASE)


def parse_lldp(text: str, chip: int | None = None) -> Result:
    """``-lldp -g``: *ifname* and *system_name* of the switch port.

    Nothing at all is printed where the switch has no LLDP or hosts are cabled to one another: not configured.
    """
    answer = listen(text)
    if not answer.lines:
        # A tool that has printed nothing whatsoever and one that has ended its answer with an empty line are alike.
        return answer.refused(NOT_CONFIGURED, ifname=None, system_name=None)
    names = [match.group(1) for match in map(_IFNAME.fullmatch, answer.lines) if match]
    labelled = [line for line in answer.lines if re.match(r"\s*Ifname\b", line, re.IGNORECASE)]
    headings = [index for index, line in enumerate(answer.lines) if line.strip() == "System Name TLV"]
    systems = [answer.lines[index + 1].strip() for index in headings if index + 1 < len(answer.lines)]
    systems = [name for name in systems if name and not name.endswith(" TLV")]
    repeated = len(labelled) > 1 or len(headings) > 1 or len(names) != len(labelled)
    if repeated or not answer.complete or not (names or systems):
        return answer.refused()
    fields = {"ifname": names[0] if names else None, "system_name": systems[0] if systems else None}
    # Descriptions of switches are free text, so only what is no TLV at all counts as a refusal.
    inside = any(line.rstrip().endswith("TLV") for line in answer.lines)
    return {"state": OK, **fields} if inside else answer.settled(fields)


_TLS = re.compile(r"(?:dev_id\s*:|device)\s*([0-9]+), tls switch\[([01])\]\(0:disable, 1:enable\)(?:,.*)?")
_TLS_PRESET = re.compile(r"tls preconfigured\[([01])\]")
_TLS_ALARM = re.compile(r"tls alarm time threshold\[([0-9]+)\]\s*days")
_CERT = re.compile(r"(?:dev_id\s*:|device)\s*([0-9]+), \[([\w ]+) cert\] info:", re.ASCII)
_CERT_STATE = re.compile(r"tls expiration status\[([0-2])\]\(.*\)")
_CERT_END = re.compile(r"end_time\[(.+)\]")


def parse_tls(text: str, chip: int | None = None) -> Result:
    """``-tls -g`` of one chip: *tls_switch* is 0 or 1.

    *preconfigured* (0 or 1) is null with old drivers, *certificates* counts those shown (null: nothing is said of any) and
    *cert_expiration* is the worst state among them (``CERT_EXPIRATION``), null where the driver does not say.
    """
    answer = listen(text)
    # Next to the switch this is no refusal: only the switch has to agree between chips.
    kept = [line.strip() for line in answer.lines if "no certificate found" not in line.lower()]
    first = _TLS.fullmatch(kept[0]) if kept and answer.complete else None
    if first is None or (chip is not None and int(first.group(1)) != chip):
        # Beside a switch that cannot be read, a missing certificate says nothing.
        result = answer.refused(UNKNOWN if first is not None else fault_of(kept) or (UNKNOWN if kept else None))
        return {**result, "tls_switch": None} if result["state"] == NOT_CONFIGURED else result
    certificates = _certificates(kept[1:], first.group(1))
    if certificates is None:
        return answer.refused(UNKNOWN)
    states = [CERT_EXPIRATION[state] for state in sorted(certificates) if state >= 0]
    preset, alarm = _TLS_PRESET.search(kept[0]), _TLS_ALARM.search(kept[0])
    return {
        "state": OK,
        "tls_switch": int(first.group(2)),
        "preconfigured": int(preset.group(1)) if preset else None,
        "alarm_days": int(alarm.group(1)) if alarm else None,
        "certificates": len(certificates) if certificates or len(kept) < len(answer.lines) else None,
        "cert_expiration": states[-1] if states else None,
    }


def _certificates(lines: t.Sequence[str], device: str) -> list[int] | None:
    """The expiration state of every certificate, -1 where none is shown; None when a block is cut or another's."""
    blocks: list[list[str]] = []
    for line in lines:
        match = _CERT.fullmatch(line)
        if match:
            if match.group(1) != device:
                return None
            blocks.append([])
        elif not blocks or not re.match(
            r"(?:subject|issuer|start_time|end_time|tls expiration status)\[.*[\])]$", line
        ):
            return None
        else:
            blocks[-1].append(line)
    found = []
    for block in blocks:
        states = [match for match in map(_CERT_STATE.fullmatch, block) if match]
        if len(states) > 1 or sum(1 for line in block if _CERT_END.fullmatch(line)) != 1:
            return None
        found.append(int(states[0].group(1)) if states else -1)
    # Either the driver shows the state of all certificates or of none: a last one without it was cut off.
    return None if len({state < 0 for state in found}) > 1 else found


def parse_tls_loop(text: str) -> dict[int, Result]:
    """The switch lines of several chips, as the loop of the tutorial prints them: chip → answer."""
    found: dict[int, list[str]] = {}
    for line in listen(text).lines:
        match = re.match(r"\s*(?:dev_id\s*:|device)\s*([0-9]+),", line)
        if match:
            found.setdefault(int(match.group(1)), []).append(line + "\n")
    return {chip: parse_tls("".join(lines), chip) for chip, lines in found.items()}


_LOOP = re.compile(r"\s*chip\s+([0-9]+)\s*")


def split_loop(text: str) -> dict[int, str]:
    """The answers of several chips, each after a line ``chip N``: chip → its text. What two claim belongs to none."""
    found: dict[int, str] = {}
    twice: set[int] = set()
    chip: int | None = None
    for line in text.replace("\r\n", "\n").splitlines(keepends=True):
        match = _LOOP.fullmatch(line)
        if match:
            chip = int(match.group(1))
            if chip in found:
                twice.add(chip)
            found.setdefault(chip, "")
        elif chip is not None:
            found[chip] += line
    return {chip: "" if chip in twice else said for chip, said in found.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Pings
# ---------------------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"device ([0-9]+) PING (\S+)")
_FOOTER = re.compile(r"([0-9]+) packets transmitted, ([0-9]+) received, ([0-9]+(?:\.[0-9]+)?)% packets? loss")
_ROCE_PACKET = re.compile(r"recv seq=([0-9]+),\s*time=([0-9]+(?:\.[0-9]+)?)ms")
_HCCS_PACKET = re.compile(
    r"recv seq ([0-9]+), time = ([0-9]+(?:\.[0-9]+)?)us, L1 plane check result = (0x[0-9a-fA-F]+)"
)
_HCCS_GOOD = "This pkt ping success!"
_HCCS_TIME = re.compile(r"(max|min|average|TP95) time ([0-9]+\.[0-9]{3})us")
_PROBLEMS = (
    "recv time out",
    "Destination Host Unreachable",
    "Message too long",
    "This pkt ping not start to send!",
    "This pkt send fail!",
    "This pkt check recv msg fail!",
)


class _Cut(Exception):
    """The output of a ping does not add up."""


def parse_ping(text: str, chip: int | None = None, target: str | None = None) -> Result:
    """``-ping -g address X`` and ``-hccs_ping -g address X``, also of pings that fail.

    ``ok`` says that the numbers are known, not that they are good: *target*, *sent*, *received*, *loss_percent*,
    *l1_plane* (one number per packet; HCCS only), *max_us*, *min_us*, *average_us*, *p95_us* (microseconds, null
    where the tool does not say) and *problems* (the sentences by which it has told of lost packets).
    Lines out of order, packets that do not add up, or the ping of another chip or target make it unknown.
    """
    answer = listen(text)
    lines = [line.strip() for line in answer.lines]
    footers = [index for index, line in enumerate(lines) if _FOOTER.fullmatch(line)]
    if not footers:
        return answer.refused()
    try:
        fields = _read_ping(lines, footers, chip, target)
    except _Cut:
        return answer.refused(UNKNOWN)
    # Where packets were lost, the tool ends with one of its refusals after the numbers.
    rest = lines[footers[0] + 1 :]
    if fields["received"] == fields["sent"] and any(_HCCS_TIME.fullmatch(line) is None for line in rest):
        return answer.refused(UNKNOWN)
    return {"state": OK, **fields}


def _read_ping(lines: list[str], footers: list[int], chip: int | None, target: str | None) -> Result:
    header = _HEADER.fullmatch(lines[0])
    footer = _FOOTER.fullmatch(lines[footers[0]])
    if header is None or footer is None or len(footers) > 1 or not is_address(header.group(2)):
        raise _Cut
    if (chip is not None and int(header.group(1)) != chip) or (target is not None and header.group(2) != target):
        raise _Cut
    sent, received, loss = int(footer.group(1)), int(footer.group(2)), float(footer.group(3))
    # The tool rounds to two digits.
    if sent == 0 or received > sent or abs(loss - 100.0 * (sent - received) / sent) > 0.0101:
        raise _Cut
    body = lines[1 : footers[0]]
    hccs = any(_HCCS_PACKET.fullmatch(line) or line.startswith("This pkt") for line in body)
    times, plane = _hccs_packets(body, sent, received) if hccs else (_roce_packets(body, received), [])
    said = _hccs_times(lines[footers[0] + 1 :])
    problems = [sentence for sentence in _PROBLEMS if any(sentence in line for line in lines)]
    computed = {"max": max(times), "min": min(times), "average": sum(times) / len(times)} if times and not hccs else {}
    values = {**computed, **said}
    return {
        "target": header.group(2),
        "sent": sent,
        "received": received,
        "loss_percent": loss,
        "l1_plane": plane,
        **{
            field: round(values[name], 3) if name in values else None
            for field, name in (("max_us", "max"), ("min_us", "min"), ("average_us", "average"), ("p95_us", "TP95"))
        },
        "problems": problems,
    }


def _roce_packets(body: list[str], received: int) -> list[float]:
    """Microseconds of every packet that came back; each other line must tell of a loss."""
    packets = []
    for line in body:
        match = _ROCE_PACKET.fullmatch(line)
        if match:
            packets.append((int(match.group(1)), float(match.group(2)) * 1000.0))
        elif not any(sentence in line for sentence in _PROBLEMS):
            raise _Cut
    numbers = [number for number, _time in packets]
    if len(packets) != received or numbers != sorted(set(numbers)):
        raise _Cut
    return [time for _number, time in packets]


def _hccs_packets(body: list[str], sent: int, received: int) -> tuple[list[float], list[int]]:
    """Times of the packets that came back and the plane value of all. Each packet has two lines, good or bad."""
    times: list[float] = []
    plane: list[int] = []
    good: bool | None = None
    for line in body:
        match = _HCCS_PACKET.fullmatch(line)
        if match and good is not None and int(match.group(1)) == len(plane):
            plane.append(int(match.group(3), 16))
            times += [float(match.group(2))] if good else []
            good = None
        elif good is None and (line == _HCCS_GOOD or line in _PROBLEMS):
            good = line == _HCCS_GOOD
        else:
            raise _Cut
    if good is not None or len(plane) != sent or len(times) != received:
        raise _Cut
    return times, plane


def _hccs_times(rest: list[str]) -> dict[str, float]:
    """What follows the numbers of an HCCS ping: all four times, or (not by a cut) none."""
    found = {}
    for line in rest:
        match = _HCCS_TIME.fullmatch(line)
        if match and match.group(1) not in found:
            found[match.group(1)] = float(match.group(2))
        elif match or " time " in line:
            raise _Cut
    if len(found) not in (0, 4):
        raise _Cut
    return found


# ---------------------------------------------------------------------------------------------------------------------
# A5
# ---------------------------------------------------------------------------------------------------------------------


def parse_ub_link(text: str, chip: int | None = None) -> Result:
    """``-g -link -i N -u UDIE -p PORT`` of A5: *link* is one of ``UB_LINK_STATES``, *ports* a state per port shown."""
    answer = listen(text)
    pairs = answer.pairs()
    if not pairs or pairs[0][0] != "link status" or pairs[0][1] not in UB_LINK_STATES:
        return answer.refused()
    ports: dict[str, str] = {}
    for label, value in pairs[1:]:
        match = re.fullmatch(r"port ([0-9]+)", label)
        if match is None or match.group(1) in ports or value not in UB_PORT_STATES:
            return answer.refused(UNKNOWN)
        ports[match.group(1)] = value
    return answer.settled({"link": pairs[0][1], "ports": ports})


_BORDER = re.compile(r"\+[-=+]+\+")
_PORT_COLUMNS = {
    "udieid": "udie",
    "portid": "port",
    "speed": "speed_gbps",
    "speedability(gbps)": "speed_gbps",
    "porttype": "type",
    "linkstatus": "link",
    "mediatype": "media",
}
_EID = re.compile(r"[0-9a-fA-F]{4}(?::[0-9a-fA-F]{4}){7}")


def parse_dev_info(text: str, chip: int | None = None) -> Result:
    """``-g -dev_info -i N`` of A5: *ports* (udie, port, speed_gbps, type, link, media) and *eids* (name → EIDs)."""
    answer = listen(text)
    tables = _tables(answer)
    if tables is None:
        return answer.refused()
    ports: list[Result] | None = None
    eids: dict[str, list[str]] = {}
    for head, rows in tables:
        columns = ["".join(cell.split()).lower() for cell in head]
        if columns[:2] == ["udieid", "portid"]:
            if ports is not None:
                return answer.refused(UNKNOWN)
            ports = [_port(columns, row) for row in rows]
        elif columns == ["name", "eidindex", "eid"]:
            name = ""
            for row in rows:
                name = row[0] or name
                if not name or not _EID.fullmatch(row[2]):
                    return answer.refused(UNKNOWN)
                eids.setdefault(name, []).append(row[2])
    if ports is None or not all(ports):
        return answer.refused()
    return answer.settled({"ports": ports, "eids": eids})


def _port(columns: list[str], row: list[str]) -> Result:
    """One row of the table of ports; empty when it cannot be read."""
    cells = {_PORT_COLUMNS[column]: cell for column, cell in zip(columns, row) if column in _PORT_COLUMNS}
    if cells.get("link") not in UB_PORT_STATES or not all(cells.get(key, "").isdecimal() for key in ("udie", "port")):
        return {}
    speed = cells.get("speed_gbps", "")
    return {
        "udie": int(cells["udie"]),
        "port": int(cells["port"]),
        "speed_gbps": int(speed) if speed.isdecimal() else None,
        "type": cells.get("type"),
        "link": cells["link"],
        "media": cells.get("media"),
    }


def _tables(answer: Answer) -> list[tuple[list[str], list[list[str]]]] | None:
    """The tables of an answer as (header, rows); None when something stands outside of them or the last one is cut."""
    found: list[tuple[list[str], list[list[str]]]] = []
    borders: set[str] = set()
    pending: list[str] = []
    for line in map(str.strip, answer.lines):
        if _BORDER.fullmatch(line):
            pending.append(line)
            continue
        if not (pending or found) or not (len(line) > 1 and line[0] == line[-1] == "|"):
            return None
        cells = [cell.strip() for cell in line[1:-1].split("|")]
        # Every table has a border of its own above its header.
        if not found or len(pending) == 2:
            found.append((cells, []))
            borders = {pending[-1]}
        elif len(cells) == len(found[-1][0]):
            found[-1][1].append(cells)
            borders.update(pending)
        else:
            return None
        pending = []
    # A border that was cut at one of its crossings equals none above it.
    return found if len(pending) == 1 and pending[0] in borders else None


QUERIES: t.Mapping[str, Parser] = {
    "lldp": parse_lldp,
    "link": parse_link,
    "net_health": parse_net_health,
    "netdetect": parse_netdetect,
    "gateway": parse_gateway,
    "ip": parse_ip,
    "vnic": parse_vnic,
    "tls": parse_tls,
    "dev_info": parse_dev_info,
}
"""What can be asked of a chip by one call, and who reads the answer."""
