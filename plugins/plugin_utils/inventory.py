# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""From a plain mapping of inventory variables to a typed Cluster, with every fault of shape, type and scope named.

The mapping is JSON-like, so that planning can be tested and timed without Ansible:

    {"groups": {"prefill": {"hosts": [...], "children": {"prefill_a": ["p1"], ...}}, "decode": {...},
                "proxy": {"hosts": ["p1"]}, "kv_pool": {...}},
     "hosts": {"p1": {"ansible_host": "192.0.0.1", "pd_hardware": "a3", ...}, ...}}
"""

from __future__ import annotations

import collections
import difflib
import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import masking

from . import role_options, tables
from .model import ROLES, Cluster, Finding, Instance, Member, Role
from .variables import RUN_SWITCHES, VARIABLES, BadValue, Variable, convert

Source = t.Mapping[str, t.Any]

GROUPS = ("prefill", "decode", "proxy", "kv_pool")
_MISSING = object()
_PLACEHOLDER = re.compile(
    r"/path[-_/]to|<[^>]*>|^x{2,}\d*$|(^|/)x+(\.x+)+(/|$)|/x{3,}(/|$)|[-_]x{3,}$|\byour[-_ /]|change[-_ ]?me|\bTODO\b|\bTBD\b|"
    r"^(eth|en[ops]?|bond)x+$|^(nic|if|interface)[-_]?name$",
    re.IGNORECASE,
)
_ADDRESS_PLACEHOLDER = re.compile(r"[A-Z]{0,3}IP(:PORT)?\Z")
# Inside option and environment values only what nobody means literally: templates may well hold "<...>".
_PLACEHOLDER_INSIDE = re.compile(r"/path[-_/]to|<your|^x+(\.x+){3}$", re.IGNORECASE)
_LAYOUT_VARIABLES = ("pd_chips", "pd_mapped_chips", "pd_chips_per_node", "pd_dp_size_local", "pd_dp_rank_start")
_INSTANCE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*\Z")
# Units of the plan's own, beside those of the instances.
_TAKEN_NAMES = {"proxy": "proxy", "kv-pool": "KV pool"}
# What people call the generations: chips and servers by name.
_A2_NAME, _A3_NAME = (
    re.compile(r"(ascend ?)?910b|(atlas )?[89]00[it]? a2"),
    re.compile(r"(ascend ?)?910(c|_93)|(atlas )?[89]00[it]? a3"),
)
_A5_NAME = re.compile(r"(atlas ?)?(850e?|950(pr|dt)?)\b")
# Cluster variables that belong to one group, and what has their meaning in a narrower scope.
_HOME = {"pd_proxy_port": "proxy", "pd_proxy_workers": "proxy", "pd_kv_pool": "kv_pool"}
_NARROWER = {
    "pd_engine_args_common": "pd_engine_args (of an instance) or pd_engine_args_extra (of a host)",
    "pd_engine_env_common": "pd_engine_env (of an instance) or pd_engine_env_extra (of a host)",
}
_PLACEHOLDER_KINDS = ("address", "nic", "path", "text", "name", "image")


def read(source: Source) -> tuple[Cluster, list[Finding]]:
    """Return the cluster and everything wrong with its variables."""
    reader = _Reader(source)
    cluster = reader.cluster()
    planned = {host: reader.hosts.get(host, {}) for host in reader.planned_hosts}
    return cluster, reader.findings + role_options.findings(planned, cluster.hardware.chips_per_node)


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.rehearsal = "production" in source
        self.groups: Source = source["groups"]
        self.hosts: t.Mapping[str, Source] = source["hosts"]
        self.findings: list[Finding] = []
        self._memory: dict[str, tuple[t.Any, tuple[t.Any, bool]]] = {}
        self._converted: set[str] = set()
        self._refused: set[tuple[str | None, str]] = set()
        # Cluster variables that only some hosts have: name -> (value, hosts with it).
        self._partly: dict[str, tuple[t.Any, list[str]]] = {}

    def error(self, rule: str, host: str | None, variable: str | None, value: t.Any, message: str, fix: str) -> None:
        self.findings.append(Finding(rule, "error", host, variable, value, message, fix))

    # Groups -------------------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        outline = [entry for role in ROLES for entry in self._instances_of(role)]
        outline = self._named_once(outline)
        self.instances_on: dict[str, list[str]] = collections.defaultdict(list)
        for name, _role, hosts in outline:
            for host in hosts:
                self.instances_on[host].append(name)
        proxy_host = self._proxy_host()
        pool_host = self._pool_host()
        self._misnamed_groups()
        self._nested_groups()
        self.planned_hosts = list(dict.fromkeys([*self.instances_on, *filter(None, (proxy_host, pool_host))]))
        self._broken_templates()
        self._misread_numbers()
        self._unknown_variables()
        self._misspelt_options()
        self.entries = self._instance_entries([name for name, _role, _hosts in outline])
        self._shared_hosts()
        self._unread_on_shared_hosts()
        values, given = self._cluster_values()
        if self._was_refused("pd_kv_pool"):
            pool_host = None  # whether a pool is wanted is not known, so its host is nobody's mistake
        # Without its hardware nothing is planned, but what else is wrong shall be found: the largest one stands in.
        self.hardware_known = bool(values["pd_hardware"])
        hardware = tables.hardware(values["pd_hardware"] or "a3")
        assert hardware is not None
        self.default_chips = hardware.chips_per_node
        # A rehearsal runs processes but shows what the production runtime would.
        runtime = _production_runtime(self.source["production"]) if self.rehearsal else values["pd_runtime"]
        privileged = values["pd_container_privileged"]
        privileged = hardware.privileged if privileged is None else bool(privileged)
        self.sees_every_chip = privileged or runtime == "process"
        image, version = self._image(values, given, hardware.image_suffix)
        counts = dict.fromkeys(ROLES, 0)
        instances = []
        for name, role, hosts in outline:
            instances.append(self._instance(name, role, counts[role], hosts))
            counts[role] += 1
        versions = tables.versions(version)
        self._given_for_some(
            {
                "pd_image": tables.default_image(version, hardware.image_suffix),
                "pd_cann_version": versions.cann,
                "pd_mooncake_version": versions.mooncake,
                "pd_container_privileged": hardware.privileged,
                "pd_endpoint_container_dir": values["pd_endpoint_dir"],
            }
        )
        return Cluster(
            name=values["pd_cluster_name"],
            hardware=hardware,
            fabric=values["pd_fabric"],
            topology=values["pd_topology"],
            versions=type(versions)(
                vllm_ascend=version,
                cann=values["pd_cann_version"] or versions.cann,
                mooncake=values["pd_mooncake_version"] or versions.mooncake,
                hixl=values["pd_hixl_version"] or versions.hixl,
                known=versions.known,
                assumed=bool(values["pd_image"]) and image_tag(image) is None and "pd_vllm_ascend_version" not in given,
            ),
            image=image,
            model_path=values["pd_model_path"] or "",
            served_model_name=values["pd_served_model_name"] or "",
            model_is_moe=values["pd_model_is_moe"],
            model_family=values["pd_model_family"],
            connector=values["pd_connector"],
            mooncake_prefix=values["pd_mooncake_prefix"],
            kv_pool=values["pd_kv_pool"],
            pool_host=pool_host,
            pool_address=self._node_ip(pool_host, None) if pool_host else None,
            kv_release_timeout=values["pd_kv_release_timeout"],
            port_reserve=values["pd_port_reserve"],
            container_network=values["pd_container_network"],
            container_privileged=privileged,
            container_memory_gib=values["pd_container_memory_gib"],
            endpoint_dir=values["pd_endpoint_dir"],
            endpoint_container_dir=values["pd_endpoint_container_dir"],
            route_conf=values["pd_route_conf"],
            proxy_host=proxy_host,
            proxy_address=self._node_ip(proxy_host, None) if proxy_host else None,
            proxy_port=values["pd_proxy_port"],
            proxy_workers=values["pd_proxy_workers"],
            runtime=values["pd_runtime"],
            engine_launcher=values["pd_engine_launcher"],
            engine_args_common=values["pd_engine_args_common"],
            engine_env_common=values["pd_engine_env_common"],
            instances=instances,
            given=given,
            production_runtime=runtime,
            rehearsal=self.rehearsal,
            hardware_known=self.hardware_known,
        )

    def _instances_of(self, role: Role) -> list[tuple[str, Role, list[str]]]:
        group = self.groups.get(role) or {}
        direct, children = list(group.get("hosts") or []), dict(group.get("children") or {})
        if not direct and not any(children.values()):
            self.error(
                "role-without-hosts",
                role,
                None,
                None,
                f"group {role} has no hosts, so there would be nobody to {'answer prompts' if role == 'prefill' else role}",
                self._meant_group(role)
                + f"add hosts to group {role}, or child groups with hosts: one child group per instance",
            )
            return []
        if direct and children:
            self.error(
                "role-group-mixed",
                role,
                None,
                direct,
                f"group {role} has hosts of its own ({some(direct)}) and child groups ({some(list(children))}); "
                "which instance those hosts belong to cannot be told",
                f"put every host of {role} into a child group (one per instance), or drop the child groups",
            )
        if children:
            for name, hosts in children.items():
                if not hosts:
                    self.error(
                        "instance-without-hosts",
                        name,
                        None,
                        None,
                        f"instance {name} (child group of {role}) has no hosts",
                        f"add hosts to group {name} or remove it",
                    )
            return [(name, role, list(hosts)) for name, hosts in children.items() if hosts]
        if role == "prefill":
            return [(f"prefill-{host}", role, [host]) for host in direct]
        return [("decode", role, direct)]

    def _meant_group(self, role: str) -> str:
        """A group of the inventory that is called almost as the role is."""
        others = {name.lower(): name for name in self.source.get("other_groups", ())}
        near = difflib.get_close_matches(role, others, n=1, cutoff=0.7)
        return f"did you mean to call group {others[near[0]]} {role}? Else " if near else ""

    def _misnamed_groups(self) -> None:
        """Groups that are called almost as one of the cluster's, with hosts that it does not have: nothing runs there."""
        for name, hosts in self.source.get("other_groups", {}).items():
            near = difflib.get_close_matches(name.lower().replace("-", "_"), GROUPS, n=1, cutoff=0.8)
            if not near:
                continue
            there = self._members(near[0])
            left = [host for host in hosts if host not in there]
            # Of a group that has to be there and is not, the fix says so.
            if left and (there or near[0] == "kv_pool"):
                self.findings.append(
                    Finding(
                        "group-name",
                        "warning",
                        name,
                        None,
                        left,
                        f"group {name} is called almost as {near[0]}, which does not have its hosts ({some(left)}): "
                        "only the groups of that very name are read",
                        f"call the group {near[0]}, or give it a name that is less like it where it is none of the cluster's",
                    )
                )

    def _nested_groups(self) -> None:
        for role in ROLES:
            for name, below in (self.groups.get(role) or {}).get("nested", {}).items():
                self.findings.append(
                    Finding(
                        "instance-of-groups",
                        "warning",
                        name,
                        None,
                        below,
                        f"group {name} below {role} has groups of its own ({some(below)}); all their hosts together are the "
                        f"one instance {name}",
                        f"put these groups directly below {role} where each is meant to be an instance; racks of one instance "
                        "may stay as they are",
                    )
                )

    def _check_name(self, name: str, role: Role) -> None:
        if not _INSTANCE_NAME.match(name) or name in _TAKEN_NAMES:
            reason = (
                f"is the name of the {_TAKEN_NAMES[name]}'s container"
                if name in _TAKEN_NAMES
                else "cannot be part of container names and paths"
            )
            self.error(
                "instance-name",
                name,
                None,
                name,
                f"{name!r} names an instance of {role}, but {reason}",
                "rename the group (or host): letters, digits, '_', '.' and '-', beginning with a letter or digit",
            )

    def _named_once(self, outline: list[tuple[str, Role, list[str]]]) -> list[tuple[str, Role, list[str]]]:
        once: dict[str, tuple[str, Role, list[str]]] = {}
        for entry in outline:
            name, role, _hosts = entry
            self._check_name(name, role)
            if name in once:
                self.error(
                    "instance-in-two-roles",
                    name,
                    None,
                    [once[name][1], role],
                    f"group {name} is an instance of {once[name][1]} and of {role}; an instance has one role",
                    f"make two groups, one below {once[name][1]} and one below {role}",
                )
            once.setdefault(name, entry)
        return list(once.values())

    def _members(self, name: str) -> list[str]:
        group = self.groups.get(name) or {}
        below = [host for hosts in (group.get("children") or {}).values() for host in hosts]
        return list(dict.fromkeys([*(group.get("hosts") or []), *below]))

    def _proxy_host(self) -> str | None:
        hosts = self._members("proxy")
        if len(hosts) == 1:
            return str(hosts[0])
        self.error(
            "proxy-host",
            "proxy",
            None,
            hosts,
            "group proxy has no host" if not hosts else f"group proxy has {len(hosts)} hosts ({some(hosts)})",
            ("" if hosts else self._meant_group("proxy"))
            + "put exactly one host into group proxy: its address and pd_proxy_port are the users' door",
        )
        return None

    def _pool_host(self) -> str | None:
        """The pool's master is one process with its state in memory, so the group has one host, or there is none."""
        hosts = self._members("kv_pool")
        if len(hosts) > 1:
            self.error(
                "pool-host",
                "kv_pool",
                None,
                hosts,
                f"group kv_pool has {len(hosts)} hosts ({some(hosts)}), but the pool's master is one process",
                "leave one host in group kv_pool",
            )
        # With several, too, the first shows what else is wrong.
        return str(hosts[0]) if hosts else None

    def _broken_templates(self) -> None:
        for broken in self.source.get("broken", ()):
            self._refused.add((broken["host"], broken["variable"]))
            self.error(
                "template",
                broken["host"],
                broken["variable"],
                None,
                f"{broken['variable']} cannot be evaluated on {broken['host']}: {broken['message']}",
                "correct the template, or give the value itself",
            )

    def _misread_numbers(self) -> None:
        for found in self.source.get("misread", ()):
            written, value = found["written"], found["value"]
            self._refused |= {(host, found["variable"]) for host in self.planned_hosts}
            base = 60 if ":" in written else 8
            self.error(
                "variable-value",
                found["host"],
                found["variable"],
                value,
                f"{found['variable']} is written {written}, which YAML reads in base {base}: {value}",
                f"write the number without {'leading zeros' if base == 8 else 'colons'}, or put it in quotes where text is meant",
            )

    def _unknown_variables(self) -> None:
        where: dict[str, list[str]] = collections.defaultdict(list)
        for host in self.planned_hosts:
            for name in self.hosts.get(host, {}):
                if name in VARIABLES or name in RUN_SWITCHES:
                    continue
                # In another spelling (pd-rehearsal, PD_NIC) it may also be somebody's own.
                if name.startswith("pd_") or (re.match("pd[-_]", name.lower()) and _near_variable(name)):
                    where[name].append(host)
        for name, hosts in where.items():
            self._unknown(name, hosts[0], self.hosts[hosts[0]][name], f" (on {some(hosts)})" if len(hosts) > 1 else "")

    def _misspelt_options(self) -> None:
        """Of the roles' variables, which share their prefixes with a site's own: only what is almost one of them."""
        for name, hosts in self.source.get("misspelt", {}).items():
            where = f" (on {some(hosts)})" if len(hosts) > 1 else ""
            self.findings.append(
                Finding(
                    "role-variable-name",
                    "warning",
                    hosts[0],
                    name,
                    None,
                    f"no role has a variable {name}{where}, and nothing reads it",
                    f"did you mean {role_options.misspelt(name)}? Else give your own variable a name that is less like it",
                )
            )

    def _meant(self, host: str) -> str:
        """The host of proxy or pool is often one of the others: a name that no other group has may be misspelt."""
        if any(host in self._members(role) for role in ROLES):
            return ""
        near = difflib.get_close_matches(host, self.instances_on, n=1, cutoff=0.5)
        group = "proxy" if host in self._members("proxy") else "kv_pool"
        return f"group {group} names a host of no other group; did you mean {near[0]}? Else " if near else ""

    def _unknown(self, name: str, host: str, value: t.Any, where: str) -> None:
        near = _near_variable(name)
        self.error(
            "unknown-variable",
            host,
            name,
            value,
            f"there is no variable {name}{where}; it would be ignored",
            f"did you mean {near}?" if near else "see docs/inventory.md for the variables there are",
        )

    # Hosts in several instances -----------------------------------------------------------------------------------

    def _instance_entries(self, names: list[str]) -> dict[str, dict[str, t.Any]]:
        value, host = self._common("pd_instances")
        entries: dict[str, dict[str, t.Any]] = {}
        for name, values in (value or {}).items():
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
                self.error(
                    "instance-entry",
                    host,
                    "pd_instances",
                    name,
                    f"pd_instances names {name}, but the instances are {some(names)}",
                    f"did you mean {near[0]}?" if near else "use the name of an instance",
                )
            elif not isinstance(values, dict):
                self.error(
                    "variable-value",
                    host,
                    f"pd_instances.{name}",
                    values,
                    f"pd_instances.{name} must be a mapping {{variable: value}}",
                    "give the variables of this instance as a mapping",
                )
            else:
                entries[name] = values
                self._instance_entry(host or name, name, values)
        return entries

    def _instance_entry(self, host: str, name: str, values: dict[str, t.Any]) -> None:
        for variable, value in values.items():
            if variable not in VARIABLES:
                self._unknown(variable, host, value, f" (in pd_instances.{name})")
            elif VARIABLES[variable].scope == "C":
                self.error(
                    "instance-entry",
                    host,
                    f"pd_instances.{name}.{variable}",
                    value,
                    f"{variable} has one value for the whole cluster and cannot be set for instance {name}",
                    f"set {variable} once, for all hosts",
                )

    def _shared_hosts(self) -> None:
        for host, instances in self.instances_on.items():
            missing = [name for name in instances if name not in self.entries]
            if len(instances) > 1 and missing:
                self.error(
                    "host-in-several-instances",
                    host,
                    "pd_instances",
                    missing,
                    f"{host} is in {len(instances)} instances ({some(instances)}), and a host variable has one value only; "
                    f"pd_instances has no entry for {some(missing)}",
                    "give the variables of each of these instances under pd_instances, at least pd_dp_size, pd_tp_size and pd_chips",
                )

    def _unread_on_shared_hosts(self) -> None:
        """There, values of instances come from pd_instances alone; what stands beside it looks as if it counted."""
        for host, instances in self.instances_on.items():
            if len(instances) < 2 or not all(name in self.entries for name in instances):
                continue  # the second: that all of them need an entry has been said
            unread = [
                name
                for name, value in self.hosts.get(host, {}).items()
                if value is not None
                and name in VARIABLES
                and VARIABLES[name].scope != "C"
                and not VARIABLES[name].physical
                # What every entry has itself is meant for other hosts of a group.
                and not all(self.entries[instance].get(name) is not None for instance in instances)
            ]
            if unread:
                self.findings.append(
                    Finding(
                        "host-variable-unread",
                        "warning",
                        host,
                        "pd_instances",
                        unread,
                        f"{host} is in {len(instances)} instances ({some(instances)}), so {', '.join(unread)} among its own "
                        "variables (or its groups') is not read there",
                        f"give {'each of them' if len(unread) > 1 else 'it'} under pd_instances, for the instance that it is meant for",
                    )
                )

    # Values -------------------------------------------------------------------------------------------------------

    def _raw(self, variable: Variable, host: str, instance: str | None) -> t.Any:
        if instance is not None:
            value = self.entries.get(instance, {}).get(variable.name)
            if value is not None:
                return value
            if not variable.physical and len(self.instances_on[host]) > 1:
                return _MISSING
        value = self.hosts.get(host, {}).get(variable.name)
        return _MISSING if value is None else value

    def _typed(self, variable: Variable, host: str, raw: t.Any) -> t.Any:
        """The converted value, or _MISSING after a finding."""
        seen = self._memory.get(variable.name)
        # True == 1 in Python, so equal values of other types must not share a result.
        if seen is not None and type(seen[0]) is type(raw) and seen[0] == raw and not isinstance(raw, (list, dict)):
            value, converted = seen[1]
            return value
        if seen is not None and seen[0] is raw:
            return seen[1][0]
        if self._placeholder(variable, host, raw):
            return _MISSING
        try:
            value, converted = convert(variable, raw)
        except BadValue as problem:
            if (host, variable.name) not in self._refused:
                self._refused.add((host, variable.name))
                self._bad_value(variable, host, raw, str(problem))
            return _MISSING
        self._memory[variable.name] = (raw, (value, converted))
        if converted and variable.name not in self._converted:
            self._converted.add(variable.name)
            self.findings.append(
                Finding(
                    "text-value",
                    "warning",
                    host,
                    variable.name,
                    raw,
                    f"{variable.name} is the text {raw!r}; read as {value!r}",
                    f"write {variable.name}: {str(value).lower()} without quotes (values of -e NAME=VALUE are always text)",
                )
            )
        return value

    def _bad_value(self, variable: Variable, host: str, raw: t.Any, problem: str) -> None:
        rule, fix = "variable-value", f"set {variable.name} to a fitting value: {variable.meaning}"
        meant = _meant_choice(variable, raw)
        if variable.name == "pd_hardware" and _A5_NAME.match(str(raw).lower()):
            fix = "Atlas 850, 850E and 950 SuperPod (950PR, 950DT) are pd_hardware: a5"
        elif meant is not None:
            fix = f"did you mean {variable.name}: {meant}?"
        elif "IPv6" in problem:
            rule, fix = (
                "node-ip-v6",
                "give the host's IPv4 address; proxy and connectors split host:port at the first colon",
            )
        elif variable.kind == "address":
            rule = "node-ip" if variable.name == "pd_node_ip" else rule
        # Of a mapping and of mounts the problem names the entries.
        shown = "" if isinstance(raw, dict) or variable.kind == "mounts" else f"; it is {_short(raw, variable.name)}"
        self.error(rule, host, variable.name, raw, f"{variable.name} {problem}{shown}", fix)

    def _placeholder(self, variable: Variable, host: str, raw: t.Any) -> bool:
        if variable.kind in _PLACEHOLDER_KINDS:
            found = raw if isinstance(raw, str) and _is_placeholder(raw, variable.kind) else None
        else:
            found = _placeholder_inside(raw)
        if found is None:
            return False
        if (host, variable.name) not in self._refused:
            self._refused.add((host, variable.name))
            self.error(
                "placeholder",
                host,
                variable.name,
                found,
                f"{variable.name} still holds the placeholder {found!r}",
                f"replace it by the real value: {variable.meaning}",
            )
        return True

    def _common(self, name: str) -> tuple[t.Any, str | None]:
        """The one value of a cluster variable and the first host that has it; a finding when hosts disagree."""
        variable, first, first_host = VARIABLES[name], _MISSING, None
        having = []
        for host in self.planned_hosts:
            raw = self.hosts.get(host, {}).get(name)
            value = _MISSING if raw is None else self._typed(variable, host, raw)
            if value is _MISSING:
                continue
            having.append(host)
            if first is _MISSING:
                first, first_host = value, host
            elif value != first:
                self.error(
                    "cluster-variable-differs",
                    host,
                    name,
                    value,
                    f"{name} must be the same for the whole cluster, but is {_short(first, name)} on {first_host} "
                    f"and {_short(value, name)} on {host}",
                    f"set {name} once, for example in group_vars/all",
                )
                break
        else:
            if having and len(having) < len(self.planned_hosts):
                self._partly[name] = first, having
        return (None, None) if first is _MISSING else (first, first_host)

    def _cluster_values(self) -> tuple[dict[str, t.Any], frozenset[str]]:
        values, given = {}, set()
        for variable in VARIABLES.values():
            if variable.scope != "C" or variable.name == "pd_instances":
                continue
            value, host = self._common(variable.name)
            if host is not None:
                given.add(variable.name)
            elif variable.required and not self._was_refused(variable.name):
                self.error(
                    "required-variable",
                    "all",
                    variable.name,
                    None,
                    f"{variable.name} is not set",
                    f"set {variable.name} for all hosts, for example in group_vars/all: {variable.meaning}"
                    + (f" One of {', '.join(variable.choices)}." if variable.choices else ""),
                )
            values[variable.name] = variable.default if value is None else value
        return values, frozenset(given)

    def _given_for_some(self, by_table: t.Mapping[str, t.Any]) -> None:
        """Values that reach further than where they stand: a role's group_vars are the whole cluster's here.

        by_table: what variables without a fixed default have when they are not given.
        """
        for name, (value, having) in self._partly.items():
            # Entries of pd_instances name themselves what they are for.
            if name == "pd_instances" or value == by_table.get(name, VARIABLES[name].default):
                continue
            # What all engines are given holds for the proxy's and the pool's own host as well, as one would expect.
            there = set(having)
            without = [host for host in self.instances_on if host not in there and (host, name) not in self._refused]
            home = self._members(_HOME[name]) if name in _HOME else []
            if not without or (home and set(home) <= there):
                continue
            reached = next((role for role in ROLES if set(self._members(role)) == set(without)), some(without))
            instead = _NARROWER.get(name)
            self.findings.append(
                Finding(
                    "variable-scope",
                    "warning",
                    having[0],
                    name,
                    value,
                    f"{name} is given only for {some(having)}, not for {some(without)}, but has one value for the whole cluster: "
                    f"it holds for {reached} too",
                    "move it to group_vars/all"
                    + (f", or use {instead} where it is not meant for all" if instead else ""),
                )
            )

    def _was_refused(self, name: str) -> bool:
        return any(variable == name for _host, variable in self._refused)

    def _image(self, values: dict[str, t.Any], given: frozenset[str], suffix: str) -> tuple[str, str]:
        """(image, vLLM-Ascend version); the tag of a given image wins over pd_vllm_ascend_version."""
        version = values["pd_vllm_ascend_version"]
        version = version if version.startswith("v") or not version[:1].isdigit() else f"v{version}"
        image = values["pd_image"]
        if not image:
            return tables.default_image(version, suffix), version
        tag = image_tag(image)
        if tag is None:
            return image, version
        tag_version, _tag_suffix = tag
        if "pd_vllm_ascend_version" in given and tag_version != version:
            self.error(
                "image-version",
                "all",
                "pd_vllm_ascend_version",
                version,
                f"pd_vllm_ascend_version is {version}, but the tag of pd_image {image} says {tag_version}",
                f"set pd_vllm_ascend_version to {tag_version}, or leave it out: the tag is enough",
            )
        return image, tag_version

    # One instance -------------------------------------------------------------------------------------------------

    def _instance(self, name: str, role: Role, index: int, hosts: list[str]) -> Instance:
        values: dict[str, t.Any] = {}
        given = set()
        complete = True
        for variable in VARIABLES.values():
            if variable.scope != "I":
                continue
            value, is_given = self._of_instance(variable, name, hosts)
            values[variable.name] = value
            if is_given:
                given.add(variable.name)
            if variable.required and value is None:
                complete = False
        members = []
        for host in hosts:
            member, member_given, valid = self._member(name, host)
            given |= member_given
            complete = complete and valid
            if member is not None:
                members.append(member)
        return Instance(
            name=name,
            role=role,
            index=index,
            members=members,
            dp_size=values["pd_dp_size"] or 1,
            tp_size=values["pd_tp_size"] or 1,
            pp_size=values["pd_pp_size"],
            pcp_size=values["pd_pcp_size"],
            dcp_size=values["pd_dcp_size"],
            dp_mode=values["pd_dp_mode"],
            dp_address=values["pd_dp_address"],
            dp_rpc_port=values["pd_dp_rpc_port"],
            api_port=values["pd_api_port"],
            kv_port=values["pd_kv_port"],
            engine_args=values["pd_engine_args"],
            engine_env=values["pd_engine_env"],
            qos_priority=values["pd_qos_priority"],
            d2rh_zmq_port=values["pd_d2rh_zmq_port"],
            d2rh_scheduler_ready_port=values["pd_d2rh_scheduler_ready_port"],
            kv_cache_gib=values["pd_kv_cache_gib"],
            given=frozenset(given),
            complete=complete,
            sized=complete,
        )

    def _of_instance(self, variable: Variable, name: str, hosts: list[str]) -> tuple[t.Any, bool]:
        """(value or default, whether given) of a variable that all hosts of an instance share.

        A wrong value leaves the default, so that what else is wrong is found in the same run.
        """
        first: t.Any = _MISSING
        first_host, refused = "", False
        without = []
        for host in hosts:
            raw = self._raw(variable, host, name)
            if raw is _MISSING:
                without.append(host)
                continue
            value = self._typed(variable, host, raw)
            if value is _MISSING:
                refused = True
            elif first is _MISSING:
                first, first_host = value, host
            elif value != first:
                self.error(
                    "instance-variable-differs",
                    host,
                    variable.name,
                    value,
                    f"{variable.name} must be the same on all hosts of instance {name}, but is {_short(first, variable.name)} on "
                    f"{first_host} and {_short(value, variable.name)} on {host}",
                    f"set {variable.name} once for the instance, in group_vars/{name} or under pd_instances.{name}",
                )
                break
        else:
            if first is not _MISSING and without:
                self._given_for_some_of(variable, name, first, hosts, without)
        if first is _MISSING:
            refused = refused or any((host, variable.name) in self._refused for host in hosts)
            if variable.required and not refused:
                self._required(variable, name, hosts)
            return variable.default, False
        return first, True

    def _given_for_some_of(
        self, variable: Variable, name: str, value: t.Any, hosts: list[str], without: list[str]
    ) -> None:
        """A value of an instance that not all of its hosts have, unless they would have it anyway."""
        # Hosts in several instances have another rule.
        refused = self._refused
        without = [h for h in without if (h, variable.name) not in refused and len(self.instances_on[h]) == 1]
        anyway = self._node_ip(hosts[0], name) if variable.name == "pd_dp_address" else variable.default
        if not without or value == anyway:
            return
        having = [host for host in hosts if host not in without]
        instead = {"pd_engine_args": "pd_engine_args_extra", "pd_engine_env": "pd_engine_env_extra"}.get(variable.name)
        self.findings.append(
            Finding(
                "variable-scope",
                "warning",
                having[0],
                variable.name,
                value,
                f"{variable.name} is given only for {some(having)}, not for {some(without)}, but has one value for all hosts of "
                f"instance {name}: it holds for {some(without)} too",
                f"set it once for the instance, in group_vars/{name} or under pd_instances.{name}"
                + (f", or use {instead} where it is meant for one host" if instead else ""),
            )
        )

    def _required(self, variable: Variable, name: str, hosts: list[str]) -> None:
        shared = [host for host in hosts if len(self.instances_on[host]) > 1]
        if shared and name not in self.entries:
            return  # all of its variables are missing, which has been said
        place = f"under pd_instances.{name}" if shared else f"for the hosts of {name} ({some(hosts)})"
        self.error(
            "required-variable",
            name,
            variable.name,
            None,
            f"{variable.name} is not set for instance {name}",
            f"set {variable.name} {place}: {variable.meaning}",
        )

    def _member(self, name: str, host: str) -> tuple[Member | None, set[str], bool]:
        """(host's values, what was given, whether they can be laid out); None without an address."""
        values: dict[str, t.Any] = {}
        given = set()
        valid = True
        for variable in VARIABLES.values():
            if variable.scope != "H" or variable.name == "pd_node_ip":
                continue
            raw = self._raw(variable, host, name)
            value = variable.default if raw is _MISSING else self._typed(variable, host, raw)
            if value is _MISSING:
                # Chips and ranks that are not known cannot be laid out; a wrong card or mount can.
                valid, value = valid and variable.name not in _LAYOUT_VARIABLES, variable.default
            elif raw is not _MISSING:
                given.add(variable.name)
            values[variable.name] = value
        node_ip = self._node_ip(host, name)
        if self._raw(VARIABLES["pd_node_ip"], host, name) is not _MISSING:
            given.add("pd_node_ip")
        if node_ip is None:
            return None, given, False
        chips_per_node = values["pd_chips_per_node"] or self.default_chips
        mapped = values["pd_mapped_chips"]
        every = list(range(chips_per_node))
        chips = values["pd_chips"] or mapped or every
        return (
            Member(
                host=host,
                node_ip=node_ip,
                ansible_host=str(self.hosts.get(host, {}).get("ansible_host") or ""),
                nic=values["pd_nic"],
                chips_per_node=chips_per_node,
                chips=chips,
                # The runtime numbers what it sees in ascending order, whatever order the list has.
                mapped_chips=sorted(mapped or (every if self.sees_every_chip else chips)),
                dp_size_local=values["pd_dp_size_local"],
                dp_rank_start=values["pd_dp_rank_start"],
                mounts=values["pd_mounts"],
                kv_transfer_config=values["pd_kv_transfer_config"],
                engine_args_extra=values["pd_engine_args_extra"],
                engine_env_extra=values["pd_engine_env_extra"],
                roce_addresses=values["pd_roce_addresses"],
                roce_library=values["pd_roce_library"],
                net_instance_id=values["pd_net_instance_id"],
                host_memory_gib=values["pd_host_memory_gib"],
            ),
            given,
            valid,
        )

    def _node_ip(self, host: str, instance: str | None) -> str | None:
        variable = VARIABLES["pd_node_ip"]
        raw = self._raw(variable, host, instance)
        if raw is not _MISSING:
            value = self._typed(variable, host, raw)
            return None if value is _MISSING else str(value)
        if {(host, "pd_node_ip"), (host, "ansible_host")} & self._refused:
            return None  # its template is broken, which has been said
        fallback = self.hosts.get(host, {}).get("ansible_host") or host
        try:
            return str(convert(variable, fallback)[0])
        except BadValue as problem:
            if (host, "pd_node_ip") not in self._refused:
                self._refused.add((host, "pd_node_ip"))
                if _is_placeholder(str(fallback), "address"):
                    rule, message = "placeholder", f"ansible_host still holds the placeholder {fallback!r}"
                elif "IPv6" in str(problem):
                    rule, message = "node-ip-v6", f"ansible_host {fallback} {problem}"
                elif "ansible_host" in self.hosts.get(host, {}):
                    rule, message = (
                        "node-ip",
                        f"pd_node_ip is not set, and ansible_host {fallback!r} is no IPv4 address",
                    )
                else:
                    rule, message = "node-ip", f"{host} has neither pd_node_ip nor ansible_host"
                fix = f"set pd_node_ip of {host} to the IPv4 address that engines bind and other hosts reach"
                self.error(rule, host, "pd_node_ip", fallback, message, self._meant(host) + fix)
            return None


