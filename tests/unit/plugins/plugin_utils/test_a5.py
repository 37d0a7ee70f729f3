# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""850, 850E and 950 hosts: environment by fabric, the container against the guide's docker run, endpoint files."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import command, rehearsal, slices
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Source,
    Variables,
    a5,
    as_json,
    base,
    host_roce,
    kv_config,
    one_host,
    placement,
    planned,
    roce,
    told,
)

LOCAL, GLOBAL = "ASCEND_LOCAL_COMM_RES", "ASCEND_GLOBAL_RESOURCE_CONFIG"
PROTOCOL = "comm_resource_config.protocol_desc"
# As the guide has them, byte for byte.
AUTOMATIC = '{"version":"1.3"}'
UBG = '{"comm_resource_config.protocol_desc":["ub_rtp:device"]}'
UBOE = '{"comm_resource_config.protocol_desc":["uboe:device"]}'
FOLDERS: Variables = {
    "pd_endpoint_dir": "/srv/mooncake/endpoints",
    "pd_endpoint_container_dir": "/opt/mooncake/endpoints",
}


def env_of(source: Source, instance: str = "prefill-p1", host: str = "p1") -> dict[str, str | None]:
    return placement(planned(source), instance, host).processes[0].env


def container(source: Source, host: str = "p1") -> dict[str, t.Any]:
    made: dict[str, t.Any] = next(p for p in as_json(source)["placements"] if p["host"] == host)["container"]
    return made


def slice_of(source: Source, host: str, root: str = "") -> dict[str, t.Any]:
    plan = planned(source)
    assert not plan.errors, told(plan.findings)
    return slices.host_slices(plan, {host: slices.HostRoot(root)})[host]


# Environment --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fabric", "local", "resources"),
    [
        (None, AUTOMATIC, None),
        ("ub", AUTOMATIC, None),
        ("ubg", AUTOMATIC, UBG),
        ("uboe", AUTOMATIC, UBOE),
        ("host_roce", None, None),
    ],
)
@pytest.mark.parametrize(("instance", "host"), [("prefill-p1", "p1"), ("decode", "d1")])
def test_both_sides_are_told_the_fabric(
    fabric: str | None, local: str | None, resources: str | None, instance: str, host: str
) -> None:
    env = env_of(a5(all={"pd_fabric": fabric}), instance, host)
    assert env.get(LOCAL) == local
    assert env.get(GLOBAL) == resources
    assert env["HCCL_INTRA_ROCE_ENABLE"] is None, "unset, as the guide's scripts do"


def test_other_hardware_is_told_nothing() -> None:
    env = env_of(base(), "p-a")
    assert not {LOCAL, GLOBAL, "HCCL_INTRA_ROCE_ENABLE"} & set(env)


@pytest.mark.parametrize(
    ("given", "rendered"),
    [
        ({"fabric_memory.max_capacity": 64}, {PROTOCOL: ["uboe:device"], "fabric_memory.max_capacity": 64}),
        ({"store": {"a": 1}, PROTOCOL: ["uboe:device"]}, {PROTOCOL: ["uboe:device"], "store": {"a": 1}}),
    ],
)
def test_settings_of_a_pool_keep_the_fabrics(given: Variables, rendered: Variables) -> None:
    source = a5(all={"pd_fabric": "uboe", "pd_engine_env_common": {GLOBAL: given}})
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    assert json.loads(env_of(source)[GLOBAL] or "") == rendered


def test_text_that_the_user_gives_stays_as_it_is() -> None:
    text = '{"comm_resource_config.protocol_desc": ["uboe:device"], "x": "$HOME"}'
    assert env_of(a5(all={"pd_fabric": "uboe", "pd_engine_env_common": {GLOBAL: text}}))[GLOBAL] == text


def test_another_protocol_than_the_given_fabric_is_said_openly() -> None:
    source = a5(all={"pd_fabric": "uboe", "pd_engine_env_common": {GLOBAL: UBG}})
    rules = {finding.rule for finding in planned(source).findings}
    assert rules == {"environment-overrides", "fabric-protocol"}
    assert env_of(source)[GLOBAL] == UBG, "what the user gives wins"


# Container ----------------------------------------------------------------------------------------------------------

