# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Port arithmetic against the connectors' formulas, defaults, and what a host must keep free."""

from __future__ import annotations

import itertools
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import ports, tables
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.model import PortRange, Role
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Source,
    Variables,
    as_json,
    base,
    one_host,
    only,
    placement,
    planned,
    planned_by_default,
    told,
    two_prefill_on_p1,
)

V1, HYBRID, LAYERWISE = "MooncakeConnectorV1", "MooncakeHybridConnector", "MooncakeLayerwiseConnector"
PLAIN = "MooncakeConnector"


def bound(
    connector: str, role: Role, kv_port: int, start: int, local: int, tp: int, pp: int = 1, pcp: int = 1
) -> set[int]:
    """Every port that the workers of one host bind, one by one as upstream's connectors compute them."""
    found = set()
    ranks = range(start, start + local)
    for rank, pp_rank, pcp_rank, tp_rank in itertools.product(ranks, range(pp), range(pcp), range(tp)):
        if connector in (V1, PLAIN) and role == "prefill":
            found.add(kv_port + rank * tp * pp * pcp + (pp_rank * pcp + pcp_rank) * tp + tp_rank)
        elif connector == HYBRID and role == "prefill":
            found.add(kv_port + rank * tp * pp + pp_rank * tp + tp_rank)
        elif connector == LAYERWISE and role == "decode":
            found.add(kv_port + rank * pcp * tp + pcp_rank * tp + tp_rank)
    return found


ROLES: tuple[Role, Role] = ("prefill", "decode")


@pytest.mark.parametrize("connector", [V1, PLAIN, HYBRID, LAYERWISE])
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(("start", "local"), [(0, 1), (0, 2), (1, 1), (16, 16), (7, 3)])
@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize(("pp", "pcp"), [(1, 1), (2, 1), (1, 2), (4, 1), (2, 2)])
def test_listens_on_exactly_what_the_workers_bind(
    connector: str, role: Role, start: int, local: int, tp: int, pp: int, pcp: int
) -> None:
    if connector == HYBRID:
        pcp = 1  # it knows no context parallelism
    found = ports.kv_listen(tables.TRANSPORTS[connector], role, 36000, start, local, tp, pp, pcp)
    wanted = bound(connector, role, 36000, start, local, tp, pp, pcp)
    assert (set(range(found[0], found[1] + 1)) if found else set()) == wanted


@pytest.mark.parametrize(
    ("connector", "role", "kv_port", "start", "local", "sizes", "listens"),
    [
        (V1, "prefill", 36000, 0, 2, (8,), (36000, 36015)),
        (V1, "prefill", 36100, 0, 2, (8,), (36100, 36115)),
        (V1, "decode", 36200, 0, 16, (1,), None),
        (V1, "decode", 36200, 16, 16, (1,), None),
        (LAYERWISE, "decode", 36200, 0, 16, (1,), (36200, 36215)),
        (LAYERWISE, "decode", 36200, 16, 16, (1,), (36216, 36231)),
        (LAYERWISE, "prefill", 36000, 0, 2, (8,), None),
        (V1, "prefill", 30000, 1, 1, (16,), (30016, 30031)),
        (V1, "prefill", 30000, 0, 1, (2, 2), (30000, 30003)),
        (V1, "prefill", 36010, 0, 4, (1,), (36010, 36013)),
        (V1, "prefill", 30000, 1, 1, (2, 1, 2), (30004, 30007)),
        (HYBRID, "prefill", 30000, 1, 2, (4, 2), (30008, 30023)),
        (LAYERWISE, "decode", 30000, 1, 1, (4, 2), (30004, 30007)),
        (LAYERWISE, "decode", 30000, 1, 1, (4, 1, 2), (30008, 30015)),
    ],
)
def test_worked_ranges(
    connector: str,
    role: Role,
    kv_port: int,
    start: int,
    local: int,
    sizes: tuple[int, ...],
    listens: tuple[int, int] | None,
) -> None:
    assert ports.kv_listen(tables.TRANSPORTS[connector], role, kv_port, start, local, *sizes) == listens


def test_api_ports() -> None:
    assert ports.api_ports(7100, 16) == (7100, 7115)
    assert ports.api_ports(8080, 1) == (8080, 8080)


