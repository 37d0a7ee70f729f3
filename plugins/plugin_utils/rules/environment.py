# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Environment that users give to engines: numbers that are none, addresses of other hosts, proxies in between."""

from __future__ import annotations

import ipaddress
import re
import typing as t

from .. import tables
from ..command import PROXY_VARIABLES
from ..model import Finding, Placement
from .context import Context, error, given_environment, warning

# What engines bind, advertise and are found at.
_ADDRESSES = ("HCCL_IF_IP", "VLLM_HOST_IP")


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


def _fits(value: str, minimum: int, maximum: int) -> bool:
    return re.fullmatch(r"[0-9]{1,12}", value) is not None and minimum <= int(value) <= maximum


def addresses(context: Context) -> t.Iterator[Finding]:
    """One host's address given to all, or copied to the next: engines would bind and advertise another host's."""
    owner = {m.node_ip: m.host for instance in context.cluster.instances for m in instance.members}
    for placement in context.everywhere:
        for name in _ADDRESSES:
            value = placement.processes[0].env.get(name)
            if value is None or value == placement.member.node_ip or context.cluster.rehearsal:
                continue
            problem = f"is the address of {owner[value]}" if value in owner else _unusable(value)
            if problem is not None:
                yield error(
                    "address-of-another-host",
                    placement.host,
                    given_environment(context, placement, name),
                    value,
                    f"{name} on {placement.host} is {value}, which {problem}",
                    f"leave {name} out: the plan sets it to each host's own pd_node_ip",
                )


def _unusable(value: str) -> str | None:
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return "is no IP address"
    if address.version != 4:
        return "is IPv6; the Mooncake connectors do not support it"
    return "no other host reaches" if address.is_loopback or address.is_unspecified else None


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


RULES = (numbers, addresses, http_proxies)