OWN = [
    f"-v={folder}/pd/pd-pd-prefill-p1:{folder}/pd/pd-pd-prefill-p1"
    for folder in ("/opt/pd_serving", "/var/log/pd_serving")
]
MODEL = "-v=/models/DeepSeek-V4-Flash-0731-w4a4c8:/models/DeepSeek-V4-Flash-0731-w4a4c8:ro"
CHIPS = [f"--device=/dev/davinci{chip}" for chip in range(8)]
NODES = [f"--device=/dev/{node}" for node in ("davinci_manager", "hisi_hdc", "ummu", "uburma")]
DRIVER = [
    "-v=/usr/local/Ascend/driver:/usr/local/Ascend/driver:ro",
    "-v=/usr/local/dcmi:/usr/local/dcmi:ro",
    "-v=/usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro",
    "-v=/usr/bin/urma_admin:/usr/bin/urma_admin:ro",
]
LIBRARY = "-v=/usr/lib64/libhrn5-rdmav34.so:/usr/lib64/libhrn5-rdmav34.so:ro"


def flags(made: dict[str, t.Any]) -> list[str]:
    """What `docker run` would be given."""
    return [
        f"--net={made['network']}",
        *(["--privileged"] if made["privileged"] else []),
        f"--shm-size={made['shm_size']}",
        *(f"--ulimit={limit}" for limit in made["ulimits"]),
        *([f"--memory={made['memory']}"] if made["memory"] else []),
        *(f"--cap-add={capability}" for capability in made["capabilities"]),
        *(f"--device={device}" for device in made["devices"]),
        *(f"-v={mount}" for mount in made["mounts"]),
    ]


HEAD = ["--net=host", "--privileged", "--shm-size=1g", "--ulimit=memlock=-1:-1"]


def test_the_guides_container() -> None:
    """All eight chips also where four are used; on purpose more: the model's folder and the unit's own."""
    made = container(a5())
    assert flags(made) == [*HEAD, *CHIPS, *NODES, *DRIVER, MODEL, *OWN]
    assert made["image"] == "quay.io/ascend/vllm-ascend:v0.23.0-a5"


def test_the_guides_container_for_host_roce() -> None:
    made = container(host_roce())
    roce_mounts = [LIBRARY, "-v=/etc/hixlep:/etc/hixlep:ro"]
    assert flags(made) == [*HEAD, *CHIPS, *NODES, "--device=/dev/infiniband", *DRIVER, *roce_mounts, MODEL, *OWN]


def test_the_folder_inside_may_be_another_one() -> None:
    mounts = container(host_roce(all=FOLDERS))["mounts"]
    assert "/srv/mooncake/endpoints:/opt/mooncake/endpoints:ro" in mounts
    assert not any("/etc/hixlep" in mount for mount in mounts)


def test_optional_mounts_and_another_library() -> None:
    more = [
        "/etc/libibverbs.d/hrn5.driver:/etc/libibverbs.d/hrn5.driver:ro",
        "/usr/local/bin/hiroce5:/usr/local/bin/hiroce5:ro",
    ]
    source = host_roce(all={"pd_mounts": more}, p1={"pd_roce_library": "/usr/lib64/libhrn5-rdmav57.so"})
    mounts = container(source)["mounts"]
    assert {*more, "/usr/lib64/libhrn5-rdmav57.so:/usr/lib64/libhrn5-rdmav57.so:ro"} <= set(mounts)
    assert not any("rdmav34" in mount for mount in mounts)
    kinds = {entry["path"]: entry["type"] for entry in slice_of(source, "p1")["checks"]["paths"]}
    assert kinds["/etc/libibverbs.d/hrn5.driver"] == kinds["/usr/local/bin/hiroce5"] == "file"
    assert kinds["/usr/lib64/libhrn5-rdmav57.so"] == "file"


@pytest.mark.parametrize(("fabric", "capabilities"), [("ub", []), ("host_roce", ["NET_ADMIN"])])
def test_without_privileges(fabric: str, capabilities: list[str]) -> None:
    source = host_roce(all={"pd_container_privileged": False, "pd_fabric": fabric})
    made = container(source)
    assert (made["privileged"], made["capabilities"]) == (False, capabilities)
    assert [device for device in made["devices"] if "davinci" in device] == [
        *(f"/dev/davinci{chip}" for chip in range(4)),
        "/dev/davinci_manager",
    ]
    assert ("/dev/infiniband" in made["devices"]) is (fabric == "host_roce")


def test_a_privileged_container_numbers_devices_as_the_host_does() -> None:
    source = a5(all={"pd_chips": [4, 5, 6, 7]})
    assert [p["visible_devices"] for p in as_json(source)["placements"][0]["processes"]] == ["4", "5", "6", "7"]


