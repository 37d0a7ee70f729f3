# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What holds for every cluster, and that no value whatever ends in a traceback."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import json
import typing as t

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, report, slices
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.variables import VARIABLES
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Source,
    Variables,
    base,
    one_host,
    planned,
    told,
)

CONNECTORS = ("MooncakeConnectorV1", "MooncakeLayerwiseConnector", "MooncakeHybridConnector")


# Random clusters ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Drawn:
    """One instance of a random cluster: its hosts, the chips it has on each of them, its sizes."""

    name: str
    role: str
    hosts: list[str]
    chips: list[int]
    sizes: Variables


@dataclasses.dataclass
class Fleet:
    hardware: str
    connector: str
    instances: list[Drawn]
    variables: Variables

    def source(self) -> Source:
        hosts = list(dict.fromkeys(host for instance in self.instances for host in instance.hosts))
        children: dict[str, dict[str, list[str]]] = {"prefill": {}, "decode": {}}
        for instance in self.instances:
            children[instance.role][instance.name] = list(instance.hosts)
        entries = {instance.name: {"pd_chips": instance.chips, **instance.sizes} for instance in self.instances}
        cluster = {
            "pd_hardware": self.hardware,
            "pd_model_path": "/models/m",
            "pd_served_model_name": "m",
            "pd_connector": self.connector,
            "pd_engine_args_common": {"no-disable-hybrid-kv-cache-manager": True},
            "pd_instances": entries,
            **self.variables,
        }
        return {
            "groups": {
                **{role: {"hosts": [], "children": members} for role, members in children.items()},
                "proxy": {"hosts": [hosts[0]]},
            },
            # A host's address does not depend on the others, so that an appended one moves nobody's.
            "hosts": {host: {**cluster, "ansible_host": f"10.{ord(host[0])}.0.{int(host[1:]) + 1}"} for host in hosts},
        }


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Instances over hosts of their own or shared. Hosts are cut into equal parts; an instance has one part of each."""
    hardware, per_node = draw(st.sampled_from([("a2", 8), ("a3", 16)]))
    parts = draw(st.sampled_from([1, 2, 4]))
    width = per_node // parts
    free: dict[str, set[int]] = {}
    instances: list[Drawn] = []
    for role in ("prefill", "decode"):
        # All instances of a role have the same sizes.
        number_of_hosts, sizes = draw(st.integers(1, 3)), _sizes(draw, role, width)
        local = width // (sizes["pd_tp_size"] * sizes.get("pd_pp_size", 1))
        for number in range(draw(st.integers(1, 3))):
            part = draw(st.integers(0, parts - 1))
            hosts = _hosts(draw, free, parts, part, number_of_hosts)
            chips = list(range(part * width, (part + 1) * width))
            instances.append(
                Drawn(f"{role[0]}{number}", role, hosts, chips, {**sizes, "pd_dp_size": local * number_of_hosts})
            )
    return Fleet(hardware, draw(st.sampled_from(CONNECTORS)), instances, {})


def _sizes(draw: st.DrawFn, role: str, width: int) -> Variables:
    tp = draw(st.sampled_from([size for size in (1, 2, 4) if size <= width]))
    sizes: Variables = {"pd_tp_size": tp, "pd_dp_mode": draw(st.sampled_from(["external", "internal"]))}
    if role == "prefill" and tp * 2 <= width and draw(st.booleans()):
        sizes["pd_pp_size"] = 2
    return sizes


def _hosts(draw: st.DrawFn, free: dict[str, set[int]], parts: int, part: int, number: int) -> list[str]:
    """Hosts whose part is free: some that others use too, the rest new."""
    open_hosts = [host for host, left in free.items() if part in left]
    shared = draw(st.lists(st.sampled_from(open_hosts), unique=True, max_size=number)) if open_hosts else []
    new = [f"h{len(free) + offset}" for offset in range(number - len(shared))]
    free.update({host: set(range(parts)) for host in new})
    for host in (*shared, *new):
        free[host].remove(part)
    return [*shared, *new]


def overlaps_of(plan: planner.Plan) -> set[str]:
    """Hosts where two listeners take one port, counted port by port."""
    found = set()
    taken: dict[str, set[int]] = {}
    for own in plan.placements:
        ports = taken.setdefault(own.host, set())
        for item in own.ports:
            block = set(range(item.first, item.last + 1))
            if ports & block:
                found.add(own.host)
            ports |= block
    proxy = plan.proxy
    if proxy is not None and proxy["port"] in taken.get(proxy["host"], ()):
        found.add(proxy["host"])
    return found


def check_invariants(plan: planner.Plan) -> None:
    """What every plan keeps, whatever it was made of."""
    conflicts = {finding.host for finding in plan.findings if finding.rule == "port-conflict"}
    assert overlaps_of(plan) <= conflicts, told(plan.findings)
    for own in plan.placements:
        for item in own.ports:
            told_of = any(f.rule == "port-range" and f.variable == item.variable for f in plan.errors)
            assert 1 <= item.first <= item.last <= 65535 or told_of, told(plan.findings)
        # No chip is used twice inside a placement, and ranks take what is theirs.
        devices = [device for process in own.processes for device in process.visible_devices.split(",")]
        assert len(devices) == len(set(devices)) == own.dp_size_local * own.instance.rank_width
        assert len(set(own.used_chips)) == len(own.used_chips)
        assert [rank for process in own.processes for rank in process.dp_ranks] == list(
            range(own.dp_rank_start, own.dp_rank_start + own.dp_size_local)
        )
    used: dict[str, list[int]] = {}
    for own in plan.placements:
        used.setdefault(own.host, []).extend(own.used_chips)
    twice = {host for host, chips in used.items() if len(chips) != len(set(chips))}
    assert twice <= {f.host for f in plan.findings if f.rule == "chips-claimed-twice"}, told(plan.findings)
    for instance, members in itertools.groupby(plan.placements, key=lambda own: own.instance.name):
        placements = list(members)
        ranks = [rank for own in placements for process in own.processes for rank in process.dp_ranks]
        assert sorted(ranks) == list(range(placements[0].instance.dp_size)), instance
        assert len({own.instance.kv_port for own in placements}) == 1


def check_output(plan: planner.Plan) -> None:
    """It can be written, read back, shown and cut into slices."""
    written = json.loads(planner.to_json(plan))
    assert len(written["placements"]) == len(plan.placements)
    assert len(written["findings"]) == len(plan.findings)
    report.plan_lines(plan)
    report.finding_lines(plan.findings)
    for finding in plan.findings:
        assert finding.message
        assert finding.fix
        assert finding.host
        assert finding.severity in ("error", "warning")
    if not plan.errors:
        slices.overview(plan, slices.host_slices(plan, {}))


@settings(max_examples=150)
@given(fleets())
def test_random_clusters(fleet: Fleet) -> None:
    source = fleet.source()
    before = copy.deepcopy(source)
    plan = planned(source)
    assert source == before, "the inventory was changed"
    assert planner.to_json(planned(before)) == planner.to_json(plan), "two plans of one inventory"
    check_invariants(plan)
    check_output(plan)
    sizes = {"role-sizes-differ", "tp-prefill-below-decode", "tp-not-divisible"}
    assert {finding.rule for finding in plan.errors} <= sizes, told(plan.findings)
    assert len(plan.placements) == sum(len(instance.hosts) for instance in fleet.instances)


def ports_by_instance(plan: planner.Plan) -> dict[tuple[str, str], tuple[t.Any, ...]]:
    return {
        (own.instance.name, own.host): (
            own.kv_listen,
            tuple((item.first, item.last, item.owner) for item in own.ports),
            tuple(process.api_port for process in own.processes),
            own.instance.kv_port,
            own.instance.dp_rpc_port,
            own.instance.dp_address,
        )
        for own in plan.placements
    }


@settings(max_examples=150)
@given(fleets(), st.sampled_from(["prefill", "decode"]), st.booleans())
def test_appending_an_instance_moves_nobodys_ports(fleet: Fleet, role: str, shared: bool) -> None:
    """On hosts of its own or on hosts that its role already has; the other role's hosts are another matter."""
    own = [instance for instance in fleet.instances if instance.role == role]
    other = {host for instance in fleet.instances if instance.role != role for host in instance.hosts}
    last = own[-1]
    hosts = [host for host in last.hosts if host not in other] if shared else []
    hosts += [f"n{number}" for number in range(len(last.hosts) - len(hosts))]
    before = ports_by_instance(planned(fleet.source()))
    # Appended to its role: child groups of prefill come before decode's in the plan, whatever the order here.
    appended = Drawn(f"{role[0]}9", role, hosts, last.chips, dict(last.sizes))
    fleet.instances.append(appended)
    after = planned(fleet.source())
    got = ports_by_instance(after)
    for key, value in before.items():
        assert got[key] == value, key
    assert len(got) == len(before) + len(hosts), told(after.findings)
    assert not [finding for finding in after.errors if finding.rule == "port-conflict"], told(after.findings)


