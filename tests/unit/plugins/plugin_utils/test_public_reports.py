# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What people met with PD serving on Ascend, as public threads tell it, and what the plan makes of it today.

Each class names its case (PORT-01) and thread. The inventories are BASE with the change that caused the trouble, and
near relatives of it. Cases that hosts, tools or a running cluster meet are tested where those are: `git grep FAB-01`.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    NOT_READ,
    PREFILL_ARGS,
    Source,
    a5,
    argv_of,
    base,
    base_at,
    everything_said,
    kv_config,
    one_host,
    only,
    placement,
    planned,
    planned_by_default,
    rules_of,
    speculative,
    told,
    two_prefill_on_p1,
    value_of,
)

LAYERWISE = "MooncakeLayerwiseConnector"


def accepted(source: Source, *, warnings: bool = False) -> planner.Plan:
    plan = planned(source)
    found = plan.errors if warnings else plan.findings
    assert not found, told(plan.findings)
    return plan


# Ports --------------------------------------------------------------------------------------------------------------


class TestKvPortInTheTransportsRange:
    """PORT-01: vllm-ascend#8938: a ZMQ bind fails at kv_port + 10, as AscendDirectTransport had taken that port."""

    @pytest.mark.parametrize("port", [20000, 20002, 25000, 35985, 35999, 19999, 19985])
    @pytest.mark.parametrize("host", ["p1", "p2"])
    def test_refused_with_host_value_range_and_a_good_value(self, host: str, port: int) -> None:
        finding = only(base_at(host, pd_kv_port=port), "kv-port-reserve")
        assert (finding.severity, finding.host, finding.variable, finding.value) == (
            "error",
            host,
            "pd_kv_port",
            port,
        )
        text = everything_said(finding)
        assert "20000-35999" in text
        assert "36000" in finding.fix

    @pytest.mark.parametrize("port", [36000, 36001, 40000, 19984, 17001, 14984])
    def test_clear_of_it(self, port: int) -> None:
        accepted(base(p1={"pd_kv_port": port}))

    @pytest.mark.parametrize(("port", "good"), [(20002, False), (27999, False), (27985, False), (28000, True)])
    def test_eight_chips(self, port: int, good: bool) -> None:
        source = one_host(prefill={"pd_kv_port": port}, decode={"pd_kv_port": 30000})
        if good:
            accepted(source)
        else:
            finding = only(source, "kv-port-reserve", "h1")
            assert finding.value == port
            assert "20000-27999" in finding.message
            assert "28000" in finding.fix

    def test_the_range_counts_the_chips_of_the_host_not_those_in_use(self) -> None:
        """Transports number their ports by physical chip: 4 chips used of 16 still reach to 35999."""
        source = planned_by_default(
            prefill={"pd_chips": [12, 13, 14, 15], "pd_dp_size": 1, "pd_tp_size": 4},
            p1={"pd_kv_port": 24000},
        )
        assert "20000-35999" in only(source, "kv-port-reserve", "p1").message

    def test_a_host_with_fewer_chips(self) -> None:
        accepted(planned_by_default(prefill={"pd_chips_per_node": 8, "pd_dp_size": 1, "pd_kv_port": 28000}))

    def test_the_transports_base_can_be_moved(self) -> None:
        accepted(base(p1={"pd_kv_port": 20002, "pd_engine_env": {"ASCEND_BASE_PORT": "40000"}}))
        moved = base(p1={"pd_kv_port": 40010, "pd_engine_env": {"ASCEND_BASE_PORT": 40000}})
        assert "40000-55999" in only(moved, "kv-port-reserve", "p1").message

    def test_measured_is_what_newer_mooncake_takes(self) -> None:
        for port, good in ((20002, False), (21599, False), (21601, True), (30000, True)):
            source = base(all={"pd_port_reserve": "measured"}, p1={"pd_kv_port": port})
            assert ("kv-port-reserve" in rules_of(source)) is not good, port

    def test_measured_with_old_mooncake_is_the_documented_range(self) -> None:
        source = base(
            all={"pd_port_reserve": "measured", "pd_vllm_ascend_version": "v0.14.0"}, p1={"pd_kv_port": 30000}
        )
        assert "20000-35999" in only(source, "kv-port-reserve").message

    def test_decode_does_not_bind_under_v1_and_is_warned_only(self) -> None:
        finding = only(base(decode={"pd_kv_port": 20002}), "kv-port-reserve")
        assert (finding.severity, finding.host) == ("warning", "d1")

    def test_decode_binds_under_layerwise(self) -> None:
        source = base(all={"pd_connector": LAYERWISE}, decode={"pd_kv_port": 20002})
        findings = [finding for finding in planned(source).errors if finding.rule == "kv-port-reserve"]
        assert {finding.host for finding in findings} == {"d1", "d2"}, told(findings)
        assert "20018-20033" in next(finding for finding in findings if finding.host == "d2").message

    def test_prefill_does_not_bind_under_layerwise(self) -> None:
        source = base(all={"pd_connector": LAYERWISE}, p1={"pd_kv_port": 20002})
        assert only(source, "kv-port-reserve").severity == "warning"

    def test_two_hosts_two_findings(self) -> None:
        plan = planned(base(p1={"pd_kv_port": 20002}, p2={"pd_kv_port": 20102}))
        assert {(f.host, f.value) for f in plan.errors} == {("p1", 20002), ("p2", 20102)}


class TestKvPortOfOneInstanceOverHosts:
    """PORT-03: vllm-ascend#11343: decode derives every port from one base; the second prefill host had another."""

    GROUPS: t.ClassVar = {"prefill": {"hosts": [], "children": {"p-a": ["p1", "p2"]}}}
    SIZES: t.ClassVar = {
        "pd_pp_size": 2,
        "pd_dp_size_local": 1,
        "pd_dp_rank_start": ABSENT,
        "pd_dp_address": "192.0.2.11",
    }

    def test_refused(self) -> None:
        source = base(groups=self.GROUPS, prefill=self.SIZES, p1={"pd_kv_port": 36000}, p2={"pd_kv_port": 36001})
        finding = only(source, "instance-variable-differs")
        assert (finding.severity, finding.host, finding.variable, finding.value) == ("error", "p2", "pd_kv_port", 36001)
        for words in ("p1", "p2", "pd_kv_port", "36000", "36001", "p-a"):
            assert words in finding.message

    def test_refused_with_faults_of_the_layout_at_the_same_time(self) -> None:
        source = base(groups=self.GROUPS, prefill={"pd_pp_size": 2, "pd_dp_address": "192.0.2.11"})
        assert {"instance-variable-differs", "too-few-chips"} <= set(rules_of(source))

    def test_one_value_is_accepted(self) -> None:
        plan = accepted(base(groups=self.GROUPS, prefill={**self.SIZES, "pd_kv_port": 36000}))
        assert [placement(plan, "p-a", host).kv_listen for host in ("p1", "p2")] == [(36000, 36015), (36016, 36031)]

    @pytest.mark.parametrize("variable", ["pd_dp_address", "pd_dp_rpc_port", "pd_api_port", "pd_tp_size", "pd_dp_size"])
    def test_so_are_the_other_values_of_a_group(self, variable: str) -> None:
        other: dict[str, t.Any] = {
            "pd_dp_address": "192.0.2.22",
            "pd_dp_rpc_port": 12322,
            "pd_api_port": 7200,
            "pd_tp_size": 2,
            "pd_dp_size": 16,
        }
        finding = only(base(d2={variable: other[variable]}), "instance-variable-differs")
        assert (finding.host, finding.variable) == ("d2", variable)
        assert "d1" in finding.message

    def test_two_instances_keep_their_own(self) -> None:
        accepted(base())