def _production_runtime(production: Source) -> str:
    """What the hosts would run with, had this been no rehearsal."""
    for values in production["hosts"].values():
        if isinstance(values.get("pd_runtime"), str):
            return str(values["pd_runtime"])
    return "docker"


_TAG = re.compile(r"v?(\d+(?:\.\d+)+(?:\.?(?:rc|post|dev)\d*)?)(?:[-_](.+))?")


def image_tag(image: str) -> tuple[str, str] | None:
    """(version, suffix) of a vLLM-Ascend image tag such as v0.23.0-a3-openeuler; None for any other tag or a digest only.

    An image of another name counts its own versions, which say nothing about vLLM-Ascend's.
    """
    name, tag = image_name(image)
    match = _TAG.fullmatch(tag) if is_upstreams(name) else None
    return (f"v{match[1]}", match[2] or "") if match else None


def image_name(image: str) -> tuple[str, str]:
    """(last part of the name, tag) of an image; the tag is empty where there is none."""
    name, _colon, tag = image.split("@", 1)[0].rsplit("/", 1)[-1].partition(":")
    return name, tag


def is_upstreams(name: str) -> bool:
    """Whether an image is called as upstream's are, on whatever registry."""
    return "vllm-ascend" in name


def _meant_choice(variable: Variable, raw: t.Any) -> str | None:
    """The one of a variable's choices that a value was meant to be, if that can be told."""
    if not variable.choices or not isinstance(raw, str):
        return None
    text = " ".join(raw.lower().replace("-", " ").split())
    if variable.name == "pd_hardware":
        for name, pattern in (("a2", _A2_NAME), ("a3", _A3_NAME)):
            if text == name or pattern.match(text):
                return name
        return None
    choices = {choice.lower().replace("_", " "): choice for choice in variable.choices}
    near = difflib.get_close_matches(text.replace("_", " "), choices, n=1, cutoff=0.8)
    return choices[near[0]] if near else None


