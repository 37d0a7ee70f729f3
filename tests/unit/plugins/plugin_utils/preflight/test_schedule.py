# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Who pings whom: every chosen pair once per direction, nobody asked twice at once, within the budget."""

from __future__ import annotations

import collections
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.schedule import (
    MODES,
    HostFabric,
    Schedule,
    schedule,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import fleets

Edge = tuple[tuple[str, int], tuple[str, int]]


def fabric(number: int, chips: t.Sequence[int], lacking: t.Collection[int] = ()) -> HostFabric:
    addresses = {chip: None if chip in lacking else f"10.{number // 250}.{number % 250}.{chip + 1}" for chip in chips}
    return HostFabric(chips, addresses, {chip: chip // 2 for chip in chips})


def uniform(count: int, chips: int = 16) -> dict[str, HostFabric]:
    return {f"h{number}": fabric(number, range(chips)) for number in range(count)}


def edges(plan: Schedule) -> list[Edge]:
    return [
        ((host, ping.chip), (ping.target_host, ping.target_chip))
        for host, pings in plan.by_host.items()
        for ping in pings
    ]


def partners(plan: Schedule) -> dict[str, set[str]]:
    found: dict[str, set[str]] = collections.defaultdict(set)
    for (host, _chip), (other, _other_chip) in edges(plan):
        found[host].add(other)
    return found


chip_lists = st.lists(st.integers(0, 15), unique=True, min_size=1, max_size=16).map(sorted)
fleets_of_any_shape = st.lists(
    st.one_of(st.just(list(range(8))), chip_lists).flatmap(
        lambda chips: st.tuples(st.just(chips), st.sets(st.sampled_from(chips), max_size=2))
    ),
    max_size=12,
).map(lambda hosts: {f"h{number}": fabric(number, chips, lacking) for number, (chips, lacking) in enumerate(hosts)})
options = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(MODES),
        "plane": st.sampled_from(["hccs", "roce"]),
        "peers": st.integers(2, 12),
        "budget_seconds": st.one_of(st.just(1e6), st.integers(1, 60)),
    }
)


@hypothesis.given(fleets_of_any_shape, options)
@hypothesis.settings(max_examples=300)
def test_every_schedule(hosts: dict[str, HostFabric], chosen: dict[str, t.Any]) -> None:
    plan = schedule(hosts, ping_seconds=1.0, **chosen)
    made = edges(plan)
    # Once per direction, and both directions of each.
    assert len(set(made)) == len(made)
    assert {(b, a) for a, b in made} == set(made)
    # By address, and only what has one.
    for host, pings in plan.by_host.items():
        for ping in pings:
            assert ping.chip in hosts[host].chips and hosts[host].addresses[ping.chip]
            assert hosts[ping.target_host].addresses[ping.target_chip] == ping.address
            assert (host, ping.chip) != (ping.target_host, ping.target_chip)
    # One after the other on a host, and in one round no chip is asked by two hosts.
    for pings in plan.by_host.values():
        rounds = [ping.round for ping in pings]
        assert rounds == sorted(rounds) and len(set(rounds)) == len(rounds)
    asked = collections.Counter(
        (ping.round, ping.target_host, ping.target_chip) for pings in plan.by_host.values() for ping in pings
    )
    assert not asked or max(asked.values()) == 1
    # Within the time that there is; what that costs is named.
    assert all(len(pings) <= chosen["budget_seconds"] for pings in plan.by_host.values())
    # Over RoCE the dies of a card do not reach each other.
    if chosen["plane"] == "roce":
        assert not [1 for (a, x), (b, y) in made if a == b and hosts[a].siblings[x] == hosts[b].siblings[y]]


@hypothesis.given(fleets_of_any_shape, options)
@hypothesis.settings(max_examples=200)
def test_what_is_chosen(hosts: dict[str, HostFabric], chosen: dict[str, t.Any]) -> None:
    plan = schedule(hosts, ping_seconds=1.0, **{**chosen, "budget_seconds": 1e6})
    usable = {
        host: [chip for chip in one.chips if one.addresses[chip]]
        for host, one in hosts.items()
        if any(one.addresses.values())
    }
    others = partners(plan)
    limit = {"ring": 2, "rail": chosen["peers"], "full": len(usable)}[chosen["mode"]]
    if chosen["mode"] == "full":
        siblings = chosen["plane"] == "roce"
        everything = {
            ((a, x), (b, y))
            for a, own in usable.items()
            for b, theirs in usable.items()
            for x in own
            for y in theirs
            if (a, x) != (b, y) and not (siblings and a == b and hosts[a].siblings[x] == hosts[b].siblings[y])
        }
        assert set(edges(plan)) == everything
        return
    assert all(len(found) <= max(limit, 2) for found in others.values())
    if len(usable) > 1:
        # Every chip with an address is tested, and every host hangs together with every other.
        assert {end for end, _other in edges(plan)} == {
            (host, chip) for host, chips in usable.items() for chip in chips
        }
        seen, front = set(), [next(iter(usable))]
        while front:
            host = front.pop()
            if host not in seen:
                seen.add(host)
                front += others[host]
        assert seen == set(usable)
    # The same chip, wherever both hosts have it.
    for (a, x), (b, y) in edges(plan):
        if x in usable[b] and y in usable[a]:
            assert x == y


def test_rail_tests_the_same_chip_on_all_other_hosts_of_a_small_fleet() -> None:
    plan = schedule(uniform(4))
    assert set(edges(plan)) == {
        ((f"h{a}", chip), (f"h{b}", chip)) for a in range(4) for b in range(4) if a != b for chip in range(16)
    }
    assert plan.left_out == []


def test_two_hosts_work_at_the_same_time() -> None:
    plan = schedule(uniform(2))
    assert {ping.round for pings in plan.by_host.values() for ping in pings} == set(range(16))


def test_a_thousand_hosts_stay_in_minutes() -> None:
    plan = schedule(uniform(1000), ping_seconds=1.0)
    assert {len(pings) for pings in plan.by_host.values()} == {8 * 16}
    assert all(len(found) == 8 for found in partners(plan).values())
    # Near and far: not only neighbours.
    distances = {(int(other[1:]) - int(host[1:])) % 1000 for host, found in partners(plan).items() for other in found}
    assert min(distances) == 1 and max(min(one, 1000 - one) for one in distances) >= 8
    assert [(one["why"], one["pairs"]) for one in plan.left_out] == [("peer_cap", 1000 * (999 - 8) // 2)]


def test_a_small_budget_covers_chips_before_peers() -> None:
    plan = schedule(uniform(6), budget_seconds=32, ping_seconds=1.0)
    for host, pings in plan.by_host.items():
        assert {ping.chip for ping in pings} == set(range(16)), host
    assert {one["host"] for one in plan.left_out if one["why"] == "budget"} == set(plan.by_host)


def test_siblings_are_skipped_over_roce_and_not_over_hccs() -> None:
    def pairs(plane: t.Any) -> int:
        return len(edges(schedule(uniform(1), mode="full", plane=plane, budget_seconds=1e6)))

    assert pairs("hccs") == 16 * 15
    assert pairs("roce") == 16 * 14


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"mode": "all"}, "preflight_ping_mode is 'all'"),
        ({"peers": 1}, "preflight_ping_peers is 1"),
        ({"budget_seconds": 0}, "seconds above 0"),
    ],
)
def test_bad_options_are_refused(wrong: dict[str, t.Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        schedule(uniform(3), **wrong)


# From facts and back --------------------------------------------------------------------------------------------------


def plan_for(case: fleets.Case, **more: t.Any) -> Schedule:
    return preflight.plan_pings(t.cast(t.Any, case.view), t.cast(t.Any, case.facts), **more)


@pytest.mark.parametrize(("hardware", "mode", "kind"), [("a2", "roce", "ip"), ("a3", "hccs", "vnic")])
def test_addresses_are_those_of_the_plane(hardware: str, mode: str, kind: str) -> None:
    """FAB-07: HCCS pings ask vNIC addresses, RoCE pings device addresses, never that of the host."""
    case = fleets.good(hardware)
    plan = plan_for(case)
    known = {case.query(host, chip, kind)["ipaddr"] for host in case.hosts for chip in case.chips()}
    asked = [one for host in plan.by_host for one in preflight.module_options(plan, host)]
    assert asked and {one["target"] for one in asked} <= known
    assert {one["mode"] for one in asked} == {mode}
    assert not known & {host["node_ip"] for host in case.view["hosts"].values()}


def test_chips_that_cannot_ping_do_not() -> None:
    case = fleets.good("a3")
    case.facts["p1"]["npu"]["tools"]["hccn_tool"]["state"] = "tool_missing"
    case.facts["p2"]["npu"]["chips"]["5"]["vnic"] = {"state": "not_configured"}
    case.query("d1", 3, "vnic")["ipaddr"] = "-.-.-.-"
    # Read, and of no chip: a subnet's broadcast address.
    case.query("d1", 4, "vnic").update(state="unknown", ipaddr="10.0.2.255")
    case.query("d1", 6, "vnic")["ipaddr"] = "224.0.0.1"
    del case.facts["d2"]
    plan = plan_for(case)
    assert set(plan.by_host) == {"p2", "d1"}
    ends = {end for end, _other in edges(plan)}
    assert not {("p2", 5), ("d1", 3), ("d1", 4), ("d1", 6)} & ends
    assert [(one["why"], one["host"], one["chips"]) for one in plan.left_out] == [
        ("no_address", "p2", [5]),
        ("no_address", "d1", [3, 4, 6]),
    ]


def test_results_get_the_names_of_their_ends() -> None:
    case = fleets.good("a3", ("p1", "d1"))
    plan = plan_for(case)
    first, second = plan.by_host["p1"][0], plan.by_host["p1"][1]
    told = {"chip": first.chip, "target": first.address, "state": "ok", "loss_percent": 0.0, "sent": 3, "received": 3}
    left = {"chip": second.chip, "target": second.address}
    run = preflight.ping_run(plan, {"p1": {"pings": [told], "left_out": [left]}})
    assert len(run["results"]) == 31
    found = {(one["from_host"], one["from_chip"], one["to_host"], one["to_chip"]): one for one in run["results"]}
    assert found["p1", 0, "d1", 0]["state"] == "ok" and found["p1", 0, "d1", 0]["loss_percent"] == 0.0
    # Nobody told of the others: not known, and never good.
    assert {one["state"] for key, one in found.items() if key != ("p1", 0, "d1", 0)} == {"unknown"}
    assert run["left_out"] == [{"why": "budget", "host": "p1", "chips": [1], "pairs": 1}]
