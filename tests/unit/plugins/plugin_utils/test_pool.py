# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The KV pool: what engines and master are given, and the arithmetic of its memory."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import pool, preflight, report, slices
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Source,
    as_json,
    base,
    one_host,
    placement,
    planned,
)

ON_P1 = {"kv_pool": {"hosts": ["p1"], "children": {}}}
GB = 1 << 30


def with_pool(groups: dict[str, t.Any] | None = None, **settings: t.Any) -> Source:
    return base(groups=ON_P1 if groups is None else groups, all={"pd_kv_pool": settings})


def slices_of(source: Source) -> dict[str, dict[str, t.Any]]:
    plan = planned(source)
    assert not plan.errors
    return slices.host_slices(plan, {})


def flags(argv: list[str]) -> dict[str, str]:
    assert argv[0] == "mooncake_master"
    return dict(word.removeprefix("--").split("=", 1) for word in argv[1:])


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("1GB", GB),
        ("1 gb", GB),
        ("512MB", 512 << 20),
        ("1.5GB", GB * 3 // 2),
        ("64KB", 64 << 10),
        ("2TB", 2048 * GB),
        ("1073741824", GB),
        (GB, GB),
        (0, 0),
        (True, None),
        (-1, None),
        ("1 XB", None),
        ("", None),
        ("GB", None),
        (None, None),
    ],
)
def test_size(value: t.Any, expected: int | None) -> None:
    assert pool.size(value) == expected


class TestEngines:
    def test_they_find_the_master_by_a_file_of_their_own(self) -> None:
        source = with_pool(config={"global_segment_size": "4GB", "preferred_segment": True})
        (unit,) = slices_of(source)["d1"]["units"]
        process = unit["launch"]["spec"]["processes"][0]
        path = process["env"]["MOONCAKE_CONFIG_PATH"]
        assert path == "/opt/pd_serving/pd/pd-pd-d-a/mooncake.json"
        assert f"{path.rpartition('/')[0]}:{path.rpartition('/')[0]}" in unit["container"]["mounts"]
        (file,) = (file for file in unit["launch"]["files"] if file["path"] == "mooncake.json")
        assert json.loads(file["content"]) == {
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "ascend",
            "device_name": "",
            "global_segment_size": "4GB",
            "preferred_segment": True,
            "master_server_address": "192.0.2.11:50088",
        }

    def test_a_change_of_that_file_starts_them_anew(self) -> None:
        """Files of a unit are only written when they change; the sum in the environment makes it a new spec."""
        sums = {
            slices_of(with_pool(config={"global_segment_size": size}))["d1"]["units"][0]["launch"]["spec"]["processes"][
                0
            ]["env"]["PD_POOL_CONFIG_SHA256"]
            for size in ("1GB", "2GB")
        }
        assert len(sums) == 2
        without = slices_of(base())["d1"]["units"][0]["launch"]["spec"]["processes"][0]["env"]
        assert "PD_POOL_CONFIG_SHA256" not in without

    def test_one_seed_for_all_and_roce_on_a2(self) -> None:
        for plan, roce in ((planned(with_pool()), None), (planned(one_host(host={"pd_kv_pool": {}})), "1")):
            for each in plan.placements:
                assert each.processes[0].env["PYTHONHASHSEED"] == "0"
                assert each.processes[0].env.get("HCCL_INTRA_ROCE_ENABLE") == roce

    def test_a_master_of_somebody_else(self) -> None:
        plan = planned(with_pool(groups={}, master="pool.example:51000"))
        assert plan.findings == []
        assert plan.kv_pool is not None
        assert (plan.kv_pool["started"], plan.kv_pool["address"]) == (False, "pool.example:51000")
        made = slices.host_slices(plan, {})
        assert all(content["pool_units"] == [] for content in made.values())
        (file,) = (f for f in made["d1"]["units"][0]["launch"]["files"] if f["path"] == "mooncake.json")
        assert json.loads(file["content"])["master_server_address"] == "pool.example:51000"

    def test_settings_of_one_role(self) -> None:
        plan = planned(with_pool(backend="mooncake", discard_partial_chunks=False, decode={"load_async": True}))
        for instance, host, expected in (
            ("p-a", "p1", {"lookup_rpc_port": "0", "backend": "mooncake", "discard_partial_chunks": False}),
            (
                "d-a",
                "d1",
                {"lookup_rpc_port": "0", "backend": "mooncake", "discard_partial_chunks": False, "load_async": True},
            ),
        ):
            argv = placement(plan, instance, host).processes[0].argv
            config = json.loads(argv[argv.index("--kv-transfer-config") + 1])
            assert config["kv_connector_extra_config"]["connectors"][1]["kv_connector_extra_config"] == expected

    def test_where_each_key_stands_under_multi_connector(self) -> None:
        """Worker and platform read some keys from the outer configuration only, the transport its own from the child."""
        given = {
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"ascend_local_comm_res_path": "/etc/hixlep"},
        }
        source = base(
            groups=ON_P1,
            all={"pd_kv_pool": {}, "pd_kv_transfer_config": given},
            decode={"pd_qos_priority": 2},
        )
        argv = placement(planned(source), "d-a", "d1").processes[0].argv
        outer = json.loads(argv[argv.index("--kv-transfer-config") + 1])
        mooncake, store = outer["kv_connector_extra_config"]["connectors"]
        assert outer["kv_load_failure_policy"] == "recompute"
        assert outer["kv_connector_extra_config"]["ascend_local_comm_res_path"] == "/etc/hixlep"
        assert mooncake["kv_connector_extra_config"].keys() == {"prefill", "decode", "qos_priority"}
        assert mooncake["kv_port"] == "36200"
        assert "kv_port" not in outer and "kv_port" not in store
        assert {outer["kv_role"], mooncake["kv_role"], store["kv_role"]} == {"kv_consumer"}