class TestTwoInstancesOnOneHost:
    """PORT-05: vllm-ascend#4244: the port offset left the pipeline-parallel factor out."""

    SIZES: t.ClassVar = {"pd_dp_size": 1, "pd_dp_size_local": 1, "pd_tp_size": 4, "pd_pp_size": 2}

    def source(self, first: int, second: int) -> Source:
        chips = {"p-a": list(range(8)), "p-b": list(range(8, 16))}
        return two_prefill_on_p1(
            {**self.SIZES, "pd_chips": chips["p-a"], "pd_kv_port": first},
            {**self.SIZES, "pd_chips": chips["p-b"], "pd_kv_port": second},
        )

    @pytest.mark.parametrize(
        ("first", "second", "ranges"),
        [
            (36000, 36006, ("36000-36007", "36006-36013")),
            (36000, 36007, ("36000-36007", "36007-36014")),
            (36006, 36000, ("36006-36013", "36000-36007")),
            (36000, 36000, ("36000-36007",)),
        ],
    )
    def test_blocks_overlap(self, first: int, second: int, ranges: tuple[str, ...]) -> None:
        finding = only(self.source(first, second), "port-conflict", "p1")
        assert (finding.severity, finding.variable) == ("error", "pd_kv_port")
        for words in ("p1", "p-a", "p-b", *ranges):
            assert words in finding.message

    @pytest.mark.parametrize(("first", "second"), [(36000, 36008), (36000, 36020), (36020, 36000)])
    def test_blocks_are_apart(self, first: int, second: int) -> None:
        accepted(self.source(first, second))

    def test_prefill_and_decode_on_one_host(self) -> None:
        """The guide's example with four chips on either side: kv ports 36010 and 36020."""
        sizes = {"pd_dp_size": 4, "pd_tp_size": 1}
        plan = accepted(
            one_host(
                prefill={**sizes, "pd_kv_port": 36010, "pd_api_port": 8100, "pd_dp_rpc_port": 12321},
                decode={**sizes, "pd_kv_port": 36020, "pd_api_port": 8200, "pd_dp_rpc_port": 12322},
            )
        )
        assert placement(plan, "p-a", "h1").kv_listen == (36010, 36013)

    def test_rpc_ports_of_two_groups_with_one_head_host(self) -> None:
        source = one_host(prefill={"pd_dp_rpc_port": 12321}, decode={"pd_dp_rpc_port": 12321})
        finding = only(source, "port-conflict", "h1")
        assert finding.variable == "pd_dp_rpc_port"
        assert finding.value == 12321

    def test_api_ports_of_two_groups(self) -> None:
        source = one_host(prefill={"pd_api_port": 7100}, decode={"pd_api_port": 7101})
        assert only(source, "port-conflict", "h1").variable == "pd_api_port"


class TestTwoInstancesOnOneChip:
    """PORT-07: vllm-ascend#11968, Mooncake#2121: device port 16666 is already bound."""

    def source(self, first: list[int], second: list[int]) -> Source:
        return base(
            groups={"decode": {"hosts": [], "children": {"d-x": ["p1"]}}},
            p1=NOT_READ,
            all={
                "pd_instances": {
                    "p-a": {
                        "pd_dp_size": 1,
                        "pd_dp_size_local": 1,
                        "pd_tp_size": 8,
                        "pd_chips": first,
                        "pd_engine_args": PREFILL_ARGS,
                    },
                    "p-b": {"pd_dp_size": 1, "pd_dp_size_local": 1},
                    "d-x": {"pd_dp_size": 8, "pd_tp_size": 1, "pd_chips": second, "pd_engine_args": DECODE_ARGS},
                }
            },
        )

    def test_refused_naming_the_chips_and_both_instances(self) -> None:
        finding = only(self.source(list(range(8)), list(range(4, 12))), "chips-claimed-twice", "p1")
        assert finding.severity == "error"
        assert finding.variable == "pd_chips"
        for words in ("4,5,6,7", "p-a", "d-x"):
            assert words in finding.message

    def test_apart(self) -> None:
        accepted(self.source(list(range(8)), list(range(8, 16))))

    def test_in_any_order(self) -> None:
        accepted(self.source([15, 14, 13, 12, 11, 10, 9, 8], [7, 0, 6, 1, 5, 2, 4, 3]))


# Addresses and topology -----------------------------------------------------------------------------------------------


class TestContainerNetwork:
    """FAB-05: vllm-ascend#14506: with a bridge HCCL takes one host for two and looks for RoCE."""

    @pytest.mark.parametrize("network", ["bridge", "none", "overlay", "HOST", "container:x"])
    def test_refused_with_the_reason(self, network: str) -> None:
        finding = only(base(all={"pd_container_network": network}), "container-network")
        assert (finding.severity, finding.variable, finding.value) == ("error", "pd_container_network", network)
        assert "HCCL" in finding.message

    @pytest.mark.parametrize("value", [["8000:8000"], {"ports": ["8000:8000"]}, True, 1])
    def test_anything_else_is_refused_too(self, value: t.Any) -> None:
        plan = planned(base(all={"pd_container_network": value}))
        assert {finding.variable for finding in plan.errors} == {"pd_container_network"}, told(plan.findings)

    def test_host_is_rendered(self) -> None:
        plan = accepted(base())
        written = json.loads(planner.to_json(plan))
        assert {entry["container"]["network"] for entry in written["placements"]} == {"host"}
        assert "publish" not in json.dumps(written)