def test_dcp_adds_no_port() -> None:
    source = base(
        all={"pd_engine_args_common": {"cp-kv-cache-interleave-size": 128}},
        prefill={"pd_dcp_size": 8},
        decode={"pd_dp_size": 4, "pd_tp_size": 8, "pd_dp_size_local": 2, "pd_dcp_size": 8},
        d2={"pd_dp_rank_start": 2},
    )
    assert placement(planned(source), "p-a", "p1").kv_listen == (36000, 36015)


# Defaults -----------------------------------------------------------------------------------------------------------


def fleet(prefill: int, decode: int, hardware: str = "a3", **variables: t.Any) -> Source:
    """So many single-host instances of each role, with no port given."""
    children = {
        "prefill": {f"p{number}": [f"ph{number}"] for number in range(prefill)},
        "decode": {f"d{number}": [f"dh{number}"] for number in range(decode)},
    }
    hosts = {
        host: {
            "pd_hardware": hardware,
            "pd_model_path": "/models/m",
            "pd_served_model_name": "m",
            "ansible_host": f"192.0.{2 + number // 250}.{1 + number % 250}",
            "pd_dp_size": 2,
            "pd_tp_size": 4,
            **variables,
        }
        for number, host in enumerate(
            [h for hs in children["prefill"].values() for h in hs]
            + [h for hs in children["decode"].values() for h in hs]
        )
    }
    groups = {role: {"hosts": [], "children": members} for role, members in children.items()}
    return {"groups": {**groups, "proxy": {"hosts": ["ph0"]}}, "hosts": hosts}


def chosen(source: Source) -> dict[str, tuple[int | None, int | None, int | None]]:
    """Instance -> its kv, API and RPC port."""
    plan = planned(source)
    assert not plan.errors, told(plan.findings)
    assert plan.cluster is not None
    return {i.name: (i.kv_port, i.api_port, i.dp_rpc_port) for i in plan.cluster.instances}


@pytest.mark.parametrize(("hardware", "kv_base"), [("a3", 36000), ("a2", 28000)])
def test_defaults_are_the_guides(hardware: str, kv_base: int) -> None:
    found = chosen(fleet(3, 3, hardware))
    assert [found[f"p{k}"][0] for k in range(3)] == [kv_base, kv_base + 100, kv_base]
    assert [found[f"d{k}"][0] for k in range(3)] == [kv_base + 200, kv_base + 300, kv_base + 200]
    assert {(api, rpc) for _kv, api, rpc in found.values()} == {(7100, 12321)}


def test_the_guides_example_by_default() -> None:
    found = chosen(planned_by_default())
    assert found == {"p-a": (36000, 7100, 12321), "p-b": (36100, 7100, 12321), "d-a": (36200, 7100, 12321)}


def test_hundreds_of_instances_fit() -> None:
    plan = planned(fleet(300, 300))
    assert not plan.findings, told(plan.findings)
    assert max(ports_.last for own in plan.placements for ports_ in own.ports) < 40000


def test_fewer_chips_in_the_host_lower_the_default() -> None:
    source = fleet(1, 1, pd_chips_per_node=8)
    assert chosen(source)["p0"][0] == 28000


def test_the_default_base_counts_the_largest_host_of_the_instance() -> None:
    source = planned_by_default(d1={"pd_chips_per_node": 8}, decode={"pd_dp_size": 24})
    assert chosen(source)["d-a"][0] == 36200


def test_prefill_and_decode_on_one_host_step_aside() -> None:
    assert chosen(one_host()) == {"p-a": (28000, 7100, 12321), "d-a": (28200, 7200, 12322)}


def test_instances_of_one_role_on_one_host_count_up() -> None:
    chips: dict[str, Variables] = {
        f"p{k}": {"pd_chips": list(range(4 * k, 4 * k + 4)), "pd_dp_size": 2, "pd_tp_size": 2} for k in range(4)
    }
    source = planned_by_default(
        groups={"prefill": {"hosts": [], "children": {name: ["p1"] for name in chips}}},
        all={"pd_instances": chips},
    )
    found = chosen(source)
    assert [found[f"p{k}"] for k in range(4)] == [
        (36000, 7100, 12321),
        (36100, 7300, 12323),
        (36400, 7500, 12325),
        (36500, 7700, 12327),
    ]