class TestMaster:
    def test_command(self) -> None:
        plan = planned(with_pool(master={"port": 51000, "eviction_ratio": 0.2, "args": {"rpc_thread_num": 64}}))
        assert plan.kv_pool is not None
        assert flags(plan.kv_pool["argv"]) == {
            "rpc_address": "192.0.2.11",
            "port": "51000",
            "metrics_port": "50089",
            "eviction_high_watermark_ratio": "0.9",
            "eviction_ratio": "0.2",
            "client_ttl": "120",
            "default_kv_lease_ttl": "34064",
            "rpc_thread_num": "64",
        }

    @pytest.mark.parametrize(
        ("environment", "expected"),
        [
            # 4.096 us * 2^20 * 7 retries, in ms, and 3000: what the connector sets without the variable.
            ({}, 33064 + 1000),
            ({"HCCL_RDMA_TIMEOUT": 17, "HCCL_RDMA_RETRY_CNT": 7}, 11000),
            ({"ASCEND_TRANSFER_TIMEOUT": 10000, "ASCEND_CONNECT_TIMEOUT": 10000}, 11000),
            ({"ASCEND_TRANSFER_TIMEOUT": 10000, "ASCEND_CONNECT_TIMEOUT": 60000}, 61000),
        ],
    )
    def test_lease_outlasts_every_transfer(self, environment: dict[str, t.Any], expected: int) -> None:
        source = base(groups=ON_P1, all={"pd_kv_pool": {}}, decode={"pd_engine_env": environment})
        plan = planned(base(groups=ON_P1, all={"pd_kv_pool": {}, "pd_engine_env_common": environment}))
        assert plan.kv_pool is not None
        assert flags(plan.kv_pool["argv"])["default_kv_lease_ttl"] == str(expected)
        # One instance with a longer timeout is enough.
        other = planned(source).kv_pool
        assert other is not None
        assert int(flags(other["argv"])["default_kv_lease_ttl"]) >= 34064

    def test_ssd(self) -> None:
        plan = planned(with_pool(config={"enable_ssd_offload": True, "ssd_offload_path": "/ssd"}))
        assert plan.kv_pool is not None
        assert flags(plan.kv_pool["argv"])["enable_offload"] == "true"

    def test_unit(self) -> None:
        made = slices_of(with_pool())
        assert {host: len(content["pool_units"]) for host, content in made.items()} == {
            "p1": 1,
            "p2": 0,
            "d1": 0,
            "d2": 0,
        }
        (unit,) = made["p1"]["pool_units"]
        (process,) = unit["launch"]["spec"]["processes"]
        assert process["health_url"] == "tcp://192.0.2.11:50088"
        assert unit["name"] == unit["container"]["name"] == "pd-pd-kv-pool"
        assert unit["container"]["devices"] == []
        assert "/usr/local/Ascend/driver/lib64/:/usr/local/Ascend/driver/lib64/" in unit["container"]["mounts"]

    def test_a_host_of_its_own(self) -> None:
        """It is planned, checked and reserved ports on like the others, and must have an address of its own."""
        source = base(
            groups={"kv_pool": {"hosts": ["k1"], "children": {}}},
            more={"k1": {"pd_node_ip": "192.0.2.41"}},
            all={"pd_kv_pool": {}},
        )
        made = slices_of(source)
        assert made["k1"]["node_ip"] == "192.0.2.41"
        assert [port["first"] for port in made["k1"]["checks"]["ports"]] == [50088, 50089]
        assert made["k1"]["checks"]["chips"] == made["k1"]["checks"]["device_nodes"] == []
        assert made["k1"]["ip_local_reserved_ports"] == "50088-50089"
        assert {path["path"] for path in made["k1"]["checks"]["paths"]} == {
            "/usr/local/Ascend/driver/tools/hccn_tool",
            "/usr/local/Ascend/driver/lib64/",
            "/usr/local/Ascend/driver/version.info",
        }
        source["hosts"]["k1"]["pd_node_ip"] = "192.0.2.21"
        assert [finding.rule for finding in planned(source).errors] == ["node-ip-twice"]

    def test_ports_are_reserved_on_a_host_of_others(self) -> None:
        (row,) = (row for row in as_json(with_pool())["hosts"] if row["host"] == "p1")
        assert "50088-50089" in row["ip_local_reserved_ports"].split(",")