class TestBackToBack:
    """FAB-09: vllm-ascend#5674, #4250: without a switch there is no path between chips of different number."""

    def source(self, host_count: int, **args: t.Any) -> Source:
        hosts = ["d1", "d2"][:host_count]
        return planned_by_default(
            groups={"decode": {"hosts": [], "children": {"d-a": hosts}}},
            all={"pd_hardware": "a2", "pd_topology": "back_to_back"},
            prefill={"pd_tp_size": 4},
            decode={"pd_dp_size": 8 * host_count, "pd_engine_args": {**DECODE_ARGS, **args}},
        )

    @pytest.mark.parametrize("name", ["enable-expert-parallel", "enable_expert_parallel"])
    def test_experts_over_two_hosts(self, name: str) -> None:
        finding = only(self.source(2, **{name: True}), "expert-parallel-back-to-back")
        assert finding.severity == "error"
        text = everything_said(finding)
        for words in ("d1", "d2", "pd_topology", name, "d-a"):
            assert words in text

    def test_inside_one_host(self) -> None:
        accepted(self.source(1, **{"enable-expert-parallel": True}))

    def test_without_experts(self) -> None:
        accepted(self.source(2))
        accepted(self.source(2, **{"enable-expert-parallel": False}))


class TestAddresses:
    """NET-01, NET-03, NET-05: vllm#42023 (multi-homed), vllm-ascend#4103 (IPv6), vllm-ascend#5461 (copied line)."""

    def test_every_address_variable_is_the_given_one(self) -> None:
        """ansible_host is the management network; nothing of it may reach the engines."""
        source = base(p1={"ansible_host": "198.51.100.11", "ansible_default_ipv4": {"address": "198.51.100.11"}})
        plan = accepted(source)
        for process in placement(plan, "p-a", "p1").processes:
            assert process.env["HCCL_IF_IP"] == process.env["VLLM_HOST_IP"] == "192.0.2.11"
            assert value_of(process.argv, "--host") == "192.0.2.11"
            assert value_of(process.argv, "--data-parallel-address") == "192.0.2.11"
            for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
                assert process.env[name] == "eth-data0"
        assert plan.proxy is not None
        assert value_of(plan.proxy["argv"], "--host") == "192.0.2.11"
        assert b"198.51.100.11" not in planner.to_json(plan)

    @pytest.mark.parametrize("host", ["p1", "p2", "d1", "d2"])
    @pytest.mark.parametrize("address", ["2001:db8::11", "::1", "fe80::1", "::ffff:192.0.2.11"])
    def test_ipv6(self, host: str, address: str) -> None:
        finding = only(base_at(host, pd_node_ip=address), "node-ip-v6", host)
        assert (finding.severity, finding.variable, finding.value) == ("error", "pd_node_ip", address)
        assert "IPv6" in finding.message

    @pytest.mark.parametrize("address", ["[2001:db8::11]", "fe80::1%eth0", "2001:db8::11/64"])
    def test_other_spellings_of_ipv6_are_refused(self, address: str) -> None:
        plan = planned(base(p1={"pd_node_ip": address}))
        assert ("p1", "pd_node_ip") in {(finding.host, finding.variable) for finding in plan.errors}

    def test_ipv6_as_dp_address(self) -> None:
        plan = planned(base(decode={"pd_dp_address": "2001:db8::21"}))
        assert {finding.variable for finding in plan.errors} == {"pd_dp_address"}
        assert "IPv6" in plan.errors[0].message

    @pytest.mark.parametrize(
        ("host", "other", "address"),
        [("d2", "d1", "192.0.2.21"), ("p2", "p1", "192.0.2.11"), ("d1", "p2", "192.0.2.12")],
    )
    def test_one_hosts_address_copied_to_the_next(self, host: str, other: str, address: str) -> None:
        findings = [f for f in planned(base_at(host, pd_node_ip=address)).errors if f.rule == "node-ip-twice"]
        assert len(findings) == 1
        assert findings[0].variable == "pd_node_ip"
        assert findings[0].value == address
        assert findings[0].host in (host, other)
        for words in (host, other, address):
            assert words in findings[0].message

    def test_copied_by_ansible_host(self) -> None:
        source = base(
            d1={"pd_node_ip": ABSENT, "ansible_host": "192.0.2.21"},
            d2={"pd_node_ip": ABSENT, "ansible_host": "192.0.2.21"},
        )
        assert only(source, "node-ip-twice").host == "d2"


# Devices ------------------------------------------------------------------------------------------------------------


class TestDeviceNumbers:
    """DEV-01: vllm-ascend#2557, #9428: inside a container the chips are counted from zero."""

    def host(self, mapped: t.Any, chips: t.Any, tp: int = 1, dp: int = 1) -> Source:
        return one_host(
            prefill={"pd_mapped_chips": mapped, "pd_chips": chips, "pd_tp_size": tp, "pd_dp_size": dp},
            decode={"pd_chips": [1], "pd_dp_size": 1},
        )

    @pytest.mark.parametrize(
        ("mapped", "chips", "tp", "dp", "visible"),
        [
            ([0, 3, 4, 7], [4, 7], 2, 1, ["2,3"]),
            ([4, 5, 6, 7], [4, 5, 6, 7], 4, 1, ["0,1,2,3"]),
            ([4, 5, 6, 7], None, 4, 1, ["0,1,2,3"]),
            (None, [4, 5, 6, 7], 2, 2, ["0,1", "2,3"]),
            ([0, 3, 4, 7], [0, 3, 4, 7], 1, 4, ["0", "1", "2", "3"]),
            ([7, 4, 3, 0], [4, 7], 2, 1, ["2,3"]),
            ([0, 3, 4, 7], [7, 4], 1, 2, ["3", "2"]),
            ([0, 3, 4, 7], [4, 7], 1, 1, ["2"]),
        ],
    )
    def test_visible_devices(self, mapped: t.Any, chips: t.Any, tp: int, dp: int, visible: list[str]) -> None:
        own = placement(accepted(self.host(mapped, chips, tp, dp)), "p-a", "h1")
        assert [process.visible_devices for process in own.processes] == visible
        assert [process.env["ASCEND_RT_VISIBLE_DEVICES"] for process in own.processes] == visible

    def test_physical_numbers_are_kept_apart(self) -> None:
        plan = accepted(self.host([0, 3, 4, 7], [4, 7], 2))
        written = json.loads(planner.to_json(plan))["placements"][0]
        assert written["chips"] == [4, 7]
        chips = [device for device in written["container"]["devices"] if device[len("/dev/davinci") :].isdigit()]
        assert chips == [f"/dev/davinci{chip}" for chip in (0, 3, 4, 7)]

    def test_a_chip_that_is_not_mapped(self) -> None:
        finding = only(self.host([0, 3, 4, 7], [4, 5], 2), "chip-not-mapped")
        assert (finding.host, finding.variable) == ("h1", "pd_chips")
        assert "5" in finding.message

    def test_without_a_container_chips_keep_their_numbers(self) -> None:
        source = self.host(None, [4, 7], 2)
        source["hosts"]["h1"]["pd_runtime"] = "process"
        own = placement(accepted(source), "p-a", "h1")
        assert [process.visible_devices for process in own.processes] == ["4,7"]


# Image and versions -------------------------------------------------------------------------------------------------