# Any given ports ------------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(st.integers(1, 65535), st.sampled_from([1, 7100, 12321, 19990, 35990, 36000, 60000, 65530]))
            for name in ("pd_kv_port", "pd_api_port", "pd_dp_rpc_port")
        },
    ),
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(st.integers(1, 65535), st.sampled_from([1999, 7100, 7200, 12322, 28000, 28200, 65534]))
            for name in ("pd_kv_port", "pd_api_port", "pd_dp_rpc_port")
        },
    ),
    st.sampled_from(CONNECTORS),
    st.sampled_from([1999, 7100, 12321, 28000, 36000]),
)
def test_given_ports_are_kept_or_refused(prefill: Variables, decode: Variables, connector: str, proxy: int) -> None:
    manager = {"pd_engine_args_common": {"no-disable-hybrid-kv-cache-manager": True}}
    source = one_host(prefill, decode, {"pd_connector": connector, "pd_proxy_port": proxy, **manager})
    plan = planned(source)
    check_invariants(plan)
    check_output(plan)
    assert plan.cluster is not None
    for given_, instance in zip((prefill, decode), plan.cluster.instances, strict=True):
        for name, value in given_.items():
            assert getattr(instance, name.removeprefix("pd_")) == value
    # Where a finding says conflict there is one.
    conflicts = {finding.host for finding in plan.findings if finding.rule == "port-conflict"}
    assert conflicts <= overlaps_of(plan)


