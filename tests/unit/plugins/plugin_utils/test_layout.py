# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Ranks over hosts, chips under ranks."""

from __future__ import annotations

import dataclasses
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import layout
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.connectors import VLLM_ASCEND_MODULE
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    Source,
    Variables,
    base,
    one_host,
    only,
    placement,
    planned,
    planned_by_default,
    told,
    value_of,
)


@pytest.mark.parametrize(
    ("mapped", "wanted", "indices"),
    [
        ([0, 3, 4, 7], [4, 7], [2, 3]),
        ([4, 5, 6, 7], [4, 5, 6, 7], [0, 1, 2, 3]),
        ([4, 5, 6, 7], [7, 4], [3, 0]),
        (range(16), range(8, 16), list(range(8, 16))),
        ([5], [5], [0]),
        ([0, 1], [], []),
    ],
)
def test_visible_devices(mapped: t.Sequence[int], wanted: t.Sequence[int], indices: list[int]) -> None:
    assert layout.visible_devices(mapped, wanted) == indices


def test_visible_devices_names_all_chips_that_are_not_mapped() -> None:
    with pytest.raises(ValueError, match=r"5, 9.*0, 3, 4, 7"):
        layout.visible_devices([0, 3, 4, 7], [4, 5, 9])


# How ranks are divided ----------------------------------------------------------------------------------------------


def fleet(chips: t.Sequence[int], dp_size: int, tp_size: int = 1, given: dict[int, Variables] | None = None) -> Source:
    """BASE with a decode instance over hosts of so many chips."""
    hosts = [f"x{number}" for number in range(len(chips))]
    more: dict[str, Variables] = {
        host: {
            "pd_node_ip": f"192.0.2.{100 + number}",
            "pd_chips_per_node": chips[number],
            "pd_dp_size": dp_size,
            "pd_tp_size": tp_size,
            "pd_engine_args": DECODE_ARGS,
            **(given or {}).get(number, {}),
        }
        for number, host in enumerate(hosts)
    }
    return base(groups={"decode": {"hosts": hosts}}, more=more)


def shares(source: Source) -> list[tuple[int, int]]:
    plan = planned(source)
    assert not plan.errors, told(plan.findings)
    return [(p.dp_rank_start, p.dp_size_local) for p in plan.placements if p.instance.role == "decode"]


@pytest.mark.parametrize(
    ("chips", "dp_size", "tp_size", "expected"),
    [
        ([16, 16], 32, 1, [(0, 16), (16, 16)]),
        ([16, 16], 4, 4, [(0, 2), (2, 2)]),
        ([16, 16], 3, 1, [(0, 2), (2, 1)]),
        ([16, 16, 16], 16, 1, [(0, 6), (6, 5), (11, 5)]),
        ([16, 8], 24, 1, [(0, 16), (16, 8)]),
        ([8, 16], 24, 1, [(0, 8), (8, 16)]),
        ([8, 16], 20, 1, [(0, 8), (8, 12)]),
        ([16, 2], 10, 1, [(0, 8), (8, 2)]),
        ([16, 16], 2, 8, [(0, 1), (1, 1)]),
        ([4, 4, 4, 4], 16, 1, [(0, 4), (4, 4), (8, 4), (12, 4)]),
        ([16, 6], 7, 4, None),
    ],
)
def test_even_where_it_fits_else_as_the_chips_allow(
    chips: list[int], dp_size: int, tp_size: int, expected: list[tuple[int, int]] | None
) -> None:
    source = fleet(chips, dp_size, tp_size)
    if expected is None:
        assert only(source, "too-few-chips").variable == "pd_dp_size"
    else:
        assert shares(source) == expected


def test_a_given_share_is_kept_and_the_rest_divided() -> None:
    assert shares(fleet([16, 16, 16], 20, given={1: {"pd_dp_size_local": 2}})) == [(0, 9), (9, 2), (11, 9)]


def test_given_shares_that_leave_nothing_for_the_others() -> None:
    finding = only(fleet([16, 16], 16, given={0: {"pd_dp_size_local": 16}}), "too-few-chips")
    assert finding.variable == "pd_dp_size"
    assert "x0 16" in finding.message


def test_a_given_start_moves_those_behind_it() -> None:
    source = fleet([16, 16, 16], 24, given={0: {"pd_dp_rank_start": 0, "pd_dp_size_local": 8}})
    assert shares(source) == [(0, 8), (8, 8), (16, 8)]