class TestImage:
    """IMG-01: vllm-ascend#6206, #6676: an image of another chip generation."""

    @pytest.mark.parametrize(
        ("hardware", "tag", "good"),
        [
            ("a3", "v0.18.0", False),
            ("a3", "v0.18.0-openeuler", False),
            ("a3", "v0.18.0-a5", False),
            ("a3", "v0.18.0-310p", False),
            ("a3", "v0.18.0-a3", True),
            ("a3", "v0.18.0-a3-openeuler", True),
            ("a3", "v0.21.0rc1-a3", True),
            ("a2", "v0.18.0-a3", False),
            ("a2", "v0.18.0-a3-openeuler", False),
            ("a2", "v0.18.0-310p", False),
            ("a2", "v0.18.0", True),
            ("a2", "v0.18.0-openeuler", True),
        ],
    )
    def test_tag_against_hardware(self, hardware: str, tag: str, good: bool) -> None:
        image = f"m.mirror.example/quay.io/ascend/vllm-ascend:{tag}"
        source = base(all={"pd_image": image}) if hardware == "a3" else one_host(host={"pd_image": image})
        if good:
            plan = accepted(source)
            assert plan.cluster is not None
            assert plan.cluster.image == image
            assert plan.cluster.versions.vllm_ascend == tag.split("-")[0]
        else:
            finding = only(source, "image-hardware")
            assert (finding.variable, finding.value) == ("pd_image", image)
            assert hardware in finding.message
            assert ("v0.18.0-a3" if hardware == "a3" else "v0.18.0") in finding.fix

    @pytest.mark.parametrize("tag", ["v0.18.0-a3-patch1", "v0.18.0-a3-openeuler-site2", "v0.18.0-site2-a3"])
    def test_a_private_build_of_the_right_generation(self, tag: str) -> None:
        accepted(base(all={"pd_image": f"registry.example/team/vllm-ascend:{tag}"}))

    def test_default_image_fits_its_hardware(self) -> None:
        for source, suffix in ((base(), "v0.23.0-a3"), (one_host(), "v0.23.0")):
            plan = accepted(source)
            assert plan.cluster is not None
            assert plan.cluster.image == f"quay.io/ascend/vllm-ascend:{suffix}"


class TestKvReleaseTimeout:
    """TIME-01, IMG-05: vllm-ascend#15420 (garbled answers at 5 and 10 s) and #7140 (the variable has several names)."""

    @pytest.mark.parametrize("seconds", [5, 10, 59, 1, 0, -1, -480])
    def test_too_short(self, seconds: int) -> None:
        finding = only(base(all={"pd_kv_release_timeout": seconds}), "kv-release-timeout")
        assert (finding.severity, finding.variable, finding.value) == ("error", "pd_kv_release_timeout", seconds)
        assert "60" in finding.fix

    @pytest.mark.parametrize("value", [True, False, 480.5, "soon", "480s", [480], {"seconds": 480}, ""])
    def test_no_number(self, value: t.Any) -> None:
        plan = planned(base(all={"pd_kv_release_timeout": value}))
        assert {finding.variable for finding in plan.errors} == {"pd_kv_release_timeout"}, told(plan.findings)
        assert {finding.rule for finding in plan.errors} == {"variable-value"}

    def test_text_is_converted_openly(self) -> None:
        source = base(all={"pd_kv_release_timeout": "480"})
        finding = only(source, "text-value")
        assert (finding.severity, finding.variable, finding.value) == ("warning", "pd_kv_release_timeout", "480")
        env = placement(planned(source), "p-a", "p1").processes[0].env
        assert env["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"] == "480"

    def test_text_below_the_bound(self) -> None:
        assert "kv-release-timeout" in rules_of(base(all={"pd_kv_release_timeout": "5"}))

    @pytest.mark.parametrize("seconds", [60, 480, 1800])
    def test_accepted(self, seconds: int) -> None:
        accepted(base(all={"pd_kv_release_timeout": seconds}))

    NIXL, CONNECTOR, ABORT = (
        "VLLM_NIXL_ABORT_REQUEST_TIMEOUT",
        "VLLM_MOONCAKE_CONNECTOR_TIMEOUT",
        "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
    )

    @pytest.mark.parametrize(
        ("version", "connector", "names"),
        [
            ("v0.11.0", "MooncakeConnectorV1", {NIXL}),
            ("v0.17.0", "MooncakeConnectorV1", {NIXL}),
            ("v0.18.0", "MooncakeConnectorV1", {ABORT}),
            ("v0.20.2rc1", "MooncakeConnectorV1", {ABORT}),
            ("v0.20.2rc1", "MooncakeHybridConnector", {ABORT, NIXL}),
            ("v0.21.0rc1", "MooncakeHybridConnector", {ABORT, NIXL}),
            ("v0.22.1rc1", "MooncakeHybridConnector", {ABORT}),
            ("v0.23.0", LAYERWISE, {ABORT}),
            ("v0.26.0", "MooncakeConnectorV1", {ABORT}),
            ("v0.99.0", "MooncakeConnectorV1", {ABORT, NIXL}),
            ("nightly-main", "MooncakeConnectorV1", {ABORT, NIXL}),
        ],
    )
    def test_name_by_version(self, version: str, connector: str, names: set[str]) -> None:
        source = base(
            all={
                "pd_vllm_ascend_version": version,
                "pd_connector": connector,
                "pd_kv_release_timeout": 1800,
                "pd_engine_args_common": {"no-disable-hybrid-kv-cache-manager": True},
            }
        )
        plan = planned(source)
        assert not plan.errors, told(plan.findings)
        for own in plan.placements:
            for process in own.processes:
                given = {name: process.env.get(name) for name in (self.NIXL, self.CONNECTOR, self.ABORT)}
                wanted = names if own.instance.role == "prefill" else set()
                assert {name for name, value in given.items() if value is not None} == wanted
                assert {value for value in given.values() if value is not None} <= {"1800"}

    def test_the_guides_older_name_is_for_an_operator_to_force(self) -> None:
        """No tag and no branch reads VLLM_MOONCAKE_CONNECTOR_TIMEOUT; a build of one's own may."""
        source = base(prefill={"pd_engine_env": {self.CONNECTOR: "1800"}})
        finding = only(source, "timeout-name")
        assert (finding.severity, finding.host, finding.value) == ("warning", "p1", "1800")
        env = placement(planned(source), "p-a", "p1").processes[0].env
        assert (env[self.CONNECTOR], env[self.ABORT]) == ("1800", "480")

    def test_an_unknown_version_is_warned_about(self) -> None:
        assert only(base(all={"pd_vllm_ascend_version": "v0.99.0"}), "version-unknown").severity == "warning"


# What prefill and decode must agree on ------------------------------------------------------------------------------