@settings(max_examples=100)
@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.lists(st.one_of(st.none(), st.integers(-1, 20)), min_size=3, max_size=3),
    st.lists(st.one_of(st.none(), st.integers(0, 40)), min_size=3, max_size=3),
)
def test_any_layout_is_exact_or_refused(dp: int, tp: int, local: list[int | None], start: list[int | None]) -> None:
    more: dict[str, Variables] = {
        f"x{number}": {
            "pd_node_ip": f"192.0.2.{100 + number}",
            "pd_dp_size": dp,
            "pd_tp_size": tp,
            "pd_dp_size_local": local[number],
            "pd_dp_rank_start": start[number],
        }
        for number in range(3)
    }
    plan = planned(base(groups={"decode": {"hosts": ["x0", "x1", "x2"]}}, more=more))
    check_invariants(plan)
    check_output(plan)
    laid_out = [own for own in plan.placements if own.instance.role == "decode"]
    assert laid_out or {f.rule for f in plan.errors} & {"dp-ranks", "too-few-chips", "dp-size-local", "variable-value"}
    for own in laid_out:
        number = int(own.host[1:])
        assert start[number] in (None, own.dp_rank_start)
        assert local[number] in (None, own.dp_size_local) or (local[number] == -1 and own.dp_size_local == dp)


# Values without sense ---------------------------------------------------------------------------------------------------