def test_privileges_by_choice_on_other_hardware() -> None:
    """Such a container sees all chips, so devices count as on the host there too."""
    source = one_host(host={"pd_container_privileged": True})
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    assert [process.visible_devices for process in placement(plan, "d-a", "h1").processes] == ["4", "5", "6", "7"]
    made = container(source, "h1")
    assert made["privileged"] is True
    assert [f"/dev/davinci{chip}" for chip in range(8)] == made["devices"][:8]


def test_a_memory_limit() -> None:
    assert container(a5(all={"pd_container_memory_gib": 512}))["memory"] == "512g"
    assert container(a5())["memory"] == ""


@pytest.mark.parametrize(
    ("image", "good"),
    [("v0.23.0-a5", True), ("v0.23.0-a5-openeuler", True), ("v0.23.0", False), ("v0.23.0-a3", False)],
)
def test_image_tags(image: str, good: bool) -> None:
    plan = planned(a5(all={"pd_image": f"quay.io/ascend/vllm-ascend:{image}"}))
    assert [finding.rule for finding in plan.errors] == ([] if good else ["image-hardware"])


ROUTE = "/lib/route.conf:/lib/route.conf:ro"
HOST_UB: Variables = {"pd_engine_env_common": {GLOBAL: {PROTOCOL: ["ub_ctp:device", "ub_ctp:host"]}}}


@pytest.mark.parametrize(
    ("cann", "more", "mounted"),
    [
        ("9.1.0", {}, False),
        ("9.1.1", {}, False),
        ("9.1.0", HOST_UB, True),
        ("9.1.1", HOST_UB, True),
        ("9.1.1", {"pd_engine_env_common": {GLOBAL: {PROTOCOL: "ub_ctp"}}}, True),
        ("9.1.0", {**HOST_UB, "pd_route_conf": False}, False),
        ("9.2.0", HOST_UB, False),
        ("9.2.0", {**HOST_UB, "pd_route_conf": True}, True),
        ("10.0", HOST_UB, False),
        ("9.2.0", {}, False),
    ],
)
def test_the_routing_file_by_version_and_protocol(cann: str, more: Variables, mounted: bool) -> None:
    source = a5(all={"pd_cann_version": cann, **more})
    assert (ROUTE in container(source)["mounts"]) is mounted
    paths = {entry["path"]: entry["type"] for entry in slice_of(source, "p1")["checks"]["paths"]}
    assert paths.get("/lib/route.conf") == ("file" if mounted else None)


def test_older_cann_needs_what_the_installation_guide_checks() -> None:
    source = a5(all={"pd_cann_version": "9.0.1", "pd_hixl_version": "9.1.0"})
    paths = {entry["path"]: entry["type"] for entry in slice_of(source, "p1")["checks"]["paths"]}
    assert paths["/lib/route.conf"] == paths["/etc/hccl_rootinfo.json"] == "file"
    assert paths["/etc/hixlep"] == "directory"


# Endpoint files -----------------------------------------------------------------------------------------------------


def endpoint(address: str, net: str = "superpod_0") -> Variables:
    """The guide's file."""
    return {
        "version": "1.3",
        "net_instance_id": net,
        "endpoint_list": [{"protocol": "roce", "comm_id": address, "placement": "host"}],
    }


def test_one_file_per_chip_in_use_by_its_physical_id() -> None:
    source = host_roce(all=FOLDERS, d1={"pd_chips": [7, 2, 4, 5], "pd_net_instance_id": "superpod_3"})
    files = slice_of(source, "d1")["endpoint_files"]
    assert [entry["path"] for entry in files] == [
        f"/srv/mooncake/endpoints/ub_endpoint_npu_{chip}.json" for chip in (2, 4, 5, 7)
    ]
    assert [json.loads(entry["content"]) for entry in files] == [
        endpoint(f"198.51.100.{20 + chip}", "superpod_3") for chip in (2, 4, 5, 7)
    ]


def test_addresses_follow_the_mapping_not_the_order() -> None:
    """The guide: the address that belongs to the physical chip, not that of a rank or of a position."""
    mapping = {0: "198.51.100.9", 1: "198.51.100.3", 2: "198.51.100.7", 3: "198.51.100.1"}
    files = slice_of(host_roce(d1={"pd_roce_addresses": mapping}), "d1")["endpoint_files"]
    found = [json.loads(entry["content"])["endpoint_list"][0]["comm_id"] for entry in files]
    assert found == list(mapping.values())