def test_a_wide_block_pushes_the_next_further() -> None:
    """Two prefill groups over the same 16 hosts, 8 chips each: 128 ports wide, so 36100 is taken."""
    hosts = [f"x{number}" for number in range(16)]
    common: Variables = {
        "pd_hardware": "a3",
        "pd_model_path": "/models/m",
        "pd_served_model_name": "m",
        "pd_instances": {
            "p-a": {"pd_dp_size": 16, "pd_tp_size": 8, "pd_chips": list(range(8))},
            "p-b": {"pd_dp_size": 16, "pd_tp_size": 8, "pd_chips": list(range(8, 16))},
        },
    }
    source: Source = {
        "groups": {
            "prefill": {"hosts": [], "children": {"p-a": hosts, "p-b": hosts}},
            "decode": {"hosts": ["d1"]},
            "proxy": {"hosts": ["x0"]},
        },
        "hosts": {
            **{host: {**common, "ansible_host": f"192.0.2.{n + 1}"} for n, host in enumerate(hosts)},
            "d1": {**common, "ansible_host": "192.0.2.99", "pd_dp_size": 2, "pd_tp_size": 8},
        },
    }
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    for first, second in zip(plan.placements[:16], plan.placements[16:32], strict=True):
        assert first.host == second.host
        assert first.kv_listen is not None
        assert second.kv_listen is not None
        assert not set(range(first.kv_listen[0], first.kv_listen[1] + 1)) & set(
            range(second.kv_listen[0], second.kv_listen[1] + 1)
        )


def test_given_ports_are_kept() -> None:
    source = planned_by_default(
        p1={"pd_kv_port": 40000, "pd_api_port": 8000, "pd_dp_rpc_port": 13000},
    )
    assert chosen(source) == {
        "p-a": (40000, 8000, 13000),
        "p-b": (36100, 7100, 12321),
        "d-a": (36200, 7100, 12321),
    }


@pytest.mark.parametrize(
    ("variable", "value"), [("pd_api_port", 7200), ("pd_dp_rpc_port", 12322), ("pd_api_port", 7201)]
)
def test_what_is_left_out_steps_aside_of_what_is_given(variable: str, value: int) -> None:
    """The finding says: left out, the plan keeps them apart."""
    plan = planned(one_host(prefill={variable: value}))
    assert not plan.findings, told(plan.findings)


def test_a_kv_port_given_to_a_later_instance_moves_no_earlier_one() -> None:
    """An instance that is added never moves the ports of one that may run: the finding asks the user."""
    sizes: Variables = {"pd_dp_size": 1, "pd_dp_size_local": 1, "pd_tp_size": 8}
    source = two_prefill_on_p1(
        {**sizes, "pd_chips": list(range(8))},
        {**sizes, "pd_chips": list(range(8, 16)), "pd_kv_port": 36000, "pd_api_port": 7300, "pd_dp_rpc_port": 12323},
    )
    assert [finding.rule for finding in planned(source).errors] == ["port-conflict"]


# What a host keeps free ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([], ""),
        ([(7100, 7115)], "7100-7115"),
        ([(1999, 1999), (7100, 7101)], "1999,7100-7101"),
        ([(7102, 7103), (7100, 7101)], "7100-7103"),
        ([(7100, 7110), (7105, 7106)], "7100-7110"),
        ([(7100, 7101), (7103, 7103)], "7100-7101,7103"),
        ([(5, 5), (5, 5)], "5"),
    ],
)
def test_merged(ranges: list[tuple[int, int]], text: str) -> None:
    assert ports.merged(PortRange(first, last, "x", "pd_x") for first, last in ranges) == text


def test_overlaps() -> None:
    kv = PortRange(10, 20, "kv", "pd_kv_port")
    for first, last, overlap in ((1, 9, False), (1, 10, True), (12, 13, True), (20, 30, True), (21, 30, False)):
        other = PortRange(first, last, "x", "pd_x")
        assert kv.overlaps(other) is overlap
        assert other.overlaps(kv) is overlap


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [(15000, 17000), (20000, 35999), (60000, 60031)]),
        ({"pd_vllm_ascend_version": "v0.11.0"}, [(15000, 17000), (20000, 35999), (60000, 60031)]),
        ({"pd_cann_version": "8.2.RC1"}, [(15000, 17000), (20000, 35999), (60000, 60015)]),
        ({"pd_engine_env_common": {"HCCL_IF_BASE_PORT": 50000}}, [(15000, 17000), (20000, 35999), (50000, 50031)]),
        (
            {"pd_engine_env_common": {"HCCL_HOST_SOCKET_PORT_RANGE": "61000-61010, 62000"}},
            [(15000, 17000), (20000, 35999), (61000, 61010), (62000, 62000)],
        ),
        ({"pd_engine_env_common": {"HCCL_HOST_SOCKET_PORT_RANGE": "auto"}}, [(15000, 17000), (20000, 35999)]),
        ({"pd_engine_env_common": {"ASCEND_BASE_PORT": "40000"}}, [(15000, 17000), (40000, 55999), (60000, 60031)]),
        ({"pd_chips_per_node": 16}, [(15000, 17000), (20000, 35999), (60000, 60031)]),
    ],
)
def test_shared_ranges(variables: Variables, expected: list[tuple[int, int]]) -> None:
    source = as_json(base(all=variables))
    row = next(row for row in source["hosts"] if row["host"] == "d1")
    assert [(entry["first"], entry["last"]) for entry in row["shared_ports"]] == expected