def _near_variable(name: str) -> str | None:
    """What a misspelt name was meant to be. All begin with pd_, so only the rest tells."""
    names = {known.removeprefix("pd_"): known for known in (*VARIABLES, *RUN_SWITCHES)}
    near = difflib.get_close_matches(name.lower().replace("-", "_").removeprefix("pd_"), names, n=1, cutoff=0.75)
    return names[near[0]] if near else None


def _is_placeholder(text: str, kind: str) -> bool:
    return bool(_PLACEHOLDER.search(text) or (kind == "address" and _ADDRESS_PLACEHOLDER.match(text)))


def _placeholder_inside(value: t.Any) -> str | None:
    if isinstance(value, str):
        return value if _PLACEHOLDER_INSIDE.search(value) else None
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return next((found for found in map(_placeholder_inside, value) if found is not None), None)
    return None


def some(names: t.Sequence[str]) -> str:
    """The first few names, so that a message about 1,000 hosts stays a line."""
    return ", ".join(map(str, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def count(number: int, noun: str) -> str:
    """1 host, 2 hosts."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _short(value: t.Any, name: str) -> str:
    """A value of this variable for a message: cut only after its secrets have been masked."""
    text = repr(masking.masked(value, name))
    return text if len(text) <= 80 else text[:77] + "..."
