# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Values that the inventory gives to options of the roles, judged by the roles' own argument specs, before a host is touched.

A role judges its options when it runs, which is after locks, checks and perhaps a pulled image.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import typing as t
from pathlib import Path

import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.validation import check_type_dict, check_type_list

from ansible_collections.ascend.pd_serving.plugins.module_utils import masking, npu_files

from .model import Finding

_ROLES = Path(__file__).resolve().parents[2] / "roles"
_KINDS = {
    "bool": "true or false",
    "dict": "a mapping",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "path": "a path",
    "str": "text",
}
HCCN_CONF = "hccn_conf"
# Lowest numbers other than 1, and than the 0 of those whose default it is: not again, at once, a ring of hosts.
_LOWEST = {
    "benchmark_retry": 0,
    "benchmark_warmup_rounds": 0,
    "engine_partial_wait": 0,
    "engine_stop_timeout": 0,
    "preflight_ping_peers": 2,
    "unit_stop_timeout": 0,
}


@functools.cache
def _role_names() -> tuple[str, ...]:
    return tuple(sorted(path.name for path in _ROLES.iterdir() if path.is_dir()))


@functools.cache
def _options(role: str) -> dict[str, dict[str, t.Any]]:
    """Options of all entry points of a role."""
    text = (_ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    specs = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))["argument_specs"]
    return {name: option for entry in specs.values() for name, option in (entry.get("options") or {}).items()}


@functools.cache
def option(name: str) -> dict[str, t.Any] | None:
    """The specification of a variable that is an option of a role; only specs of roles that names begin with are read."""
    for role in _role_names():
        if name.startswith(role + "_") and name in _options(role):
            return _options(role)[name]
    return None


@functools.cache
def misspelt(name: str) -> str | None:
    """The variable of a role that a name was meant to be: one of the same role, a letter or two away."""
    for role in _role_names():
        if not name.startswith(role + "_") or name in _options(role):
            continue
        own = name[len(role) + 1 :]
        near = min(
            ((_distance(own, known[len(role) + 1 :]), known) for known in sorted(_options(role))), default=(99, "")
        )
        # Short names are near each other by chance, and what begins so may be a site's own.
        if near[0] <= (1 if len(own) < 8 else 2):
            return near[1]
    return None


def _distance(one: str, other: str) -> int:
    """Letters to put in, leave out, change or swap with their neighbour to get from one to the other."""
    one, before, last = one.lower(), [0], list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (letter != wanted)))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def findings(hosts: t.Mapping[str, t.Mapping[str, t.Any]], chips_per_node: int) -> list[Finding]:
    """hosts: the variables of those that are planned. chips_per_node: what a host has that says nothing else."""
    found = []
    judged: dict[tuple[str, int], str | None] = {}
    for host, values in hosts.items():
        for name, value in values.items():
            spec = None if name.startswith("pd_") else option(name)
            # Nothing is no default: it goes before the role's.
            if spec is None or (value is None and spec.get("default") is None):
                continue
            # Values of group variables are one object for all their hosts.
            key = (name, id(value))
            if key not in judged:
                judged[key] = _problem(name, spec, value)
            problem = judged[key]
            if problem is not None:
                found.append(_finding(host, name, value, problem, _fix(spec, value)))
            elif name == HCCN_CONF:
                found += _hccn_conf(host, value, values.get("pd_chips_per_node"), chips_per_node)
    return found


def _problem(name: str, spec: t.Mapping[str, t.Any], value: t.Any) -> str | None:
    judged = {name: {key: entry for key, entry in spec.items() if key in ("type", "choices", "elements", "options")}}
    # Ansible makes a text of anything.
    is_text = spec.get("type", "str") in ("str", "path")
    # And a number of a truth value.
    is_number = spec.get("type") in ("int", "float")
    wrong = value is None or (is_text and isinstance(value, (dict, list))) or (is_number and isinstance(value, bool))
    if not wrong and not _errors(judged, name, value):
        return _too_low(name, spec, value)
    if spec.get("choices") and spec.get("type") != "list":
        return f"must be one of {', '.join(map(str, spec['choices']))}"
    kind = _KINDS.get(spec.get("type", "str"), "text")
    if kind == "a list" and isinstance(value, list):
        entries = spec.get("choices") or [f"entries that are each {_KINDS.get(spec.get('elements', 'str'), 'text')}"]
        return f"must be a list of {', '.join(map(str, entries))}"
    return f"must be {kind}"


def _too_low(name: str, spec: t.Mapping[str, t.Any], value: t.Any) -> str | None:
    """Argument specs know no ranges. Waiting that ends before it began would be seen after engines were started."""
    if "int" in (spec.get("type"), spec.get("elements")) or spec.get("type") == "float":
        lowest = _LOWEST.get(name, 0 if spec.get("default") == 0 else 1)
        is_list = spec.get("type") == "list"
        numbers = map(float, check_type_list(value) if is_list else [value])
        if not all(lowest <= number < math.inf for number in numbers):
            return f"must be {'a list of numbers, each of them ' if is_list else ''}{lowest} or more"
    return None


def _errors(judged: dict[str, t.Any], name: str, value: t.Any) -> bool:
    return bool(ArgumentSpecValidator(judged).validate({name: value}).error_messages)


def _fix(spec: t.Mapping[str, t.Any], value: t.Any) -> str:
    near = difflib.get_close_matches(str(value).lower(), map(str, spec.get("choices") or ()), n=1)
    text = spec.get("description") or spec.get("short_description") or ""
    meaning = " ".join(text if isinstance(text, list) else [text]).strip()
    default = f" ({spec['default']})" if spec.get("default") not in (None, "", [], {}) else ""
    return (
        f"did you mean {near[0]}?"
        if near
        else f"correct it, or leave it out for its default{default}. It is: {meaning}"
    )


def _hccn_conf(host: str, value: t.Any, own_chips: t.Any, chips_per_node: int) -> t.Iterator[Finding]:
    chips = check_type_dict(value)  # a command line may give it as JSON in a text
    count = own_chips if isinstance(own_chips, int) else chips_per_node
    faults = npu_files.hccn_faults(chips)
    beyond = sorted(int(chip) for chip in chips if re.fullmatch("[0-9]+", chip) and int(chip) >= count)
    if beyond:
        named = ", ".join(map(str, beyond))
        faults.append(f"chip {named} is not there: the host has {count} chips (0-{count - 1})")
    if faults:
        yield _finding(
            host,
            HCCN_CONF,
            value,
            "; ".join(faults),
            "give {physical id: {address: IPv4, netmask: IPv4}}; the keys are physical chip ids, as in /dev/davinciN",
            shown=False,
        )


def _finding(host: str, name: str, value: t.Any, problem: str, fix: str, *, shown: bool = True) -> Finding:
    text = repr(masking.masked(value, name))
    said = f"; it is {text if len(text) <= 80 else text[:77] + '...'}" if shown else ""
    between = " " if shown else ": "
    return Finding("variable-value", "error", host, name, value, f"{name}{between}{problem}{said}", fix)