def test_placements_of_a_host_have_shared_ranges_of_their_own() -> None:
    moved = {"p-a": "61000", "d-a": "62000"}
    source = one_host(*({"pd_engine_env": {"HCCL_IF_BASE_PORT": base_port}} for base_port in moved.values()))
    row = as_json(source)["hosts"][0]
    shared = [(entry["first"], entry["last"]) for entry in row["shared_ports"]]
    assert shared == [(15000, 17000), (20000, 27999), (61000, 61031), (62000, 62031)]
    assert row["ip_local_reserved_ports"].endswith("61000-61031,62000-62031")
    inside = only(one_host({"pd_kv_port": 62000}, {"pd_engine_env": {"HCCL_IF_BASE_PORT": "62000"}}), "kv-port-reserve")
    assert (inside.variable, inside.value) == ("pd_kv_port", 62000)


def test_the_measured_range_has_its_last_port() -> None:
    row = as_json(base(all={"pd_port_reserve": "measured"}))["hosts"][0]
    assert (20000, 21600) in [(entry["first"], entry["last"]) for entry in row["shared_ports"]]


def test_reserved_ports_of_every_host() -> None:
    """One value, as the kernel replaces its list: listeners and HCCL, the proxy where it runs."""
    rows = {row["host"]: row["ip_local_reserved_ports"] for row in as_json(base())["hosts"]}
    assert rows == {
        "p1": "1999,7100-7101,12321,36000-36015,60000-60031",
        "p2": "7100-7101,12321,36100-36115,60000-60031",
        "d1": "7100-7115,12321,60000-60031",
        "d2": "7100-7115,60000-60031",
    }


def test_reserved_ports_of_a_host_with_the_proxy_only() -> None:
    source = base(groups={"proxy": {"hosts": ["x1"]}}, more={"x1": {"pd_node_ip": "192.0.2.99"}})
    row = next(row for row in as_json(source)["hosts"] if row["host"] == "x1")
    assert row["ip_local_reserved_ports"] == "1999"
    assert row["instances"] == []
    assert row["proxy"] is True


# Findings about ports -------------------------------------------------------------------------------------------------


def test_the_fix_of_a_reserve_finding_works() -> None:
    for first in (20002, 35999, 16000, 60020):
        fix = only(base(p1={"pd_kv_port": first}), "kv-port-reserve").fix
        good = next(int(word) for word in fix.split() if word.isdigit())
        assert not planned(base(p1={"pd_kv_port": good})).findings, fix


def test_the_fix_for_a_later_host_of_an_instance_works_for_all_of_them() -> None:
    """d2 binds kv_port + 16 and on: a value that clears d2 alone still has d1 inside."""
    source = base(all={"pd_connector": LAYERWISE}, decode={"pd_kv_port": 35980})
    errors = planned(source).errors
    assert [finding.host for finding in errors] == ["d1", "d2"]
    for finding in errors:
        good = next(int(word) for word in finding.fix.split() if word.isdigit())
        repaired = base(all={"pd_connector": LAYERWISE}, decode={"pd_kv_port": good})
        assert not planned(repaired).findings, finding.fix


@pytest.mark.parametrize("port", [20001, 15500, 60001])
def test_the_proxy_in_a_reserve_is_warned_about(port: int) -> None:
    finding = only(base(all={"pd_proxy_port": port}), "listener-in-reserve")
    assert (finding.host, finding.variable, finding.value) == ("p1", "pd_proxy_port", port)


def test_a_conflict_names_both_sides_once() -> None:
    source = base(all={"pd_proxy_port": 7115}, groups={"proxy": {"hosts": ["d2"]}})
    finding = only(source, "port-conflict")
    assert finding.host == "d2"
    for words in ("7115", "7100-7115", "d-a", "pd_api_port", "pd_proxy_port"):
        assert words in finding.message
