# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Environment that users give to engines: numbers that are none, addresses of other hosts, proxies in between."""

from __future__ import annotations

import collections
import ipaddress
import re
import typing as t

from .. import tables
from ..command import ADDRESS_VARIABLES, CARD_VARIABLES, PROXY_VARIABLES
from ..model import Finding, Placement
from ..ports import HCCL_HOST_RANGE, host_ranges
from .context import Context, error, given_environment, warning

# The plan leaves out the last: Mooncake's, for the address that its own sockets bind.
_ADDRESSES = (*ADDRESS_VARIABLES, "MC_TCP_BIND_ADDRESS")
_LEFT_TO_CHANCE = (
    ("VLLM_HOST_IP", "pd_node_ip", "connectors then bind and advertise the address of the default route"),
    ("HCCL_IF_IP", "pd_node_ip", "HCCL then chooses an address itself"),
    *((name, "pd_nic", "its reader then chooses a network card itself") for name in CARD_VARIABLES),
)


def numbers(context: Context) -> t.Iterator[Finding]:
    """Readers of these take what is no number for their default, or end at it long after the start."""
    facts = tables.environment_numbers()
    for placement in context.everywhere:
        for name, fact in facts.items():
            value = placement.processes[0].env.get(name)
            if value is None or _fits(value, fact["minimum"], fact["maximum"]):
                continue
            yield error(
                "environment-value",
                placement.host,
                given_environment(context, placement, name),
                value,
                f"{name} is {value!r}, but takes a whole number from {fact['minimum']} to {fact['maximum']} ({fact['unit']})",
                f"give a plain number in this range, or leave {name} out",
            )


def hccl_ports(context: Context) -> t.Iterator[Finding]:
    for placement in context.everywhere:
        value = placement.processes[0].env.get(HCCL_HOST_RANGE)
        if value is not None and host_ranges(value) is None:
            yield error(
                "environment-value",
                placement.host,
                given_environment(context, placement, HCCL_HOST_RANGE),
                value,
                f"{HCCL_HOST_RANGE} is {value!r}, but takes ports and ranges with commas in between, or auto",
                "give it as 60000-60050,61000-61020, or leave it out",
            )


def _fits(value: str, minimum: int, maximum: int) -> bool:
    return re.fullmatch(r"[0-9]{1,12}", value) is not None and minimum <= int(value) <= maximum


def addresses(context: Context) -> t.Iterator[Finding]:
    """Addresses of engines are their own host's: no other's, no two hosts' at once, and hardly another card's."""
    if context.cluster.rehearsal:
        return
    owner, holders = _owners(context), _holders(context)
    for placement in context.everywhere:
        member = placement.member
        for name in _ADDRESSES:
            value = placement.processes[0].env.get(name)
            if value is None or value == member.node_ip or (name == "MC_TCP_BIND_ADDRESS" and value == "0.0.0.0"):
                continue  # a socket may be bound to every address; nobody is told this one
            variable = given_environment(context, placement, name)
            problem = _unusable(value)
            if problem is None and value != member.ansible_host:
                if value in owner:
                    problem = f"is the address of {owner[value]}"
                elif len(holders[name, value]) > 1:
                    problem = "more than one host is given; an address belongs to one"
            if problem is None:
                yield warning(
                    "environment-overrides",
                    member.host,
                    variable,
                    value,
                    f"{name} on {member.host} is set to {value!r}, while its pd_node_ip is {member.node_ip}; engines bind and "
                    f"advertise the former, {_whose(value, member.ansible_host)}",
                    f"leave {name} out, or set pd_node_ip to the address that the engines are to use",
                )
            else:
                yield error(
                    "address-of-another-host",
                    member.host,
                    variable,
                    value,
                    f"{name} on {member.host} is {value}, which {problem}",
                    f"leave {name} out: the plan sets it to each host's own pd_node_ip"
                    if name in ADDRESS_VARIABLES
                    else f"leave {name} out, or set it host by host to the pd_node_ip there",
                )


