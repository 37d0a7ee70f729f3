# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""MooncakeD2RHConnectorV1: control ports by upstream's offsets, bases that keep apart, pinned host memory."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import hostmemory, planner, ports
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Source,
    Variables,
    d2rh,
    kv_config,
    only,
    placement,
    planned,
    told,
)


@pytest.mark.parametrize(
    ("base", "start", "local", "width", "per_worker", "expected"),
    [
        (38100, 0, 4, 1, True, (38100, 38103)),
        (38200, 0, 4, 1, False, (38200, 38203)),
        (38100, 4, 4, 1, True, (38104, 38107)),
        # upstream's own vector: T=2 P=2, rank 1: its last worker on 38107, its scheduler on 38204
        (38100, 1, 1, 4, True, (38104, 38107)),
        (38200, 1, 1, 4, False, (38204, 38204)),
        (39200, 0, 2, 4, False, (39200, 39204)),
    ],
)
def test_ranges(base: int, start: int, local: int, width: int, per_worker: bool, expected: tuple[int, int]) -> None:
    assert ports.d2rh_listen(base, start, local, width, per_worker) == expected


def listening(source: Source, instance: str, host: str) -> dict[str, str]:
    plan = planned(source)
    assert not plan.errors, told(plan.findings)
    return {item.owner: str(item) for item in placement(plan, instance, host).ports}


def test_as_the_guide_has_it() -> None:
    source = d2rh(
        p1={"pd_api_port": 8100, "pd_kv_port": 36010, "pd_dp_rpc_port": 12321},
        d1={"pd_api_port": 8200, "pd_kv_port": 36020, "pd_dp_rpc_port": 12322},
    )
    assert listening(source, "prefill-p1", "p1") == {"api": "8100", "kv": "36010-36013"}
    assert listening(source, "decode", "d1") == {
        "api": "8200",
        "d2rh_zmq": "38100-38103",
        "d2rh_scheduler_ready": "38200-38203",
    }
    extra = kv_config(source, "decode", "d1")["kv_connector_extra_config"]
    assert (extra["d2rh_zmq_port"], extra["d2rh_scheduler_ready_port"]) == (38100, 38200)
    assert not any(key.startswith("d2rh") for key in kv_config(source, "prefill-p1", "p1")["kv_connector_extra_config"])


@pytest.mark.parametrize(
    "given",
    [
        {"pd_d2rh_zmq_port": 39100, "pd_d2rh_scheduler_ready_port": 39200},
        {
            "pd_kv_transfer_config": {
                "kv_connector_extra_config": {"d2rh_zmq_port": 39100, "d2rh_scheduler_ready_port": "39200"}
            }
        },
    ],
)
def test_bases_by_variable_or_as_recipes_have_them(given: Variables) -> None:
    source = d2rh(d1=given)
    found = listening(source, "decode", "d1")
    assert (found["d2rh_zmq"], found["d2rh_scheduler_ready"]) == ("39100-39103", "39200-39203")
    extra = kv_config(source, "decode", "d1")["kv_connector_extra_config"]
    assert (extra["d2rh_zmq_port"], extra["d2rh_scheduler_ready_port"]) == (39100, 39200)


@pytest.mark.parametrize("value", [39101, "x", True, 0, 70000])
def test_bases_that_disagree_or_are_no_ports(value: t.Any) -> None:
    config = {"kv_connector_extra_config": {"d2rh_zmq_port": value}}
    finding = only(
        d2rh(d1={"pd_d2rh_zmq_port": 39100, "pd_kv_transfer_config": config}), "kv-transfer-contradiction", "d1"
    )
    assert "pd_d2rh_zmq_port" in finding.fix


def two_on_one_host(first: Variables, second: Variables) -> Source:
    """Two decode instances on d1, four chips each."""
    source = d2rh(groups={"decode": {"hosts": [], "children": {"d-a": ["d1"], "d-b": ["d1"]}}})
    sizes: Variables = {"pd_dp_size": 4, "pd_tp_size": 1, "pd_dp_mode": "internal", "pd_kv_cache_gib": 50}
    source["hosts"]["d1"]["pd_instances"] = {
        "d-a": {**sizes, "pd_chips": [0, 1, 2, 3], **first},
        "d-b": {**sizes, "pd_chips": [4, 5, 6, 7], **second},
    }
    return source