def test_more_hosts_than_ranks() -> None:
    finding = only(fleet([16, 16, 16], 2), "too-few-chips")
    assert "3 hosts" in finding.message
    assert "2 ranks" in finding.message


def test_chips_left_over_are_not_used() -> None:
    plan = planned(planned_by_default(prefill={"pd_tp_size": 3}))
    own = placement(plan, "p-a", "p1")
    assert own.used_chips == list(range(6))
    assert [process.visible_devices for process in own.processes] == ["0,1,2", "3,4,5"]


class TestReversedRanks:
    """Rank 0 may be given to any host of the instance."""

    SOURCE: t.ClassVar = base(decode={"pd_dp_address": ABSENT}, d1={"pd_dp_rank_start": 16}, d2={"pd_dp_rank_start": 0})

    def test_ranks(self) -> None:
        assert shares(self.SOURCE) == [(16, 16), (0, 16)]

    def test_the_group_meets_where_rank_0_runs(self) -> None:
        plan = planned(self.SOURCE)
        head = placement(plan, "d-a", "d2")
        assert any(ports.owner == "dp_rpc" for ports in head.ports)
        assert head.instance.dp_address == "192.0.2.22"

    def test_the_right_address_is_accepted(self) -> None:
        source = base(decode={"pd_dp_address": "192.0.2.22"}, d1={"pd_dp_rank_start": 16}, d2={"pd_dp_rank_start": 0})
        assert not planned(source).findings


# Internal data parallelism --------------------------------------------------------------------------------------------


class TestInternal:
    """One API server per instance; further hosts are headless."""

    def test_two_hosts(self) -> None:
        plan = planned(base(decode={"pd_dp_mode": "internal"}))
        assert not plan.findings, told(plan.findings)
        head, follower = placement(plan, "d-a", "d1"), placement(plan, "d-a", "d2")
        assert [len(own.processes) for own in (head, follower)] == [1, 1]
        assert head.processes[0].dp_ranks == list(range(16))
        assert follower.processes[0].dp_ranks == list(range(16, 32))
        assert head.processes[0].visible_devices == ",".join(map(str, range(16)))
        assert (head.processes[0].api_port, follower.processes[0].api_port) == (7100, None)
        assert (layout.is_headless(head), layout.is_headless(follower)) == (False, True)
        assert [str(ports) for ports in head.ports] == ["7100", "12321"]
        assert follower.ports == []

    def test_arguments(self) -> None:
        plan = planned(base(decode={"pd_dp_mode": "internal"}))
        head = placement(plan, "d-a", "d1").processes[0].argv
        follower = placement(plan, "d-a", "d2").processes[0].argv
        for argv in (head, follower):
            assert value_of(argv, "--data-parallel-size") == "32"
            assert value_of(argv, "--data-parallel-size-local") == "16"
            assert value_of(argv, "--data-parallel-address") == "192.0.2.21"
            assert value_of(argv, "--data-parallel-rpc-port") == "12321"
            assert "--data-parallel-rank" not in argv
        assert "--headless" not in head
        assert "--data-parallel-start-rank" not in head
        assert follower.count("--headless") == 1
        assert value_of(follower, "--data-parallel-start-rank") == "16"
        assert "--port" not in follower
        assert "--host" not in follower

    def test_one_host_needs_no_meeting_point(self) -> None:
        plan = planned(planned_by_default(prefill={"pd_dp_mode": "internal"}))
        own = placement(plan, "p-a", "p1")
        assert value_of(own.processes[0].argv, "--data-parallel-size") == "2"
        assert "--data-parallel-address" not in own.processes[0].argv
        assert [str(ports) for ports in own.ports] == ["7100", "36000-36015"]

    def test_a_given_meeting_point_is_passed_on_though_nothing_listens_there(self) -> None:
        """Recipes of one host give both options; the process keeps to IPC all the same."""
        plan = planned(base(prefill={"pd_dp_mode": "internal"}))
        own = placement(plan, "p-a", "p1")
        assert value_of(own.processes[0].argv, "--data-parallel-address") == "192.0.2.11"
        assert value_of(own.processes[0].argv, "--data-parallel-rpc-port") == "12321"
        assert [str(ports) for ports in own.ports] == ["7100", "36000-36015"]

    def test_the_proxy_gets_one_endpoint(self) -> None:
        plan = planned(base(decode={"pd_dp_mode": "internal"}))
        assert plan.proxy is not None
        argv = plan.proxy["argv"]
        assert argv[argv.index("--decoder-hosts") + 1 :] == ["192.0.2.21", "--decoder-ports", "7100"]

    def test_api_server_count_stays_off_headless_hosts(self) -> None:
        args = {**DECODE_ARGS, "api-server-count": 1}
        plan = planned(base(decode={"pd_dp_mode": "internal", "pd_engine_args": args}))
        assert "--api-server-count" in placement(plan, "d-a", "d1").processes[0].argv
        assert "--api-server-count" not in placement(plan, "d-a", "d2").processes[0].argv