class TestMemcache:
    def test_files(self) -> None:
        source = with_pool(
            backend="memcache",
            master={"port": 5001},
            config={"meta": {"ock.mmc.log_level": "error"}, "local": {"ock.mmc.local_service.dram.size": "2GB"}},
        )
        made = slices_of(source)
        files = {file["path"]: file["content"] for file in made["d1"]["units"][0]["launch"]["files"]}
        assert files["mmc-local.conf"].splitlines() == [
            "ock.mmc.meta_service_url = tcp://192.0.2.11:5001",
            "ock.mmc.local_service.config_store_url = tcp://192.0.2.11:6000",
            "ock.mmc.local_service.world_size = 256",
            "ock.mmc.local_service.protocol = device_sdma",
            "ock.mmc.local_service.dram.size = 2GB",
        ]
        (unit,) = made["p1"]["pool_units"]
        (file,) = unit["launch"]["files"]
        assert file["path"] == "mmc-meta.conf"
        assert "ock.mmc.meta_service.config_store_url = tcp://192.0.2.11:6000\n" in file["content"]
        assert "ock.mmc.log_level = error\n" in file["content"]
        env = unit["launch"]["spec"]["processes"][0]["env"]
        assert env["MMC_META_CONFIG_PATH"] == "/opt/pd_serving/pd/pd-pd-kv-pool/mmc-meta.conf"
        engine = made["d1"]["units"][0]["launch"]["spec"]["processes"][0]["env"]
        assert engine["MMC_LOCAL_CONFIG_PATH"] == "/opt/pd_serving/pd/pd-pd-d-a/mmc-local.conf"
        assert "MOONCAKE_CONFIG_PATH" not in engine

    def test_protocol_of_a2(self) -> None:
        source = one_host(host={"pd_kv_pool": {"backend": "memcache"}})
        source["groups"]["kv_pool"] = {"hosts": ["h1"], "children": {}}
        files = {f["path"]: f["content"] for f in slices_of(source)["h1"]["units"][0]["launch"]["files"]}
        assert "ock.mmc.local_service.protocol = device_rdma" in files["mmc-local.conf"]