def controls(source: Source, instance: str) -> tuple[str, str]:
    found = listening(source, instance, "d1")
    return found["d2rh_zmq"], found["d2rh_scheduler_ready"]


def test_two_instances_on_one_host_keep_apart_by_themselves() -> None:
    source = two_on_one_host({}, {})
    assert controls(source, "d-a") == ("38100-38103", "38200-38203")
    assert controls(source, "d-b") == ("39100-39103", "39200-39203")


def test_a_given_base_is_kept_clear_of_whoever_has_it() -> None:
    assert controls(two_on_one_host({}, {"pd_d2rh_zmq_port": 38102}), "d-a") == ("39100-39103", "38200-38203")
    assert controls(two_on_one_host({"pd_d2rh_zmq_port": 39100}, {}), "d-b") == ("38100-38103", "39200-39203")
    assert controls(two_on_one_host({"pd_api_port": 38101}, {}), "d-a") == ("39100-39103", "38200-38203")


def test_given_bases_that_meet_are_refused() -> None:
    plan = planned(two_on_one_host({"pd_d2rh_zmq_port": 38100}, {"pd_d2rh_zmq_port": 38103}))
    (finding,) = plan.errors
    assert (finding.rule, finding.host, finding.variable) == ("port-conflict", "d1", "pd_d2rh_zmq_port")
    assert "38100-38103" in finding.message and "38103-38106" in finding.message


def test_a_base_too_high() -> None:
    (finding,) = planned(d2rh(d1={"pd_d2rh_scheduler_ready_port": 65533})).errors
    assert (finding.rule, finding.variable, finding.value) == ("port-range", "pd_d2rh_scheduler_ready_port", 65533)


def test_ranks_of_a_second_host_count_on() -> None:
    source = d2rh(groups={"decode": {"hosts": ["d1", "d2"]}}, d1={"pd_dp_size": 8})
    source["hosts"]["d2"] = {**source["hosts"]["d1"], "pd_node_ip": "192.0.2.22"}
    found = listening(source, "decode", "d2")
    assert (found["d2rh_zmq"], found["d2rh_scheduler_ready"]) == ("38104-38107", "38204-38207")


def test_they_are_reserved_on_the_host() -> None:
    row = next(row for row in planner.hosts_json(planned(d2rh())) if row["host"] == "d1")
    assert "38100-38103,38200-38203" in row["ip_local_reserved_ports"]


@pytest.mark.parametrize(
    ("more", "total", "words"),
    [
        ({"pd_kv_cache_gib": 50}, 200, "4 local ranks x 1 workers x 50 GiB"),
        (
            {"pd_kv_cache_gib": None, "pd_engine_args": {"kv-cache-memory-bytes": 30 * 1024**3}},
            120,
            "32212254720 bytes",
        ),
        # a byte more is the next 2 MiB, and that begins another GiB
        ({"pd_kv_cache_gib": None, "pd_engine_args": {"kv-cache-memory-bytes": 30 * 1024**3 + 1}}, 121, "2 MiB"),
        ({"pd_kv_cache_gib": None, "pd_engine_args": {"kv-cache-memory-bytes": "1.5g"}}, 6, "1501560832 bytes"),
        ({"pd_kv_cache_gib": None}, None, "device KV cache"),
    ],
)
def test_pinned_memory(more: Variables, total: int | None, words: str) -> None:
    plan = planned(d2rh(d1=more))
    assert plan.cluster is not None
    pinned = hostmemory.pinned(plan.cluster, placement(plan, "decode", "d1"))
    assert pinned is not None
    assert (pinned.workers, pinned.total_gib) == (4, total)
    assert words in pinned.arithmetic
    assert hostmemory.pinned(plan.cluster, placement(plan, "prefill-p1", "p1")) is None


def test_two_instances_add_up_on_their_host() -> None:
    source = two_on_one_host({}, {})
    source["hosts"]["d1"]["pd_host_memory_gib"] = 300
    finding = only(source, "d2rh-host-memory")
    assert "together 400 GiB" in finding.message and "100 GiB too little" in finding.message
