# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Which host tries which ports of which others."""

from __future__ import annotations

import collections
import copy
import json
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import probes
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.probes import Endpoint, Schedule, plan_probes
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import as_json, base, one_host

LAYERWISE = "MooncakeLayerwiseConnector"
SHARED = {15000, 17000, 20000, 35999, 60000, 60031}


def found(schedule: Schedule) -> dict[tuple[str, str, str], list[int]]:
    """(kind, from, to) -> ports."""
    out: dict[tuple[str, str, str], list[int]] = {}
    for source, tried in schedule.probes.items():
        for one in tried:
            out.setdefault((one.kind, source, one.to), []).append(one.port)
    return out


def of_kind(schedule: Schedule, kind: str) -> dict[tuple[str, str], list[int]]:
    return {(source, to): ports for (each, source, to), ports in found(schedule).items() if each == kind}


def pairs(schedule: Schedule, *kinds: str) -> set[tuple[str, str]]:
    return {(source, to) for kind, source, to in found(schedule) if kind in kinds}


def test_two_prefill_one_decode() -> None:
    """p1 has the proxy; the decode instance has 32 ranks on d1 and d2."""
    schedule = plan_probes(as_json(base()))
    assert of_kind(schedule, "api") == {
        ("p1", "p2"): [7100, 7101],
        ("p1", "d1"): [*range(7100, 7116)],
        ("p1", "d2"): [*range(7100, 7116)],
    }
    assert of_kind(schedule, "rpc") == {("d2", "d1"): [12321]}
    assert of_kind(schedule, "kv") == {
        (source, to): ports
        for source in ("d1", "d2")
        for to, ports in (("p1", [*range(36000, 36016)]), ("p2", [*range(36100, 36116)]))
    }
    across = {(a, b) for a in ("p1", "p2") for b in ("d1", "d2")}
    transfers = of_kind(schedule, "transfer")
    assert set(transfers) == across | {(b, a) for a, b in across}
    assert all(set(ports) == SHARED for ports in transfers.values())
    assert of_kind(schedule, "hccl") == {("d1", "d2"): [60000, 60031], ("d2", "d1"): [60000, 60031]}
    assert of_kind(schedule, "proxy") == {}
    assert schedule.left_out == []


def test_what_is_tried_is_listened_on_and_nothing_else() -> None:
    schedule = plan_probes(as_json(base()))
    tried = collections.defaultdict(set)
    for chosen in schedule.probes.values():
        assert len({(one.to, one.address, one.port) for one in chosen}) == len(chosen), "each once"
        for one in chosen:
            tried[one.to].add(Endpoint(one.address, one.port))
    assert {host: set(endpoints) for host, endpoints in schedule.listen.items()} == tried
    assert {endpoint.address for endpoint in schedule.listen["d1"]} == {"192.0.2.21"}
    # Nobody but the host itself needs the proxy's port here, and p1 does not try its own engines.
    assert {endpoint.port for endpoint in schedule.listen["p1"]} == SHARED | {*range(36000, 36016)}
    assert probes.listen_options(schedule, "p1")[0] == {"address": "192.0.2.11", "port": 15000}
    options = probes.probe_options(schedule, "p1")
    assert options[0] == {"to": "p2", "address": "192.0.2.12", "port": 7100}
    assert len(options) == len(schedule.probes["p1"]) and schedule.count == sum(map(len, schedule.probes.values()))


def with_pool(**pool: t.Any) -> t.Any:
    groups = {} if "master" in pool else {"kv_pool": {"hosts": ["p1"], "children": {}}}
    return as_json(base(groups=groups, all={"pd_kv_pool": {"backend": "mooncake", **pool}}))


def test_engines_try_the_pools_master() -> None:
    schedule = plan_probes(with_pool())
    assert of_kind(schedule, "pool") == {(host, "p1"): [50088] for host in ("p2", "d1", "d2")}
    assert Endpoint("192.0.2.11", 50088) in schedule.listen["p1"], "like any other port where its host takes part"