class TestSizeBlock:
    """CFG-01: vllm-ascend#8442: decode tensor parallel size expected 4, got 8; the block is written by hand everywhere."""

    @pytest.mark.parametrize("connector", ["MooncakeConnectorV1", LAYERWISE])
    def test_equal_everywhere(self, connector: str) -> None:
        plan = accepted(base(all={"pd_connector": connector}))
        wanted = {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 32, "tp_size": 1}}
        configs = [
            json.loads(value_of(process.argv, "--kv-transfer-config"))
            for own in plan.placements
            for process in own.processes
        ]
        assert len(configs) == 36
        assert all(config["kv_connector_extra_config"] == wanted for config in configs)

    @pytest.mark.parametrize("host", ["p1", "d1", "d2"])
    @pytest.mark.parametrize(
        ("role", "key", "value", "wanted"),
        [
            ("decode", "tp_size", 4, 1),
            ("decode", "dp_size", 16, 32),
            ("prefill", "tp_size", 4, 8),
            ("prefill", "dp_size", 1, 2),
            ("prefill", "pp_size", 2, 1),
            ("decode", "tp_size", True, 1),
            ("decode", "tp_size", "4", 1),
            ("decode", "tp_size", None, 1),
        ],
    )
    def test_an_override_that_disagrees(self, host: str, role: str, key: str, value: t.Any, wanted: int) -> None:
        config = {"kv_connector_extra_config": {role: {key: value}}}
        finding = only(base_at(host, pd_kv_transfer_config=config), "kv-transfer-contradiction")
        assert (finding.severity, finding.host) == ("error", host)
        assert finding.variable == f"pd_kv_transfer_config.kv_connector_extra_config.{role}.{key}"
        assert repr(value) in finding.message
        assert str(wanted) in finding.message

    def test_two_faults_at_once(self) -> None:
        config = {"kv_role": "kv_both", "kv_connector_extra_config": {"decode": {"tp_size": 4, "dp_size": 4}}}
        plan = planned(base(d1={"pd_kv_transfer_config": config}))
        assert len(plan.errors) == 3, told(plan.findings)


class TestEngineId:
    """CFG-03: vllm-ascend#11855: two instances share id "2"."""

    @pytest.mark.parametrize(("first", "second"), [("2", "2"), (2, 2), (0, "0"), ("0", 0), ("pd-a", "pd-a")], ids=repr)
    @pytest.mark.parametrize(("version", "severity"), [("v0.12.0", "error"), ("v0.13.0", "warning")])
    def test_used_twice(self, first: t.Any, second: t.Any, version: str, severity: str) -> None:
        source = base(
            all={"pd_vllm_ascend_version": version},
            p2={"pd_kv_transfer_config": {"engine_id": first}},
            d1={"pd_kv_transfer_config": {"engine_id": second}},
        )
        finding = only(source, "engine-id-twice")
        assert finding.severity == severity
        assert finding.variable == "pd_kv_transfer_config.engine_id"
        for words in ("p2", "d1", "p-b", "d-a"):
            assert words in finding.message

    def test_a_number_is_rendered_as_text(self) -> None:
        assert kv_config(base(p1={"pd_kv_transfer_config": {"engine_id": 7}}))["engine_id"] == "7"

    def test_rendered_only_when_given(self) -> None:
        assert "engine_id" not in kv_config(base())


class TestSpeculativeTokens:
    """CFG-05: vllm-ascend#16160: wrong output when a hybrid model has different numbers on both sides."""

    @pytest.mark.parametrize(
        ("family", "prefill", "decode", "outcome"),
        [
            ("hybrid_mamba", 1, 3, "error"),
            ("hybrid_mamba", 3, 1, "error"),
            ("hybrid_mamba", 3, 3, None),
            ("hybrid_mamba", 1, 1, None),
            ("hybrid_mamba", ABSENT, 3, "error"),
            ("hybrid_mamba", 3, ABSENT, "error"),
            ("hybrid_mamba", ABSENT, ABSENT, None),
            ("other", 1, 3, None),
            ("other", 1, 1, None),
            ("other", 3, 3, "warning"),
            ("other", 2, 2, "warning"),
            ("other", 1, 0, "error"),
            ("other", 1, -1, "error"),
            ("other", 0, 1, "error"),
            ("other", 1, ABSENT, "error"),
            ("other", ABSENT, 3, None),
            ("other", True, 3, "error"),
            ("other", 1, True, "error"),
            ("other", "1", 3, "error"),
            ("other", 1, 3.0, "error"),
            ("other", None, 3, "error"),
            ("other", 1, [3], "error"),
        ],
    )
    def test_pairs(self, family: str, prefill: t.Any, decode: t.Any, outcome: str | None) -> None:
        source = base(all={"pd_model_family": family}, prefill=speculative(prefill), decode=speculative(decode))
        plan = planned(source)
        found = [finding for finding in plan.findings if finding.rule == "speculative-tokens"]
        assert {finding.severity for finding in found} == ({outcome} if outcome else set()), told(plan.findings)
        assert len(plan.findings) == len(found), told(plan.findings)
        for finding in found:
            assert "num_speculative_tokens" in everything_said(finding)
            assert "prefill" in finding.message or "decode" in finding.message

    @pytest.mark.parametrize(
        ("prefill", "decode", "good"), [(5, 5, True), (7, 7, True), (4, 4, False), (5, 7, False), (1, 5, False)]
    )
    def test_dspark(self, prefill: int, decode: int, good: bool) -> None:
        source = base(prefill=speculative(prefill, "dspark"), decode=speculative(decode, "dspark"))
        assert rules_of(source) == ([] if good else ["speculative-tokens"])

    @pytest.mark.parametrize("method", [[], {}, ["mtp"], {"name": "mtp"}])
    def test_a_method_that_is_no_text(self, method: t.Any) -> None:
        assert not planned(base(prefill=speculative(1, method), decode=speculative(3, method))).findings

    @pytest.mark.parametrize(
        ("family", "wrong"),
        [("hybrid_mamba", {"p2": 1}), ("hybrid_mamba", {"d2": 1}), ("other", {"p2": 3}), ("other", {"d2": ABSENT})],
    )
    def test_every_instance_and_every_host_counts(self, family: str, wrong: dict[str, t.Any]) -> None:
        tokens = 3 if family == "hybrid_mamba" else 1
        source = base(all={"pd_model_family": family}, prefill=speculative(tokens), decode=speculative(3))
        assert not planned(source).findings
        for host, other in wrong.items():
            config = None if other is ABSENT else {"num_speculative_tokens": other, "method": "deepseek_mtp"}
            source["hosts"][host]["pd_engine_args_extra"] = {"speculative-config": config}
        findings = [finding for finding in planned(source).findings if finding.rule == "speculative-tokens"]
        assert findings
        assert all(host in " ".join(everything_said(finding) for finding in findings) for host in wrong)

    def test_the_variable_is_the_one_of_the_host(self) -> None:
        source = base(
            prefill=speculative(3),
            decode={
                "pd_engine_args": {"block-size": 128},
                "pd_engine_args_extra": speculative(3)["pd_engine_args"],
            },
        )
        finding = only(source, "speculative-tokens")
        assert finding.host == "p1"
        assert finding.variable == "pd_engine_args.speculative-config.num_speculative_tokens"

    def test_given_as_json_text(self) -> None:
        text = '{"num_speculative_tokens": 3, "method": "mtp"}'
        source = base(
            all={"pd_model_family": "hybrid_mamba", "pd_engine_args": {"speculative-config": text}},
            prefill={"pd_engine_args": {"speculative_config": {"num_speculative_tokens": 1, "method": "mtp"}}},
        )
        assert only(source, "speculative-tokens").value == 3


