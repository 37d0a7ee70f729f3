# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""From Ansible's inventory to the plain mapping the planner takes. The only place that knows Ansible's variable objects."""

from __future__ import annotations

import collections.abc as c
import copy
import functools
import linecache
import re
import typing as t

from ansible.errors import AnsibleError

from . import role_options
from .inventory import GROUPS

try:
    # Where a value was written; Ansible has no public way to ask.
    from ansible._internal._datatag._tags import Origin
except ImportError:
    Origin = None

# Numbers that YAML 1.1 reads otherwise than people: 036000 in base 8, 20:00 in base 60.
_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9][0-9_]*(:[0-5]?[0-9])+)(?=[\s,\]}#]|$)")
# Besides pd_* and what roles take, the planner falls back to this one.
_EXTRA = ("ansible_host",)
# Another spelling of a variable of ours is not ours, but has to be seen to be told.
_OURS = re.compile("pd[-_]", re.IGNORECASE)


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
    misread: list[dict[str, t.Any]] = []
    misspelt: dict[str, list[str]] = {}
    seen = _seen_by_templates(hostvars)
    hosts = {host: _variables(seen, host, known, broken, misread, misspelt) for host in wanted}
    known_groups = {"all", "ungrouped", *groups, *(child for group in groups.values() for child in group["children"])}
    others = {
        str(name): [host.name for host in group.get_hosts()]
        for name, group in inventory.groups.items()
        if name not in known_groups
    }
    return {
        "groups": groups,
        "hosts": hosts,
        "broken": broken,
        "misread": misread,
        "misspelt": misspelt,
        "other_groups": others,
    }


def _seen_by_templates(hostvars: t.Any) -> t.Any:
    """hostvars whose hosts' own templates see `hostvars`, as those of a task do; what a hostvars[...] gives does not, as there.

    An instance of its very type, because the template engine knows what to do with that one only. A host's variables
    are put together once: templates over groups ask for every host on every host.
    """
    others, own = copy.copy(hostvars), copy.copy(hostvars)
    once = functools.cache(hostvars.raw_get)
    # A name out of a template carries a tag, and the cache tells types apart.
    others.raw_get = lambda host: once(str(host))
    own.raw_get = lambda host: {**others.raw_get(host), "hostvars": others}
    return own


def _group(group: t.Any) -> dict[str, t.Any]:
    nested = {child.name: [below.name for below in child.child_groups] for child in group.child_groups}
    return {
        "hosts": [host.name for host in group.hosts],
        "children": {child.name: [host.name for host in child.get_hosts()] for child in group.child_groups},
        **({"nested": {name: below for name, below in nested.items() if below}} if any(nested.values()) else {}),
    }


def _variables(
    hostvars: t.Any,
    host: str,
    known: dict[int, tuple[t.Any, t.Any]],
    broken: list[dict[str, str]],
    misread: list[dict[str, t.Any]],
    misspelt: dict[str, list[str]],
) -> dict[str, t.Any]:
    raw = hostvars.raw_get(host)
    templated = None
    out = {}
    for name, value in raw.items():
        if not (_OURS.match(name) or name in _EXTRA or role_options.option(name)):
            if role_options.misspelt(name):
                misspelt.setdefault(str(name), []).append(str(host))
            continue
        if _has_template(value):
            templated = templated or hostvars[host]
            try:
                out[str(name)] = plain(templated[name])
            except AnsibleError as problem:
                if not (_OURS.match(name) or name in _EXTRA):
                    # An option of a role may hold what only its own task knows; where it is needed the role fails.
                    continue
                broken.append({"host": str(host), "variable": str(name), "message": _reason(problem)})
            continue
        if id(value) not in known:
            wrong = [{"host": str(host), **found} for found in _misread(value, str(name))]
            misread += wrong
            # What follows from a number that nobody meant says nothing.
            known[id(value)] = (value, None if wrong and not isinstance(value, c.Mapping) else plain(value))
        out[str(name)] = known[id(value)][1]
    return out


def _reason(problem: AnsibleError) -> str:
    first = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
    if "'hostvars' is undefined" in first:
        return f"{first} in a value that hostvars[...] gave: Ansible evaluates that one without hostvars of its own"
    return first


def _misread(value: t.Any, where: str) -> t.Iterator[dict[str, t.Any]]:
    """Whole numbers that were written in a way that YAML takes for another base: variable, written, value."""
    if isinstance(value, c.Mapping):
        for key, item in value.items():
            yield from _misread(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _misread(item, where)
    elif isinstance(value, int) and not isinstance(value, bool):
        written = _written(value)
        if written is not None and (":" in written or int(written.replace("_", "")) != value):
            yield {"variable": where, "written": written, "value": int(value)}


def _written(value: t.Any) -> str | None:
    """The text of a number in its file, where that could be read otherwise than it looks; None when not."""
    origin = Origin.get_tag(value) if Origin is not None else None
    if origin is None or not origin.path or not origin.line_num or not origin.col_num:
        return None
    line = linecache.getline(str(origin.path), origin.line_num)
    match = _OTHER_BASE.match(line, origin.col_num - 1)
    return match[0] if match else None


def _has_template(value: t.Any) -> bool:
    if isinstance(value, str):
        # An encrypted (vault) text is decrypted by the template engine as well.
        return "{{" in value or "{%" in value or "{#" in value or type(value).__name__ == "EncryptedString"
    if isinstance(value, c.Mapping):
        return any(_has_template(item) for item in value.values())
    if isinstance(value, (list, tuple)):
        return any(_has_template(item) for item in value)
    return type(value).__name__ == "EncryptedString"


def _key(key: t.Any) -> t.Any:
    """Text, also of a number (chips), but not of what nobody means as a key: the planner names those."""
    return key if key is None or isinstance(key, (bool, float)) else str(key)


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
        return {_key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    return str(value)