def test_a_master_outside_the_run_is_tried_as_it_is() -> None:
    schedule = plan_probes(with_pool(), asked=["p2", "d1"])
    assert of_kind(schedule, "pool") == {("p2", "p1"): [50088], ("d1", "p1"): [50088]}
    assert "p1" not in schedule.listen
    answers = {host: {"bound": [], "live": []} for host in ("p2", "d1")}
    there = probes.after_listening(schedule, answers)
    assert probes.probe_options(there, "d1") == [{"to": "p1", "address": "192.0.2.11", "port": 50088}]

    elsewhere = plan_probes(with_pool(master="192.0.2.250:50088"))
    assert of_kind(elsewhere, "pool") == {(host, "192.0.2.250:50088"): [50088] for host in ("p1", "p2", "d1", "d2")}
    assert set(elsewhere.listen) == {"p1", "p2", "d1", "d2"}


def test_a_master_by_name_and_one_that_a_rehearsal_must_not_meet_are_not_tried() -> None:
    assert of_kind(plan_probes(with_pool(master="pool.example:50088")), "pool") == {}
    rehearsed = with_pool(master="192.0.2.250:50088")
    for placement in rehearsed["placements"]:
        placement["node_ip"] = "127.7.0.1"
    assert of_kind(plan_probes(rehearsed), "pool") == {}


def test_layerwise_turns_the_side_that_connects() -> None:
    schedule = plan_probes(as_json(base(all={"pd_connector": LAYERWISE})))
    kv = of_kind(schedule, "kv")
    assert set(kv) == {(a, b) for a in ("p1", "p2") for b in ("d1", "d2")}
    assert len(set(map(tuple, kv.values()))) == 2, "each decode host listens on a range of its own"
    # Decode posts to the proxy's page /v1/metaserver.
    assert of_kind(schedule, "proxy") == {("d1", "p1"): [1999], ("d2", "p1"): [1999]}
    assert Endpoint("192.0.2.11", 1999) in schedule.listen["p1"]


def test_a_host_does_not_try_itself() -> None:
    schedule = plan_probes(as_json(one_host()))
    assert schedule.count == 0 and schedule.left_out == []
    assert set(schedule.listen) == set(schedule.probes)


def test_a_head_that_does_not_listen_is_not_tried() -> None:
    plan = as_json(base())
    for placement in plan["placements"]:
        placement["ports"] = [row for row in placement["ports"] if row["owner"] != "dp_rpc"]
    assert of_kind(plan_probes(plan), "rpc") == {}


def test_a_head_is_tried_at_the_address_its_members_use() -> None:
    plan = as_json(base())
    for instance in plan["instances"]:
        if instance["role"] == "decode":
            instance["dp_address"] = "198.51.100.21"
    schedule = plan_probes(plan)
    (probe,) = [one for one in schedule.probes["d2"] if one.kind == "rpc"]
    assert (probe.to, probe.address, probe.port) == ("d1", "198.51.100.21", 12321)
    assert Endpoint("198.51.100.21", 12321) in schedule.listen["d1"]


def test_without_a_proxy() -> None:
    plan = as_json(base())
    plan["proxy"] = None
    assert of_kind(plan_probes(plan), "api") == {}


# -- large clusters ----------------------------------------------------------------------------------------------------


def fleet(prefill: int, decode: int, *, group: int = 1) -> dict[str, t.Any]:
    """A plan with this many hosts per role; decode instances of `group` hosts each. The proxy is on a host of its own."""
    shared = [
        {"first": 15000, "last": 17000, "owner": "mooncake transfer engine", "variable": "MC_MIN_RPC_PORT"},
        {"first": 60000, "last": 60031, "owner": "hccl", "variable": "HCCL_IF_BASE_PORT"},
    ]
    plan: dict[str, t.Any] = {
        "proxy": {"host": "x", "address": "10.9.9.9", "port": 1999, "kind": "prefill_first"},
        "kv_pool": None,
        "hosts": [],
        "placements": [],
        "instances": [],
    }
    for role, count, width in (("prefill", prefill, 1), ("decode", decode, group)):
        for number in range(count):
            name, instance = f"{role}{number}", f"{role}-{number // width}"
            address = f"10.{'pd'.index(role[0])}.{number // 250}.{number % 250 + 1}"
            head = number % width == 0
            ports = [{"first": 7100, "last": 7115, "owner": "api", "variable": "pd_api_port"}]
            if head:
                ports.append({"first": 12321, "last": 12321, "owner": "dp_rpc", "variable": "pd_dp_rpc_port"})
                plan["instances"].append({"name": instance, "role": role, "dp_address": address})
            kv = [36000, 36015] if role == "prefill" else []
            plan["hosts"].append({"host": name, "node_ip": address, "shared_ports": shared})
            placement = {"instance": instance, "host": name, "role": role, "node_ip": address, "ports": ports}
            plan["placements"].append({**placement, "kv_listen": kv})
    plan["hosts"].append({"host": "x", "node_ip": "10.9.9.9", "shared_ports": []})
    return plan