class TestContextParallel:
    """CFG-07: vllm-ascend#12677: prefill fails with dcp 2."""

    def source(self, prefill: int, decode: int) -> Source:
        return base(
            all={"pd_engine_args_common": {"cp-kv-cache-interleave-size": 128}},
            prefill={"pd_dcp_size": prefill},
            decode={"pd_dp_size": 4, "pd_tp_size": 8, "pd_dp_size_local": 2, "pd_dcp_size": decode},
            d2={"pd_dp_rank_start": 2},
        )

    @pytest.mark.parametrize(("prefill", "decode"), [(2, 8), (8, 2), (1, 2), (4, 1)])
    def test_different(self, prefill: int, decode: int) -> None:
        finding = only(self.source(prefill, decode), "dcp-differs")
        assert finding.severity == "error"
        for words in ("pd_dcp_size", "p-a", "d-a", str(prefill), str(decode)):
            assert words in finding.message

    @pytest.mark.parametrize("size", [2, 4, 8])
    def test_equal(self, size: int) -> None:
        plan = accepted(self.source(size, size))
        argv = placement(plan, "d-a", "d2").processes[1].argv
        assert value_of(argv, "--decode-context-parallel-size") == str(size)

    def test_an_interleave_that_is_left_out(self) -> None:
        """upstream: cp_kv_cache_interleave_size(1) and block_size(128) needs to be equal if PCP or DCP is enabled."""
        source = self.source(8, 8)
        for values in source["hosts"].values():
            del values["pd_engine_args_common"]
        assert "cp-interleave" in rules_of(source)


class TestUnsupportedPair:
    """CFG-09: vllm-ascend#7085: layerwise and a store connector do not work together."""

    @pytest.mark.parametrize("backend", ["mooncake", "memcache", "yuanrong"])
    def test_refused(self, backend: str) -> None:
        source = base(all={"pd_connector": LAYERWISE, "pd_kv_pool": {"backend": backend}})
        finding = only(source, "layerwise-with-pool")
        assert finding.severity == "error"
        assert f"[{LAYERWISE}, AscendStoreConnector]" in finding.message

    def test_connectors_written_by_hand(self) -> None:
        children = [{"kv_connector": LAYERWISE}, {"kv_connector": "AscendStoreConnector"}]
        config = {"kv_connector_extra_config": {"connectors": children}}
        source = base(p1={"pd_kv_transfer_config": config})
        assert only(source, "kv-transfer-contradiction").host == "p1"

    def test_multi_connector_as_a_name(self) -> None:
        assert rules_of(base(all={"pd_connector": "MultiConnector"})) == ["variable-value"]

    @pytest.mark.parametrize("connector", ["MooncakeConnectorV1", "MooncakeHybridConnector"])
    def test_the_others_work(self, connector: str) -> None:
        manager = {"pd_engine_args_common": {"no-disable-hybrid-kv-cache-manager": True}}
        source = base(all={"pd_connector": connector, "pd_kv_pool": {"backend": "mooncake"}, **manager})
        accepted(source, warnings=True)


class TestHeadless:
    """CFG-11, DP-05: vllm-ascend#16204: a start rank implies external balancing, which forbids headless."""

    def test_no_rank_is_headless_and_the_proxy_has_all(self) -> None:
        plan = accepted(base())
        words = [word for own in plan.placements for process in own.processes for word in process.argv]
        assert "--headless" not in words
        assert "--data-parallel-start-rank" not in words
        assert plan.proxy is not None
        argv = plan.proxy["argv"]
        hosts = argv[argv.index("--decoder-hosts") + 1 : argv.index("--decoder-ports")]
        ports = argv[argv.index("--decoder-ports") + 1 :]
        assert hosts == ["192.0.2.21"] * 16 + ["192.0.2.22"] * 16
        assert ports == [str(port) for port in range(7100, 7116)] * 2

    @pytest.mark.parametrize("name", ["headless", "data-parallel-start-rank", "data-parallel-hybrid-lb", "dpn"])
    def test_given_by_hand(self, name: str) -> None:
        value = True if name in ("headless", "data-parallel-hybrid-lb") else 16
        finding = only(base(d2={"pd_engine_args_extra": {name: value}}), "planned-argument")
        assert (finding.severity, finding.host, finding.variable) == ("error", "d2", f"pd_engine_args_extra.{name}")

    def test_ranks_are_explicit_and_each_is_there_once(self) -> None:
        """vllm#53743: a rank that is inferred is doubled or missing."""
        plan = accepted(base())
        decode = [own for own in plan.placements if own.instance.role == "decode"]
        ranks = [value_of(process.argv, "--data-parallel-rank") for own in decode for process in own.processes]
        assert ranks == [str(rank) for rank in range(32)]
        for own in decode:
            assert [process.api_port for process in own.processes] == list(range(7100, 7116))


class TestPrefixCacheOfHybridModels:
    """CFG-13: vllm-ascend#7944, #7722: a hang after a prefix hit."""

    def source(self, **roles: t.Any) -> Source:
        source = base(all={"pd_model_family": "hybrid_mamba"}, prefill=speculative(3))
        for host, args in roles.items():
            source["hosts"][host]["pd_engine_args_extra"] = args
        return source

    @pytest.mark.parametrize("name", ["enable-prefix-caching", "enable_prefix_caching"])
    def test_on(self, name: str) -> None:
        assert only(self.source(d1={name: True}), "hybrid-prefix-cache").severity == "error"
        assert only(self.source(p1={name: True}), "hybrid-prefix-cache").severity == "warning"

    def test_switched_off_on_decode_without_being_asked(self) -> None:
        plan = accepted(self.source())
        for own in plan.placements:
            given = "--no-enable-prefix-caching" in own.processes[0].argv
            assert given is (own.instance.role == "decode")

    def test_the_users_own_off_is_not_doubled(self) -> None:
        argv = argv_of(self.source(d1={"no-enable-prefix-caching": True}), "d-a", "d1")
        assert argv.count("--no-enable-prefix-caching") == 1


