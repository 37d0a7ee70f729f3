# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Files about the chips' network: /etc/hccn.conf and the endpoint files of Host RoCE.

Nothing that a host has is replaced unless that was asked for, and no address is written that the host does not have.
"""

from __future__ import annotations

import dataclasses
import difflib
import fcntl
import ipaddress
import json
import os
import re
import socket
import struct
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import answers, hccn_conf

ENDPOINT_NAME = re.compile(r"ub_endpoint_npu_(\d+)\.json\Z")
HCCN_KEYS = ("address", "netmask", "netdetect", "gateway", "send_arp_status")
"""Keys of hccn.conf that are written, in the order in which the driver's own tool has them; N is the physical id."""
_SIOCGIFADDR = 0x8915
REHEARSED_ADDRESSES = "/opt/pd_rehearsal/addresses.json"


class NpuFileError(Exception):
    """All that is wrong, one fault a line."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A file as it shall be. content is written when what the file says now differs from it."""

    path: str
    content: str


# ---------------------------------------------------------------------------------------------------------------------
# Addresses of this host
# ---------------------------------------------------------------------------------------------------------------------


def local_addresses(proc: str = "/proc") -> set[str]:
    """IPv4 addresses of this host, without loopback: entries of the kernel's table that are "host LOCAL"."""
    found: set[str] = set()
    address = ""
    with open(f"{proc}/net/fib_trie", encoding="ascii") as stream:
        for line in stream:
            words = line.split()
            if words[:1] == ["|--"]:
                address = words[1]
            elif words == ["/32", "host", "LOCAL"]:
                found.add(address)
    return {each for each in found if not ipaddress.ip_address(each).is_loopback}


def rdma_addresses(sys_class: str = "/sys/class", address_of: t.Callable[[str], str | None] | None = None) -> list[str]:
    """First IPv4 address of each card that has an RDMA device, in ascending order of the addresses."""
    cards: set[str] = set()
    base = f"{sys_class}/infiniband"
    for device in os.listdir(base) if os.path.isdir(base) else []:
        folder = f"{base}/{device}/device/net"
        cards.update(os.listdir(folder) if os.path.isdir(folder) else [])
    found = {address for address in map(address_of or card_address, cards) if address is not None}
    return sorted(found, key=lambda text: int(ipaddress.ip_address(text)))