def degrees(schedule: Schedule, *kinds: str) -> tuple[dict[str, int], dict[str, int]]:
    """How many hosts each host tries, and how many try it."""
    out: dict[str, int] = collections.Counter(source for source, _to in pairs(schedule, *kinds))
    into: dict[str, int] = collections.Counter(to for _source, to in pairs(schedule, *kinds))
    return out, into


@pytest.mark.parametrize(("prefill", "decode"), [(500, 500), (900, 124), (17, 1000), (333, 77), (16, 16), (3, 40)])
def test_a_thousand_hosts_stay_within_the_cap(prefill: int, decode: int) -> None:
    schedule = plan_probes(fleet(prefill, decode))
    out, into = degrees(schedule, "kv", "transfer")
    for role, own, other in (("prefill", prefill, decode), ("decode", decode, prefill)):
        made = {host: count for host, count in out.items() if host.startswith(role)}
        assert len(made) == own and set(made.values()) == {min(16, other)}
        # Even: the work of being tried is the same for all, up to one.
        tried = [into.get(f"{role}{number}", 0) for number in range(own)]
        assert max(tried) - min(tried) <= 1
    assert max(len(probes) for host, probes in schedule.probes.items() if host != "x") <= probes.PEERS * (
        16 + len(SHARED)
    )
    assert len(of_kind(schedule, "api")) == prefill + decode, "the proxy has to reach everybody"
    assert len(schedule.probes["x"]) <= max(2 * (prefill + decode), probes.MANY_ENDPOINTS)


def test_what_the_cap_leaves_out_is_counted_and_named() -> None:
    schedule = plan_probes(fleet(2, 40))
    assert schedule.left_out == [
        # 80 pairs each way; a prefill host tries 16 of the 40, together 32, and so 8 are never tried.
        {"why": "peer_cap", "kind": "transfer", "pairs": 48, "hosts": schedule.left_out[0]["hosts"], "ports": []},
    ]
    untried = set(schedule.left_out[0]["hosts"])
    assert len(untried) == 8
    assert untried.isdisjoint(to for source, to in pairs(schedule, "transfer") if source.startswith("prefill"))
    assert plan_probes(fleet(2, 40), peers=40).left_out == []


def test_pairs_tried_and_left_out_are_all_there_are() -> None:
    schedule = plan_probes(fleet(30, 70, group=35), peers=4)
    left = {(row["kind"], row["why"]): 0 for row in schedule.left_out}
    for row in schedule.left_out:
        left[row["kind"], row["why"]] += row["pairs"]
    assert len(of_kind(schedule, "transfer")) + left["transfer", "peer_cap"] == 2 * 30 * 70
    assert len(of_kind(schedule, "kv")) + left["kv", "peer_cap"] == 70 * 30
    assert len(of_kind(schedule, "hccl")) + left["hccl", "peer_cap"] == 2 * 35 * 34


def test_within_an_instance_everybody_tries_as_often_as_he_is_tried() -> None:
    schedule = plan_probes(fleet(1, 100, group=50), peers=6)
    out, into = degrees(schedule, "hccl")
    assert set(out.values()) == set(into.values()) == {6} and len(out) == len(into) == 100
    assert all((int(a[6:]) < 50) == (int(b[6:]) < 50) for a, b in pairs(schedule, "hccl"))
    assert len(of_kind(schedule, "rpc")) == 98