class TestPlaceholders:
    """CFG-15: sglang#22840, vllm-ascend#14545: PIP:PORT, a card named xxxx, /path_to reach the running service."""

    @pytest.mark.parametrize(
        ("host", "variable", "value"),
        [
            ("p1", "pd_nic", "xxxx"),
            ("d2", "pd_nic", "<nic_name>"),
            ("p1", "pd_nic", "xxx"),
            ("p2", "pd_node_ip", "x.x.x.x"),
            ("p2", "pd_node_ip", "xxx.xxx.xxx.xxx"),
            ("d1", "pd_node_ip", "<your ip>"),
            ("p1", "pd_node_ip", "192.0.2.1/2/3/4"),
            ("p1", "pd_node_ip", "192.0.2.x"),
            ("p1", "pd_node_ip", "PIP:PORT"),
            ("p1", "pd_dp_address", "<head node ip>"),
            ("p1", "pd_dp_address", "PIP"),
        ],
    )
    def test_of_a_host(self, host: str, variable: str, value: str) -> None:
        plan = planned(base_at(host, **{variable: value}))
        found = [finding for finding in plan.errors if (finding.host, finding.variable) == (host, variable)]
        assert len(found) == 1, told(plan.findings)
        assert value in everything_said(found[0])

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            ("pd_model_path", "/path_to_weight/M"),
            ("pd_model_path", "/path/to/DeepSeek-V4"),
            ("pd_model_path", "/models/<model>"),
            ("pd_image", "quay.io/ascend/vllm-ascend:<tag>"),
            ("pd_served_model_name", "your-model"),
            ("pd_served_model_name", "TODO"),
            ("pd_cluster_name", "change-me"),
            ("pd_mounts", ["/path_to/cache:/root/.cache"]),
            ("pd_engine_env_common", {"MOONCAKE_CONFIG_PATH": "/path_to/mooncake.json"}),
            ("pd_kv_pool", {"master": "<your ip>:50088"}),
        ],
    )
    def test_of_the_cluster(self, variable: str, value: t.Any) -> None:
        plan = planned(base(all={variable: value}))
        assert {(finding.rule, finding.variable) for finding in plan.errors} == {("placeholder", variable)}, told(
            plan.findings
        )

    def test_the_proxys_address(self) -> None:
        source = base(groups={"proxy": {"hosts": ["x1"]}}, more={"x1": {"ansible_host": "<your ip>"}})
        assert only(source, "placeholder").host == "x1"


class TestBlockSizes:
    """Upstream: block sizes of P and D must be divisible by each other."""

    def test_given_as_text(self) -> None:
        assert "block-size" in rules_of(base(decode={"pd_engine_args": {**DECODE_ARGS, "block-size": "96"}}))

    @pytest.mark.parametrize("host", ["p2", "d2"])
    def test_every_instance_and_every_host_counts(self, host: str) -> None:
        source = base_at(host, pd_engine_args_extra={"block-size": 96})
        assert host in everything_said(only(source, "block-size"))


# Ranks --------------------------------------------------------------------------------------------------------------


class TestRanks:
    """DP-01: vllm-ascend#12197: the second host was documented with start rank 4 while each held 8."""

    def source(self, start: int, local: int = 8) -> Source:
        return base(
            decode={"pd_dp_size": 16, "pd_tp_size": 2, "pd_dp_size_local": 8},
            d2={"pd_dp_rank_start": start, "pd_dp_size_local": local},
        )

    def test_overlap_and_gap(self) -> None:
        findings = planned(self.source(4)).errors
        assert {finding.rule for finding in findings} == {"dp-ranks"}
        text = " ".join(finding.message for finding in findings)
        for words in ("4-7", "12-15", "d1", "d2"):
            assert words in text
        assert {finding.variable for finding in findings} == {"pd_dp_rank_start"}

    def test_gap_and_beyond(self) -> None:
        text = " ".join(finding.message for finding in planned(self.source(9)).errors)
        for words in ("ranks 8 ", "16", "d2"):
            assert words in text

    def test_right(self) -> None:
        accepted(self.source(8))

    def test_one_missing(self) -> None:
        finding = only(self.source(8, 7), "dp-ranks")
        assert "15" in finding.message

    def test_all_ranks_on_both_hosts(self) -> None:
        source = base(decode={"pd_dp_size": 16, "pd_tp_size": 1, "pd_dp_size_local": -1, "pd_dp_rank_start": ABSENT})
        assert "16-31" in only(source, "dp-ranks").message

    @pytest.mark.parametrize("start", [-1, "four", 1.5, True])
    def test_no_rank(self, start: t.Any) -> None:
        finding = only(self.source(start), "variable-value", "d2")
        assert finding.variable == "pd_dp_rank_start"


class TestMoreRanksThanChips:
    """DP-03: vllm-ascend#14631: a device assert at start."""

    def test_of_a_host(self) -> None:
        source = base(decode={"pd_dp_size_local": 16, "pd_tp_size": 2})
        findings = [finding for finding in planned(source).errors if finding.rule == "too-few-chips"]
        assert {finding.host for finding in findings} == {"d1", "d2"}
        for finding in findings:
            assert finding.variable == "pd_dp_size_local"
            assert "32" in finding.message
            assert "16" in finding.message

    def test_base_on_eight_chips(self) -> None:
        source = base(
            all={"pd_hardware": "a2"}, decode={"pd_dp_size": 16, "pd_dp_size_local": 8}, d2={"pd_dp_rank_start": 8}
        )
        findings = planned(source).errors
        assert {finding.host for finding in findings} == {"p1", "p2"}, told(findings)
        for finding in findings:
            assert "16" in finding.message
            assert finding.message.rstrip().endswith("8")

    def test_a_chip_list_that_is_shorter(self) -> None:
        finding = only(base(p1={"pd_chips": list(range(12))}), "too-few-chips")
        assert finding.host == "p1"
        assert "16" in finding.message
        assert "12" in finding.message

    def test_with_pipeline_and_context_parallelism(self) -> None:
        finding = only(base(p1={}, prefill={"pd_pp_size": 2}, p2={}), "too-few-chips", "p1")
        assert "32" in finding.message
        assert "tp x pp" in finding.message


# Values as data -----------------------------------------------------------------------------------------------------


AWKWARD: dict[str, t.Any] = {
    "true": True,
    "false": False,
    "null": None,
    "single": "it's",
    "double": 'say "so"',
    "home": "$HOME ${HOME} $(id) `id`",
    "blank": " a  b ",
    "empty": "",
    "unicode": "模型 ☃ \U0001f600",
    "backslash": "a\\b\\n",
    "newline": "one\ntwo\ttab",
    "dash": "-x",
    "number": 0.1,
    "small": 1e-07,
    "big": 2**53,
    "nested": {"list": [1, [2, {"x": None}], "3"], "dotted.key": {"a": False}},
}