def test_a_group_of_one_has_no_data_parallel_options() -> None:
    """vLLM refuses them for dense models."""
    source = planned_by_default(
        groups={"decode": {"hosts": ["d1"]}},
        all={"pd_model_is_moe": False, "pd_dp_size": 1},
    )
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    for own in plan.placements:
        assert not any("data-parallel" in word for word in own.processes[0].argv)
        assert not any(ports.owner == "dp_rpc" for ports in own.ports)


def test_role_groups_without_children() -> None:
    """Every prefill host is an instance; all decode hosts are one."""
    source = planned_by_default(groups={"prefill": {"hosts": ["p1", "p2"]}, "decode": {"hosts": ["d1", "d2"]}})
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    assert plan.cluster is not None
    assert [(i.name, i.role, i.hosts) for i in plan.cluster.instances] == [
        ("prefill-p1", "prefill", ["p1"]),
        ("prefill-p2", "prefill", ["p2"]),
        ("decode", "decode", ["d1", "d2"]),
    ]


# Upstream's own deployments -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Group:
    """One data-parallel group: sizes, kv_port, visible devices of its ranks, what each host listens on."""

    role: str
    dp: int
    tp: int
    kv: int
    listens: tuple[tuple[int, int] | None, ...]
    devices: tuple[str, ...]


def wide(first: int, last: int) -> str:
    return ",".join(map(str, range(first, last + 1)))


SINGLE = tuple(map(str, range(16)))
HALVES = (wide(0, 7), wide(8, 15))
QUARTERS = (wide(0, 3), wide(4, 7), wide(8, 11), wide(12, 15))

UPSTREAM: dict[str, tuple[str, Variables, list[Group]]] = {
    "DeepSeek-R1 2P1D": (
        "a3",
        {},
        [
            Group("prefill", 2, 8, 36000, ((36000, 36015),), HALVES),
            Group("prefill", 2, 8, 36100, ((36100, 36115),), HALVES),
            Group("decode", 32, 1, 36200, (None, None), SINGLE),
        ],
    ),
    "DeepSeek-R1 2P1D layerwise": (
        "a3",
        {"pd_connector": "MooncakeLayerwiseConnector"},
        [
            Group("prefill", 2, 8, 36000, (None,), HALVES),
            Group("prefill", 2, 8, 36100, (None,), HALVES),
            Group("decode", 32, 1, 36200, ((36200, 36215), (36216, 36231)), SINGLE),
        ],
    ),
    "DeepSeek-V3.1T MTP1 2P1D": (
        "a3",
        {},
        [
            Group("prefill", 2, 8, 30000, ((30000, 30015),), HALVES),
            Group("prefill", 2, 8, 30100, ((30100, 30115),), HALVES),
            Group("decode", 32, 1, 30200, (None, None), SINGLE),
        ],
    ),
    "DeepSeek-V3.1T layerwise": (
        "a3",
        {"pd_connector": "MooncakeLayerwiseConnector"},
        [
            Group("prefill", 2, 8, 30000, (None,), HALVES),
            Group("prefill", 2, 8, 30000, (None,), HALVES),
            Group("decode", 32, 1, 30200, ((30200, 30215), (30216, 30231)), SINGLE),
        ],
    ),
    "DeepSeek-V3.2T: one rank per prefill host": (
        "a3",
        {},
        [
            Group("prefill", 2, 16, 30000, ((30000, 30015), (30016, 30031)), (wide(0, 15),)),
            Group("decode", 8, 4, 30200, (None, None), QUARTERS),
        ],
    ),
    "DeepSeek-V4-Flash beside a memcache pool": (
        "a3",
        {"pd_connector": "MooncakeHybridConnector", "pd_kv_pool": {"backend": "memcache", "use_layerwise": True}},
        [
            Group("prefill", 4, 4, 30000, ((30000, 30015),), QUARTERS),
            Group("decode", 16, 1, 30100, (None,), SINGLE),
        ],
    ),
    "MiniMax-M2.5 1P2D": (
        "a3",
        {},
        [
            Group("prefill", 4, 4, 30000, ((30000, 30015),), QUARTERS),
            Group("decode", 4, 4, 30100, (None,), QUARTERS),
            Group("decode", 4, 4, 30200, (None,), QUARTERS),
        ],
    ),
    "DeepSeek-V4-Flash 4P1D on A2": (
        "a2",
        {"pd_connector": "MooncakeHybridConnector"},
        [
            *(
                Group("prefill", 8, 1, 30000 + 100 * k, ((30000 + 100 * k, 30007 + 100 * k),), SINGLE[:8])
                for k in range(4)
            ),
            Group("decode", 32, 1, 30400, (None,) * 4, SINGLE[:8]),
        ],
    ),
    "Qwen3.5-397B by the module path": (
        "a2",
        {
            "pd_connector": "MooncakeConnector",
            "pd_kv_transfer_config": {"kv_connector_module_path": VLLM_ASCEND_MODULE},
        },
        [
            Group("prefill", 1, 8, 30100, ((30100, 30107),), (wide(0, 7),)),
            Group("decode", 1, 8, 30300, (None,), (wide(0, 7),)),
        ],
    ),
}