def card_address(card: str) -> str | None:
    """First IPv4 address of a network card."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", card.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def proposal(chips: t.Iterable[int], addresses: t.Sequence[str]) -> dict[int, str]:
    """Chips and addresses both in ascending order: a guess to be confirmed on the host, never a fact."""
    return dict(zip(sorted(chips), sorted(addresses, key=lambda text: int(ipaddress.ip_address(text)))))


def addresses_here(root: str) -> tuple[set[str] | None, list[str]]:
    """(all addresses, those of cards with RDMA). A rehearsed host has what its file says, or (None) whatever is asked."""
    if not root:
        return local_addresses(), rdma_addresses()
    try:
        with open(root + REHEARSED_ADDRESSES, encoding="utf-8") as stream:
            given = [str(each) for each in json.load(stream)]
    except FileNotFoundError:
        return None, []
    return set(given), given


# ---------------------------------------------------------------------------------------------------------------------
# Endpoint files
# ---------------------------------------------------------------------------------------------------------------------


def endpoint_faults(files: t.Sequence[Wanted], here: set[str] | None) -> list[str]:
    """What is wrong with endpoint files that are to be written; nothing when all of them may be."""
    faults: list[str] = []
    owner: dict[str, str] = {}
    for file in files:
        if ENDPOINT_NAME.search(file.path) is None:
            faults.append(
                f"{file.path}: the name must be ub_endpoint_npu_<physical id>.json, upstream looks for no other"
            )
        try:
            addresses = _comm_ids(file.content)
        except ValueError as problem:
            faults.append(f"{file.path}: {problem}")
            continue
        for address in addresses:
            first = owner.setdefault(address, file.path)
            if first != file.path:
                faults.append(f"{file.path}: comm_id {address} is that of {first} too; each chip has its own")
            if here is not None and address not in here:
                known = ", ".join(sorted(here, key=lambda text: int(ipaddress.ip_address(text)))) or "none"
                faults.append(f"{file.path}: comm_id {address} is no address of this host (it has {known})")
    return faults


def _comm_ids(content: str) -> list[str]:
    """Addresses in an endpoint file. Raises ValueError with what the driver would not take."""
    data = json.loads(content)
    endpoints = data.get("endpoint_list") if isinstance(data, dict) else None
    if not isinstance(endpoints, list) or not endpoints:
        raise ValueError("there is no endpoint_list in it")
    found = []
    for endpoint in endpoints:
        address = endpoint.get("comm_id") if isinstance(endpoint, dict) else None
        try:
            if not isinstance(address, str):
                raise ValueError
            ipaddress.IPv4Address(address)
        except ValueError:
            raise ValueError(f"comm_id {address!r} is no IPv4 address") from None
        found.append(address)
    return found


def same_json(before: str, after: str) -> bool:
    """Whether two texts say the same, however they are laid out."""
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


# ---------------------------------------------------------------------------------------------------------------------
# hccn.conf
# ---------------------------------------------------------------------------------------------------------------------


def hccn_faults(chips: t.Mapping[str, t.Any]) -> list[str]:
    """What is wrong with the wanted chips of hccn.conf."""
    faults = []
    owner: dict[str, str] = {}
    for chip, values in chips.items():
        if not re.fullmatch("[0-9]+", str(chip)):
            faults.append(f"{chip!r} is no physical id of a chip")
        if not isinstance(values, dict) or not {"address", "netmask"} <= set(values):
            faults.append(f"chip {chip}: give at least address and netmask")
            continue
        for key, value in values.items():
            if key not in HCCN_KEYS:
                faults.append(f"chip {chip}: {key} is no key of hccn.conf; known are {', '.join(HCCN_KEYS)}")
            elif key == "send_arp_status":
                if str(value) not in ("0", "1"):
                    faults.append(f"chip {chip}: send_arp_status must be 0 or 1, not {value!r}")
            elif key == "netmask" and not answers.is_netmask(str(value)):
                faults.append(f"chip {chip}: netmask {value!r} is no netmask")
            elif not _is_address(value):
                faults.append(f"chip {chip}: {key} {value!r} is no IPv4 address")
        first = owner.setdefault(str(values["address"]), str(chip))
        if first != str(chip):
            faults.append(f"chips {first} and {chip} have one address, {values['address']}")
    return faults


def _is_address(value: t.Any) -> bool:
    try:
        ipaddress.IPv4Address(str(value))
    except ValueError:
        return False
    return True


def hccn_content(chips: t.Mapping[str, t.Mapping[str, t.Any]], before: str) -> str:
    """The file with the wanted values. What else it says (tls, mtu, other chips) stays, but for lines that are no entry."""
    wanted = {
        (key, int(chip)): str(values[key]) for chip, values in chips.items() for key in HCCN_KEYS if key in values
    }
    there = {
        (key, int(chip)): value
        for chip, values in hccn_conf.parse(before)["chips"].items()
        for key, value in values.items()
    }
    if all(there.get(entry) == value for entry, value in wanted.items()):
        return before
    merged = {**there, **wanted}
    known = {key: position for position, key in enumerate(HCCN_KEYS)}
    ordered = sorted(merged, key=lambda entry: (entry[1], known.get(entry[0], len(known)), entry[0]))
    return "".join(f"{key}_{chip}={merged[key, chip]}\n" for key, chip in ordered)


# ---------------------------------------------------------------------------------------------------------------------
# Both
# ---------------------------------------------------------------------------------------------------------------------


def read(path: str) -> str | None:
    """A file's text, or None when there is none. Raises NpuFileError for what is no readable text file."""
    if os.path.isdir(path):
        hint = "" if os.listdir(path) else "; docker leaves such a folder where a mounted file was missing: remove it"
        raise NpuFileError(f"{path} is a folder, not a file{hint}")
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as problem:
        raise NpuFileError(f"{path} cannot be read: {problem}") from None


def difference(path: str, before: str, after: str) -> str:
    """How a file would change, as people read it."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, f"{path} (planned)", lineterm="", n=1)
    return "\n".join(lines)