class TestJsonArguments:
    """ANS-03: ansible#11641, #71665: Python's text instead of JSON."""

    @pytest.mark.parametrize("option", ["additional-config", "compilation-config", "model-loader-extra-config"])
    def test_options_come_out_as_they_went_in(self, option: str) -> None:
        source = base(prefill={"pd_engine_args": {**PREFILL_ARGS, option: AWKWARD}})
        word = value_of(argv_of(source), f"--{option}")
        assert json.loads(word) == AWKWARD
        assert word == json.dumps(AWKWARD, separators=(",", ":"), ensure_ascii=False)
        assert "$HOME ${HOME} $(id) `id`" in word

    def test_speculative_config(self) -> None:
        config = {**AWKWARD, "num_speculative_tokens": 1}
        source = base(prefill={"pd_engine_args": {"block-size": 128, "speculative-config": config}})
        assert json.loads(value_of(argv_of(source), "--speculative-config")) == config

    def test_kv_transfer_config(self) -> None:
        source = base(p1={"pd_kv_transfer_config": {"kv_connector_extra_config": {"x": AWKWARD}, "y": AWKWARD}})
        config = kv_config(source)
        assert config["y"] == AWKWARD
        assert config["kv_connector_extra_config"]["x"] == AWKWARD
        assert config["kv_connector_extra_config"]["prefill"] == {"dp_size": 2, "tp_size": 8}

    def test_environment(self) -> None:
        env = {f"X_{name.upper()}": value for name, value in AWKWARD.items()}
        made = placement(planned(base(prefill={"pd_engine_env": env})), "p-a", "p1").processes[0].env
        for name, value in AWKWARD.items():
            got = made[f"X_{name.upper()}"]
            if value is None:
                assert got is None
            elif isinstance(value, str):
                assert got == value
            else:
                assert got is not None
                assert json.loads(got) == value

    def test_a_truth_value_as_text_is_not_passed_over(self) -> None:
        for value in ("true", "True", "false", "None"):
            source = base(p1={"pd_engine_args_extra": {"enforce-eager": value}})
            assert "text-option" in rules_of(source)

    @pytest.mark.parametrize("value", ["true", "True", "false"])
    def test_a_truth_value_as_text_is_refused_or_converted(self, value: str) -> None:
        """vLLM ends at the word behind a flag; by then the fleet has been started."""
        plan = planned(base(p1={"pd_engine_args_extra": {"enforce-eager": value}}))
        argv = placement(plan, "p-a", "p1").processes[0].argv
        flag = "--enforce-eager" if value.lower() == "true" else "--no-enforce-eager"
        assert plan.errors or (flag in argv and value not in argv)

    def test_a_truth_value_of_the_command_line(self) -> None:
        for value, read in (("true", True), ("True", True), ("yes", True), ("false", False), ("no", False)):
            source = base(all={"pd_model_is_moe": value})
            plan = planned(source)
            assert plan.cluster is not None
            assert plan.cluster.model_is_moe is read
            assert only(source, "text-value").value == value

    @pytest.mark.parametrize("value", ["maybe", "1", 1, 0, [], {}, ""])
    def test_no_truth_value(self, value: t.Any) -> None:
        plan = planned(base(all={"pd_model_is_moe": value}))
        assert {finding.variable for finding in plan.errors} == {"pd_model_is_moe"}, told(plan.findings)


class TestResourceConfig:
    """POOL-03: Mooncake#3749: a resource setting in another form is ignored, or stops the start."""

    NAME: t.ClassVar = "ASCEND_GLOBAL_RESOURCE_CONFIG"
    PROTOCOL: t.ClassVar = {"comm_resource_config.protocol_desc": ["hccs:device"]}

    def source(self, value: t.Any, pool: bool = True) -> Source:
        groups = {"kv_pool": {"hosts": ["p1"], "children": {}}} if pool else {}
        return base(
            groups=groups, all={"pd_engine_env_common": {self.NAME: value}, **({"pd_kv_pool": {}} if pool else {})}
        )

    @pytest.mark.parametrize("pool", [True, False])
    @pytest.mark.parametrize(
        "more",
        [
            {},
            {"store": {"a": "it's $HOME", "b": None, "c": True}},
            {"fabric_memory.max_capacity": 70, "note": 'say "so"'},
        ],
    )
    def test_read_back_from_a_shell_it_is_the_same(self, more: t.Any, pool: bool) -> None:
        given = {**self.PROTOCOL, **more}
        env = placement(accepted(self.source(given, pool)), "p-a", "p1").processes[0].env
        said = subprocess.run(
            ["sh", "-c", f'export {self.NAME}={shlex.quote(str(env[self.NAME]))}; printf %s "${self.NAME}"'],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert json.loads(said) == given

    @pytest.mark.parametrize(
        "value",
        [
            "hccs:device",
            "hccs:device,roce:device",
            "{'comm_resource_config.protocol_desc': ['hccs:device']}",
            '{"comm_resource_config.protocol_desc": ["hccs:device"],}',
            '["hccs:device"]',
            ["hccs:device"],
            True,
            0,
            "",
        ],
    )
    def test_anything_but_an_object_is_refused(self, value: t.Any) -> None:
        finding = only(self.source(value, pool=False), "resource-config")
        assert (finding.severity, finding.host) == ("error", "p1")
        assert finding.variable == f"pd_engine_env_common.{self.NAME}"
        assert "no JSON object" in finding.message
        assert "mapping" in finding.fix

    @pytest.mark.parametrize("value", ["roce:host", ["roce:host"], "ub_rtp:device,roce:host"])
    def test_host_roce_in_the_short_form(self, value: t.Any) -> None:
        config = {"comm_resource_config.protocol_desc": value}
        finding = only(a5(all={"pd_engine_env_common": {self.NAME: config}}), "roce-host-variable")
        assert (finding.severity, finding.host) == ("error", "p1")
        assert "pd_fabric: host_roce" in finding.fix


class TestPureFunction:
    """ANS-01: kubespray#212, #1502: with --limit facts of other hosts are missing. The plan reads inventory variables only."""

    def test_facts_change_nothing(self) -> None:
        facts = {
            "ansible_facts": {"default_ipv4": {"address": "198.51.100.11"}},
            "ansible_default_ipv4": {"address": "198.51.100.11"},
            "ansible_hostname": "other",
            "inventory_hostname": "other",
        }
        assert planner.to_json(planned(base(all=facts))) == planner.to_json(planned(base()))

    def test_twice_the_same(self) -> None:
        source = base(all={"pd_kv_pool": {"backend": "mooncake"}}, p1={"pd_kv_port": "20002"})
        assert planner.to_json(planned(source)) == planner.to_json(planned(source))
