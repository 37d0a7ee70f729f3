# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""From Ansible's inventory to the plain mapping the planner takes. The only place that knows Ansible's variable objects."""

from __future__ import annotations

import collections.abc as c
import typing as t

from ansible.errors import AnsibleError

GROUPS = ("prefill", "decode", "proxy", "kv_pool")
# Besides pd_*, the planner falls back to this one.
_EXTRA = ("ansible_host",)


def collect(hostvars: t.Any) -> dict[str, t.Any]:
    """Groups and the planner's variables of every host that a cluster group names.

    Values of group variables are one object for all their hosts, so what holds no template is converted once.
    """
    inventory = hostvars._inventory
    groups = {name: _group(inventory.groups[name]) for name in GROUPS if name in inventory.groups}
    wanted = dict.fromkeys(
        host
        for group in groups.values()
        for host in (*group["hosts"], *(h for hs in group["children"].values() for h in hs))
    )
    known: dict[int, tuple[t.Any, t.Any]] = {}
    broken: list[dict[str, str]] = []
    hosts = {host: _variables(hostvars, host, known, broken) for host in wanted}
    return {"groups": groups, "hosts": hosts, "broken": broken}


def _group(group: t.Any) -> dict[str, t.Any]:
    return {
        "hosts": [host.name for host in group.hosts],
        "children": {child.name: [host.name for host in child.get_hosts()] for child in group.child_groups},
    }


def _variables(
    hostvars: t.Any, host: str, known: dict[int, tuple[t.Any, t.Any]], broken: list[dict[str, str]]
) -> dict[str, t.Any]:
    raw = hostvars.raw_get(host)
    templated = None
    out = {}
    for name, value in raw.items():
        if not (name.startswith("pd_") or name in _EXTRA):
            continue
        if _has_template(value):
            templated = templated or hostvars[host]
            try:
                out[str(name)] = plain(templated[name])
            except AnsibleError as problem:
                first = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
                broken.append({"host": str(host), "variable": str(name), "message": first})
            continue
        if id(value) not in known:
            known[id(value)] = (value, plain(value))
        out[str(name)] = known[id(value)][1]
    return out


def _has_template(value: t.Any) -> bool:
    if isinstance(value, str):
        # An encrypted (vault) text is decrypted by the template engine as well.
        return "{{" in value or "{%" in value or "{#" in value or type(value).__name__ == "EncryptedString"
    if isinstance(value, c.Mapping):
        return any(_has_template(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_template(item) for item in value)
    return type(value).__name__ == "EncryptedString"


def plain(value: t.Any) -> t.Any:
    """The value without Ansible's tags and lazy containers, as JSON would have it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, c.Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)