def upstream_source(hardware: str, variables: Variables, groups: list[Group]) -> Source:
    """The inventory of one of upstream's deployments. Their CI uses kv ports that only the measured reserve allows."""
    children: dict[str, dict[str, list[str]]] = {"prefill": {}, "decode": {}}
    hosts: dict[str, Variables] = {}
    for number, group in enumerate(groups):
        names = [f"h{number}-{host}" for host in range(len(group.listens))]
        children[group.role][f"g{number}"] = names
        for host, name in enumerate(names):
            hosts[name] = {
                "ansible_host": f"192.0.2.{1 + 16 * number + host}",
                "pd_hardware": hardware,
                "pd_model_path": "/models/m",
                "pd_served_model_name": "m",
                "pd_port_reserve": "measured",
                "pd_engine_args_common": {"no-disable-hybrid-kv-cache-manager": True},
                "pd_dp_size": group.dp,
                "pd_tp_size": group.tp,
                "pd_kv_port": group.kv,
                **variables,
            }
    roles = {role: {"hosts": [], "children": members} for role, members in children.items()}
    return {"groups": {**roles, "proxy": {"hosts": ["h0-0"]}}, "hosts": hosts}


@pytest.mark.parametrize("name", UPSTREAM)
def test_upstream_deployment(name: str) -> None:
    hardware, variables, groups = UPSTREAM[name]
    plan = planned(upstream_source(hardware, variables, groups))
    assert not plan.errors, told(plan.findings)
    expected = [(group, host, listens) for group in groups for host, listens in enumerate(group.listens)]
    assert len(plan.placements) == len(expected)
    for own, (group, host, listens) in zip(plan.placements, expected, strict=True):
        local = group.dp // len(group.listens)
        assert own.kv_listen == listens
        assert (own.dp_rank_start, own.dp_size_local) == (host * local, local)
        assert tuple(process.visible_devices for process in own.processes) == group.devices
        assert [process.api_port for process in own.processes] == [7100 + offset for offset in range(local)]
        assert [process.dp_rank for process in own.processes] == list(range(host * local, (host + 1) * local))
        heads = [ports for ports in own.ports if ports.owner == "dp_rpc"]
        assert [ports.first for ports in heads] == ([12321] if host == 0 and group.dp > 1 else [])


def test_hosts_of_a_shared_instance_may_be_shared_or_not() -> None:
    """Decode over a host it shares with prefill and one of its own: the values come from pd_instances for both."""
    source = one_host(decode={"pd_dp_size": 8})
    source["groups"]["decode"]["children"]["d-a"].append("h2")
    source["hosts"]["h2"] = {**source["hosts"]["h1"], "pd_node_ip": "192.0.2.32"}
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    assert [(p.host, p.used_chips, p.dp_rank_start) for p in plan.placements if p.instance.role == "decode"] == [
        ("h1", [4, 5, 6, 7], 0),
        ("h2", [4, 5, 6, 7], 4),
    ]