ODD_TEXT = st.one_of(
    st.sampled_from(
        [
            *("", " ", "\0", "a\0b", "\n", "-x", "-1", "0", "1e9", "NaN", "true", "None", "null", "[1]", "{}"),
            *("٣", "²", "½", "\ud800", "9" * 5000, "x" * 5000),
            *("${HOME}", "$(id)", "{{ x }}", "<x>", "xxxx", "PIP:PORT", "/path_to/x", "../x"),
        ]
    ),
    st.text(max_size=12),
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 8, 16, 7100, 65535, 65536, -(10**30), 4096]),
    st.integers(-100, 70000),
    st.floats(),
    ODD_TEXT,
)
GARBAGE = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(ODD_TEXT, inner, max_size=4)),
    max_leaves=6,
)
# Nested where the planner looks inside.
KV_CONFIG = st.dictionaries(
    st.sampled_from(["kv_role", "kv_port", "engine_id", "connectors", "kv_connector_extra_config", "x"]),
    st.one_of(
        GARBAGE,
        st.dictionaries(
            st.sampled_from(["prefill", "decode", "connectors", "qos_priority", "use_ascend_direct"]),
            st.one_of(GARBAGE, st.dictionaries(st.sampled_from(["dp_size", "tp_size", "pp_size"]), GARBAGE)),
        ),
    ),
    max_size=3,
)
OPTIONS = st.dictionaries(
    st.sampled_from(
        [
            "speculative-config",
            "speculative_config",
            "additional-config",
            "block-size",
            "enable-prefix-caching",
            "no-enable-prefix-caching",
            "enable-expert-parallel",
            "cp-kv-cache-interleave-size",
            "tensor-parallel-size",
            "headless",
            "a.b",
        ]
    ),
    st.one_of(GARBAGE, st.dictionaries(st.sampled_from(["num_speculative_tokens", "method"]), GARBAGE, max_size=2)),
    max_size=4,
)
ENVIRONMENT = st.dictionaries(
    st.sampled_from(["ASCEND_BASE_PORT", "HCCL_IF_BASE_PORT", "HCCL_IF_IP", "ASCEND_RT_VISIBLE_DEVICES", "X"]),
    GARBAGE,
    max_size=3,
)


def value_for(name: str) -> st.SearchStrategy[t.Any]:
    kind = VARIABLES[name].kind
    fitting: dict[str, st.SearchStrategy[t.Any]] = {"arguments": OPTIONS, "environment": ENVIRONMENT}
    if name == "pd_kv_transfer_config":
        return st.one_of(GARBAGE, KV_CONFIG)
    if kind == "choice":
        return st.one_of(GARBAGE, st.sampled_from(VARIABLES[name].choices))
    if name == "pd_instances":
        entry = st.dictionaries(st.sampled_from(sorted(VARIABLES)), GARBAGE, max_size=3)
        return st.one_of(GARBAGE, st.dictionaries(st.sampled_from(["p-a", "d-a", "p-x"]), st.one_of(GARBAGE, entry)))
    return st.one_of(GARBAGE, fitting[kind]) if kind in fitting else GARBAGE


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Variables]:
    """Some variables of some scopes with some value."""
    names = draw(st.lists(st.sampled_from(sorted(VARIABLES)), min_size=1, max_size=4, unique=True))
    scope = st.sampled_from(["all", "prefill", "decode", "p1", "d2"])
    out: dict[str, Variables] = {}
    for name in names:
        out.setdefault(draw(scope), {})[name] = draw(value_for(name))
    return out


@settings(max_examples=300)
@given(changes())
@example({"all": {"pd_kv_port": True}})
@example({"d2": {"pd_chips": [[0]], "pd_mapped_chips": {"0": 1}}})
@example({"all": {"pd_instances": {"d-a": {"pd_instances": {}}}}})
def test_no_value_ends_in_a_traceback(changed: dict[str, Variables]) -> None:
    source = base(**changed)
    before = copy.deepcopy(source)
    plan = planned(source)
    check_output(plan)
    check_invariants(plan)
    assert repr(source) == repr(before), "the inventory was changed"


@pytest.mark.parametrize("name", sorted(VARIABLES))
@settings(max_examples=12)
@given(data=st.data())
def test_no_value_of_one_variable_ends_in_a_traceback(name: str, data: st.DataObject) -> None:
    value = data.draw(value_for(name))
    for source in (base(all={name: value}), one_host(decode={name: value})):
        plan = planned(source)
        check_output(plan)
        check_invariants(plan)


@settings(max_examples=40)
@given(st.dictionaries(st.one_of(st.just("pd_x"), st.text(max_size=8).map("pd_".__add__)), GARBAGE, max_size=3))
def test_unknown_variables_never_end_in_a_traceback(variables: Variables) -> None:
    plan = planned(base(p1=variables))
    check_output(plan)
    unknown = {name for name in variables if name not in VARIABLES and name not in ("pd_query", "pd_rehearsal")}
    assert {f.variable for f in plan.findings if f.rule == "unknown-variable"} == unknown - {"pd_rehearsal_dir"}