def test_another_address_is_another_unit() -> None:
    """Engines read the files once, when they start: with another address they must start anew, and no others."""

    def sums(source: t.Any, host: str) -> list[str | None]:
        (unit,) = slice_of(source, host)["units"]
        return [process["env"].get("PD_ENDPOINT_FILES_SHA256") for process in unit["launch"]["spec"]["processes"]]

    moved = host_roce(d1={"pd_roce_addresses": {**roce("d1", [0, 1, 2, 3]), 2: "198.51.100.99"}})
    assert sums(host_roce(), "d1") != sums(moved, "d1")
    assert sums(host_roce(), "p1") == sums(moved, "p1") and None not in sums(moved, "p1")
    (unit,) = slice_of(base(), "d1")["units"]
    assert "PD_ENDPOINT_FILES_SHA256" not in unit["launch"]["spec"]["processes"][0]["env"]


def test_no_address_no_file_but_preflight_looks_for_it() -> None:
    source = host_roce(d1={"pd_roce_addresses": roce("d1", [0, 1])})
    made = slice_of(source, "d1")
    assert [entry["path"][-6:] for entry in made["endpoint_files"]] == ["0.json", "1.json"]
    missing = [entry for entry in made["checks"]["paths"] if entry["variable"] == "pd_roce_addresses"]
    assert [(entry["path"], entry["type"]) for entry in missing] == [
        ("/etc/hixlep/ub_endpoint_npu_2.json", "file"),
        ("/etc/hixlep/ub_endpoint_npu_3.json", "file"),
    ]


def test_the_folder_is_made_with_its_files_and_not_looked_for() -> None:
    paths = {entry["path"]: entry for entry in slice_of(host_roce(all=FOLDERS), "p1")["checks"]["paths"]}
    assert "/srv/mooncake/endpoints" not in paths
    assert (paths["/dev/infiniband"]["type"], paths["/dev/infiniband"]["variable"]) == ("directory", "pd_fabric")
    assert paths["/usr/lib64/libhrn5-rdmav34.so"]["type"] == "file"


@pytest.mark.parametrize("source", [a5(), base(), one_host()])
def test_nobody_else_gets_files(source: Source) -> None:
    plan = planned(source)
    assert all(made["endpoint_files"] == [] for made in slices.host_slices(plan, {}).values())


def test_without_a_container_they_lie_where_the_engines_look() -> None:
    source = host_roce(all={**FOLDERS, "pd_runtime": "process"})
    assert slice_of(source, "p1")["endpoint_files"][0]["path"].startswith("/opt/mooncake/endpoints/")
    rehearsed = rehearsal.rehearse(host_roce(all=FOLDERS), "/state")
    assert slice_of(rehearsed, "p1")["endpoint_files"][0]["path"].startswith("/opt/mooncake/endpoints/")


def test_a_mount_of_the_users_own_tells_where_the_folder_is() -> None:
    source = host_roce(all={"pd_mounts": ["/data/endpoints:/etc/hixlep:ro"]})
    assert slice_of(source, "p1")["endpoint_files"][0]["path"] == "/data/endpoints/ub_endpoint_npu_0.json"


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({}, "/etc/hixlep"),
        ({"pd_endpoint_dir": "/srv/ep"}, "/srv/ep"),
        (FOLDERS, "/opt/mooncake/endpoints"),
        (
            {"pd_kv_transfer_config": {"kv_connector_extra_config": {"ascend_local_comm_res_path": "/opt/x"}}},
            "/opt/x",
        ),
    ],
)
def test_both_sides_know_the_folder_inside(more: Variables, path: str) -> None:
    source = host_roce(all=more)
    for instance, host in (("prefill-p1", "p1"), ("decode", "d1")):
        config = kv_config(source, instance, host)
        assert config["kv_connector_extra_config"]["ascend_local_comm_res_path"] == path
        assert any(mount.split(":")[1] == path for mount in container(source, host)["mounts"])


def test_files_of_ones_own_for_another_fabric_are_mounted_and_looked_for() -> None:
    path = {"pd_kv_transfer_config": {"kv_connector_extra_config": {"ascend_local_comm_res_path": "/opt/ep"}}}
    source = a5(all={**path, "pd_endpoint_dir": "/srv/ep", "pd_hixl_version": "9.0.0"})
    assert not planned(source).findings, told(planned(source).findings)
    assert "/srv/ep:/opt/ep:ro" in container(source)["mounts"]
    assert LOCAL not in env_of(source), "the engines would overwrite it"
    made = slice_of(source, "p1")
    assert made["endpoint_files"] == []
    kinds = {entry["path"]: entry["type"] for entry in made["checks"]["paths"]}
    assert kinds["/srv/ep"] == "directory"
    assert {name for name in kinds if "ub_endpoint" in name} == {
        f"/srv/ep/ub_endpoint_npu_{chip}.json" for chip in range(4)
    }