class TestMemory:
    """workers x (segment + local buffer + SSD buffer): a worker is a chip's process, whatever its rank."""

    @pytest.mark.parametrize(
        ("config", "each"),
        [
            ({}, 2 * GB),
            ({"global_segment_size": "64GB"}, 65 * GB),
            # Segments come in whole gigabytes.
            ({"global_segment_size": "1.5GB", "local_buffer_size": 0}, 2 * GB),
            ({"enable_ssd_offload": True, "ssd_offload_path": "/ssd"}, 2 * GB + (1280 << 20)),
        ],
    )
    def test_by_host(self, config: dict[str, t.Any], each: int) -> None:
        plan = planned(with_pool(config=config))
        assert plan.kv_pool is not None
        rows = {row["host"]: (row["workers"], row["bytes"]) for row in plan.kv_pool["memory"]}
        assert rows == {host: (16, 16 * each) for host in ("p1", "p2", "d1", "d2")}

    def test_the_environment_wins_over_the_file(self) -> None:
        env = {"MOONCAKE_GLOBAL_SEGMENT_SIZE": "8GB"}
        plan = planned(base(groups=ON_P1, all={"pd_kv_pool": {}, "pd_engine_env_common": env}))
        assert plan.kv_pool is not None
        assert plan.kv_pool["memory"][0]["bytes"] == 16 * 9 * GB

    def test_two_instances_add_up(self) -> None:
        source = one_host(host={"pd_kv_pool": {"config": {"global_segment_size": "2GB"}}})
        source["groups"]["kv_pool"] = {"hosts": ["h1"], "children": {}}
        plan = planned(source)
        assert plan.kv_pool is not None
        assert [(row["workers"], row["bytes"]) for row in plan.kv_pool["memory"]] == [(8, 8 * 3 * GB)]
        host = preflight.plan_view(plan)["hosts"]["h1"]
        each = "4 workers x (2 GB global_segment_size + 1 GB local_buffer_size) = 12 GB"
        assert (host["pool_mb"], host["pool_arithmetic"]) == (24 * 1024, f"{each} + {each}")

    def test_people_see_the_arithmetic(self) -> None:
        lines = report.plan_lines(planned(with_pool(config={"global_segment_size": "4GB"})))
        assert "KV pool (mooncake) on p1, 192.0.2.11:50088" in lines
        assert any("16 workers x (4 GB global_segment_size + 1 GB local_buffer_size) = 80 GB" in line for line in lines)

    def test_nothing_without_a_pool(self) -> None:
        assert preflight.plan_view(planned(base()))["hosts"]["d1"]["pool_mb"] == 0


@pytest.mark.parametrize("settings", [None, {"master": "192.0.2.50:50088"}])
def test_a_host_of_the_group_without_a_pool_is_planned_with_nothing(settings: t.Any) -> None:
    """Plays name the group, so its host needs a slice."""
    more = {"k1": {"pd_node_ip": "192.0.2.99"}}
    source = base(groups={"kv_pool": {"hosts": ["k1"]}}, more=more, all={"pd_kv_pool": settings} if settings else {})
    made = slices_of(source)["k1"]
    assert (made["node_ip"], made["units"], made["pool_units"]) == ("192.0.2.99", [], [])


def test_a_mooncake_of_their_own_is_mounted_and_comes_first() -> None:
    """pd_mooncake_prefix: read-only at the same path, before the image's own; role mooncake fills it after the checks."""
    prefix = "/opt/pd_mooncake/0.3.9"
    made = slices_of(base(all={"pd_mooncake_prefix": prefix}))["d1"]
    (unit,) = made["units"]
    assert f"{prefix}:{prefix}:ro" in unit["container"]["mounts"]
    env = unit["launch"]["spec"]["processes"][0]["env"]
    assert env["PYTHONPATH"] == f"{prefix}/site-packages:$PYTHONPATH"
    folders = [f"{prefix}/site-packages/mooncake", f"{prefix}/lib", "/usr/local/lib", "$LD_LIBRARY_PATH"]
    assert env["LD_LIBRARY_PATH"].split(":") == folders
    assert prefix not in [path["path"] for path in made["checks"]["paths"]]
    assert made["mooncake"] == {
        "version": "0.3.11.post1",
        "prefix": prefix,
        "mounts": made["mooncake"]["mounts"],
    }
    without = slices_of(base())["d1"]["units"][0]["launch"]["spec"]["processes"][0]["env"]
    assert "PYTHONPATH" not in without