def _owners(context: Context) -> dict[str, str]:
    """Address -> host. Behind a port forwarding many hosts have one ansible_host, which then is nobody's."""
    cluster = context.cluster
    reached: dict[str, set[str]] = collections.defaultdict(set)
    for instance in cluster.instances:
        for member in instance.members:
            reached[member.ansible_host].add(member.host)
    owner = {address: min(hosts) for address, hosts in reached.items() if len(hosts) == 1}
    for host, address in ((cluster.pool_host, cluster.pool_address), (cluster.proxy_host, cluster.proxy_address)):
        if host and address:
            owner[address] = host
    return owner | {m.node_ip: m.host for instance in cluster.instances for m in instance.members}


def _holders(context: Context) -> dict[tuple[str, str | None], set[str]]:
    """(variable, value) -> the hosts whose engines get it."""
    holders: dict[tuple[str, str | None], set[str]] = collections.defaultdict(set)
    for placement in context.everywhere:
        for name in _ADDRESSES:
            holders[name, placement.processes[0].env.get(name)].add(placement.host)
    return holders


def _whose(value: str, ansible_host: str) -> str:
    if value == ansible_host:
        return "which is the address that Ansible reaches the host at"
    return "and whether it is another address of this host, the plan cannot tell"


def _unusable(value: str) -> str | None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return "is no IP address"
    if address.version != 4:
        return "is IPv6; the Mooncake connectors do not support it"
    lost = address.is_loopback or address.is_unspecified or address.is_multicast
    return "no other host reaches" if lost else None


def unset(context: Context) -> t.Iterator[Finding]:
    """null takes away the address or card that the plan gives, and something else chooses one."""
    for placement in context.everywhere:
        env = placement.processes[0].env
        for name, source, then in _LEFT_TO_CHANCE:
            if name in env and env[name] is None:
                yield warning(
                    "environment-overrides",
                    placement.host,
                    given_environment(context, placement, name),
                    None,
                    f"{name} is unset on {placement.host}, although {source} gives it a value; {then}",
                    f"leave {name} out: the plan sets it from {source}",
                )


def unread_ports(context: Context) -> t.Iterator[Finding]:
    """A range that the image's Mooncake does not move, whatever the environment says."""
    versions = context.cluster.versions
    for placement in context.everywhere:
        env = placement.processes[0].env
        for name in tables.port_variables():
            read = tables.port_variable_names(name, versions)
            # Whoever gives both names has thought of it.
            if env.get(name) is None or name in read or any(env.get(other) is not None for other in read):
                continue
            yield warning(
                "environment-name",
                placement.host,
                given_environment(context, placement, name),
                env[name],
                f"{name} is not read by Mooncake {versions.mooncake} of vLLM-Ascend {versions.vllm_ascend}"
                + (f" (it reads {' and '.join(read)})" if read else "")
                + "; the ports stay where they are",
                f"set {' and '.join(read)} instead"
                if read
                else f"leave {name} out, or use an image with a newer Mooncake",
            )


def http_proxies(context: Context) -> t.Iterator[Finding]:
    """The plan unsets them: engines and proxy talk HTTP to each other by address."""
    told: set[str] = set()
    for placement in context.everywhere:
        env = placement.processes[0].env
        given = [name for name in PROXY_VARIABLES if env.get(name)]
        if not given or env.get("NO_PROXY") or env.get("no_proxy"):
            continue
        variable = given_environment(context, placement, given[0])
        if variable not in told:
            told.add(variable)
            yield _http_proxy(placement, variable, given[0])


def _http_proxy(placement: Placement, variable: str, name: str) -> Finding:
    return warning(
        "http-proxy",
        placement.host,
        variable,
        placement.processes[0].env[name],
        f"{name} is set for the engines, so what they send to each other and to the proxy over HTTP takes that way too",
        f"leave {name} out (the plan unsets it), or name the hosts of this cluster in NO_PROXY",
    )


RULES = (numbers, hccl_ports, addresses, unset, unread_ports, http_proxies)