def test_beside_a_pool_it_stays_outside_and_the_sizes_inside() -> None:
    source = host_roce(all={**FOLDERS, "pd_kv_pool": {"backend": "mooncake"}})
    outer = kv_config(source, "decode", "d1")
    transport, store = outer["kv_connector_extra_config"]["connectors"]
    assert outer["kv_connector_extra_config"]["ascend_local_comm_res_path"] == "/opt/mooncake/endpoints"
    assert transport["kv_connector_extra_config"] == {
        "prefill": {"dp_size": 4, "tp_size": 1},
        "decode": {"dp_size": 4, "tp_size": 1},
    }
    assert "ascend_local_comm_res_path" not in store["kv_connector_extra_config"]


def test_two_instances_of_one_host_have_their_own_chips_files() -> None:
    source: Source = {
        "groups": {"prefill": {"hosts": ["h1"]}, "decode": {"hosts": ["h1"]}, "proxy": {"hosts": ["h1"]}},
        "hosts": {
            "h1": {
                "pd_hardware": "a5",
                "pd_fabric": "host_roce",
                "pd_node_ip": "192.0.2.31",
                "pd_model_path": "/models/m",
                "pd_served_model_name": "m",
                "pd_roce_addresses": roce("p1"),
                "pd_instances": {
                    "prefill-h1": {"pd_dp_size": 4, "pd_tp_size": 1, "pd_chips": [0, 1, 2, 3]},
                    "decode": {"pd_dp_size": 4, "pd_tp_size": 1, "pd_chips": [4, 5, 6, 7]},
                },
            }
        },
    }
    made = slice_of(source, "h1")
    assert [entry["path"][-6:-5] for entry in made["endpoint_files"]] == list("01234567")
    assert not planned(source).findings, told(planned(source).findings)


def test_the_planned_name_of_the_devices_variable_stays() -> None:
    """Endpoint files are found by it, so it is the plan's on every hardware."""
    assert env_of(host_roce())[command.DEVICES_VARIABLE] == "0"


def test_upstreams_recipe_over_eight_hosts() -> None:
    """DeepSeek-V3.1 on 950DT: two prefill instances of two hosts each, decode over four, endpoint files in /etc/hixlep."""
    config = {"kv_connector_extra_config": {"ascend_local_comm_res_path": "/etc/hixlep"}}
    common: Variables = {
        "pd_hardware": "a5",
        "pd_model_path": "/models/DeepSeek-V3.1",
        "pd_served_model_name": "v31",
        "pd_port_reserve": "measured",
        "pd_kv_transfer_config": config,
        "pd_engine_args_common": {"additional-config": {"enable_cpu_binding": "True"}, "max-model-len": 40000},
    }
    hosts = {f"n{number}": {**common, "pd_node_ip": f"192.0.2.{10 + number}"} for number in range(8)}
    for number, host in enumerate(hosts.values()):
        prefill = number < 4
        sizes = {"pd_dp_size": 4, "pd_tp_size": 4} if prefill else {"pd_dp_size": 32, "pd_tp_size": 1}
        host.update(sizes, pd_kv_port=30100 if prefill else 30300)
    prefill_groups = {"p0": ["n0", "n1"], "p1": ["n2", "n3"]}
    source: Source = {
        "groups": {
            "prefill": {"hosts": [], "children": prefill_groups},
            "decode": {"hosts": [], "children": {"d0": ["n4", "n5", "n6", "n7"]}},
            "proxy": {"hosts": ["n0"]},
        },
        "hosts": hosts,
    }
    plan = planned(source)
    assert not plan.errors, told(plan.findings)
    assert [item.kv_listen for item in plan.placements[:4]] == [(30100, 30107), (30108, 30115)] * 2
    assert plan.proxy is not None
    argv = plan.proxy["argv"]
    prefillers = argv[argv.index("--prefiller-hosts") + 1 : argv.index("--prefiller-ports")]
    decoders = argv[argv.index("--decoder-hosts") + 1 : argv.index("--decoder-ports")]
    assert (len(prefillers), len(set(prefillers))) == (8, 4)
    assert (len(decoders), len(set(decoders))) == (32, 4)