def test_the_targets_of_one_host_lie_far_apart() -> None:
    """Neighbours in the inventory are often in one rack; a firewall between racks must be met."""
    schedule = plan_probes(fleet(100, 1000))
    for number in (0, 50, 99):
        targets = sorted(int(to[6:]) for source, to in pairs(schedule, "transfer") if source == f"prefill{number}")
        assert len({target // 100 for target in targets}) >= 8, targets


def test_the_same_plan_gives_the_same_schedule() -> None:
    plan = fleet(20, 50, group=10)
    again = json.loads(json.dumps(copy.deepcopy(plan)))
    assert plan_probes(plan, peers=5) == plan_probes(again, peers=5)


@pytest.mark.parametrize("most", [1, 2, 3, 15, 16, 99])
def test_spread_and_ring_never_repeat_a_pair(most: int) -> None:
    for count in range(1, 40):
        hosts = [f"h{number}" for number in range(count)]
        for chosen in (probes.ring(hosts, most), probes.spread(hosts, hosts, most)):
            assert len(set(chosen)) == len(chosen) == count * min(most, count - 1)
            assert all(source != to for source, to in chosen)
    assert probes.spread(["a"], [], most) == [] == probes.spread([], ["a"], most)


def test_a_cap_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="the peer cap is 0; it is 1 or more"):
        plan_probes(fleet(1, 1), peers=0)


# -- limits and answers ------------------------------------------------------------------------------------------------


def test_hosts_outside_the_limit_are_named() -> None:
    plan = as_json(base())
    schedule = plan_probes(plan, asked=["p1", "d1"])
    assert set(schedule.probes) == set(schedule.listen) == {"p1", "d1"}
    assert pairs(schedule, *probes.KINDS) == {("p1", "d1"), ("d1", "p1")}
    assert {row["why"] for row in schedule.left_out} == {"not_asked"}
    by_kind = {row["kind"]: (row["pairs"], sorted(row["hosts"])) for row in schedule.left_out}
    assert by_kind == {
        "api": (2, ["d2", "p2"]),
        "rpc": (1, ["d2"]),
        "kv": (3, ["d2", "p2"]),
        "transfer": (6, ["d2", "p2"]),
        "hccl": (2, ["d2"]),
    }
    assert plan_probes(plan, asked=[]).probes == {}


def test_ports_on_which_nobody_listens_are_not_tried() -> None:
    schedule = plan_probes(as_json(base()))
    answers: dict[str, dict[str, t.Any] | None] = {
        host: {"bound": probes.listen_options(schedule, host), "live": [], "not_bound": []} for host in schedule.listen
    }
    assert probes.after_listening(schedule, answers) == schedule
    d1, p1 = answers["d1"], answers["p1"]
    assert d1 is not None and p1 is not None
    (rpc,) = [row for row in d1["bound"] if row["port"] == 12321]
    d1["bound"].remove(rpc)
    d1["not_bound"].append({**rpc, "why": "in use"})
    p1["live"], p1["bound"] = p1["bound"], []
    answers["p2"] = None
    left = probes.after_listening(schedule, answers)
    assert pairs(left, "rpc") == set() and ("d2", "d1") in pairs(left, "hccl")
    assert pairs(left, "kv") == {("d1", "p1"), ("d2", "p1")}, "what is live is tried as well"
    assert "p2" not in {one.to for probes in left.probes.values() for one in probes}
    assert left.probes["p2"] == schedule.probes["p2"][:0] + [
        one for one in schedule.probes["p2"] if (one.to, one.port) != ("d1", 12321)
    ]
    assert {"why": "not_listening", "kind": "rpc", "pairs": 1, "hosts": ["d1"], "ports": [12321]} in left.left_out
    assert {"why": "not_answered", "kind": "kv", "pairs": 2, "hosts": ["p2"], "ports": []} in left.left_out


@pytest.mark.parametrize(("hosts", "forks", "seconds"), [(4, 5, 126), (1000, 50, 240), (1000, 5, 600)])
def test_listeners_live_as_long_as_the_fleet_needs(hosts: int, forks: int, seconds: int) -> None:
    schedule = Schedule({}, {str(number): [] for number in range(hosts)}, [])
    assert probes.lifetime(schedule, forks) == seconds
