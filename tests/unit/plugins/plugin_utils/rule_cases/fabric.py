# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about the fabrics of a5 and Host RoCE."""

from __future__ import annotations

import json

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import (
    COMMON,
    GLOBAL,
    PROTOCOL,
    protocol,
    resources,
    with_env,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Variables,
    a5,
    base,
    host_roce,
    roce,
)

LOCAL = "ASCEND_LOCAL_COMM_RES"


def folder(path: object) -> Variables:
    return {"pd_kv_transfer_config": {"kv_connector_extra_config": {"ascend_local_comm_res_path": path}}}


FABRIC: list[Provoking | Quiet] = [
    Provoking(
        "fabric-not-a5",
        "UBoE on a3",
        base(all={"pd_fabric": "uboe"}),
        "all",
        "pd_fabric",
        "uboe",
        ("a3", "a5", "pd_hardware"),
        severity="warning",
    ),
    Provoking(
        "fabric-not-a5",
        "an endpoint folder on a3",
        base(all={"pd_endpoint_dir": "/srv/ep"}),
        "all",
        "pd_endpoint_dir",
        "/srv/ep",
        ("a3",),
        severity="warning",
    ),
    Quiet("fabric-not-a5", "the default said aloud", base(all={"pd_fabric": "ub"})),
    Provoking(
        "hixl-version",
        "HIXL before 9.1.0",
        a5(all={"pd_hixl_version": "9.0.3"}),
        "all",
        "pd_hixl_version",
        "9.0.3",
        ("9.1.0", "9.0.3", "ub"),
    ),
    Provoking(
        "hixl-version",
        "an image with an older CANN",
        a5(all={"pd_vllm_ascend_version": "v0.25.1rc1", "pd_fabric": "uboe"}),
        "all",
        "pd_hixl_version",
        None,
        ("9.0.1", "9.1.0", "uboe", "v0.25.1rc1-a5"),
    ),
    Provoking(
        "hixl-version",
        "nothing is known",
        a5(all={"pd_vllm_ascend_version": "v0.99.0"}),
        "all",
        "pd_hixl_version",
        None,
        ("v0.99.0-a5", "9.1.0"),
        severity="warning",
        alone=False,
    ),
    Quiet("hixl-version", "9.1.0", a5(all={"pd_hixl_version": "9.1.0"})),
    Quiet("hixl-version", "9.1", a5(all={"pd_hixl_version": "9.1"})),
    Quiet(
        "hixl-version",
        "upgraded inside an older image",
        a5(all={"pd_vllm_ascend_version": "v0.25.1rc1", "pd_hixl_version": "9.2.0"}),
    ),
    Quiet("hixl-version", "Host RoCE does not need it", host_roce(all={"pd_hixl_version": "9.0.0"})),
    Quiet(
        "hixl-version",
        "endpoints written by hand",
        a5(
            all={
                "pd_hixl_version": "9.0.0",
                "pd_engine_env_common": {"ASCEND_LOCAL_COMM_RES": {"version": "1.3", "endpoint_list": [{}]}},
            }
        ),
        clean=False,
    ),
    Quiet("hixl-version", "other hardware", base(all={"pd_hixl_version": "1.0"})),
    Provoking(
        "resource-config",
        "plain text",
        base(all=resources("hccs:device")),
        "p1",
        f"pd_engine_env_common.{GLOBAL}",
        "hccs:device",
        (GLOBAL, "JSON", "mapping"),
    ),
    Provoking(
        "resource-config",
        "Python's way of writing",
        a5(d1=resources("{'a': 1}", "pd_engine_env_extra")),
        "d1",
        f"pd_engine_env_extra.{GLOBAL}",
        "{'a': 1}",
        ("JSON",),
    ),
    Provoking(
        "resource-config",
        "a list",
        base(all={"pd_engine_env_common": {"ASCEND_LOCAL_COMM_RES": "[1]"}}),
        "p1",
        "pd_engine_env_common.ASCEND_LOCAL_COMM_RES",
        "[1]",
        ("[1]", "object"),
    ),
    Provoking(
        "resource-config",
        "a protocol nobody knows",
        a5(all=resources({PROTOCOL: ["ubx:device"]})),
        "p1",
        f"pd_engine_env_common.{GLOBAL}",
        '{"comm_resource_config.protocol_desc":["ubx:device"]}',
        ("ubx:device", "uboe:device"),
        severity="warning",
    ),
    Quiet("resource-config", "a mapping", base(all=resources({PROTOCOL: ["hccs:device"]}))),
    Quiet("resource-config", "its JSON", base(all=resources(protocol(["hccs:device"])))),
    Quiet("resource-config", "unset", a5(all=resources(None))),
    Provoking(
        "roce-host-variable",
        "as the announcement has it",
        a5(all=resources(protocol("roce:host"))),
        "p1",
        f"pd_engine_env_common.{GLOBAL}",
        protocol("roce:host"),
        ("roce:host", "not yet supported", "pd_fabric: host_roce", "pd_roce_addresses"),
    ),
    Provoking(
        "roce-host-variable",
        "in a list beside endpoint files",
        host_roce(d1=resources({PROTOCOL: ["roce:host"]}, "pd_engine_env_extra")),
        "d1",
        f"pd_engine_env_extra.{GLOBAL}",
        '{"comm_resource_config.protocol_desc":["roce:host"]}',
        ("roce:host",),
    ),
    Provoking(
        "fabric-protocol",
        "UBoE by the variable, UB by pd_fabric",
        a5(all=resources({PROTOCOL: ["uboe:device"]})),
        "p1",
        f"pd_engine_env_common.{GLOBAL}",
        '{"comm_resource_config.protocol_desc":["uboe:device"]}',
        ("pd_fabric is ub", "uboe:device", "pd_fabric: uboe"),
        severity="warning",
    ),
    Provoking(
        "fabric-protocol",
        "UBoE by pd_fabric, UBG by the variable",
        a5(all={"pd_fabric": "uboe", **resources({PROTOCOL: ["ub_rtp:device"]})}),
        "p1",
        f"pd_engine_env_common.{GLOBAL}",
        '{"comm_resource_config.protocol_desc":["ub_rtp:device"]}',
        ("uboe", "ub_rtp:device", "pd_fabric: ubg"),
        severity="warning",
        alone=False,
    ),
    Quiet(
        "fabric-protocol",
        "said twice",
        a5(all={"pd_fabric": "uboe", **resources(protocol(["uboe:device"]))}),
    ),
    Quiet(
        "fabric-protocol",
        "pool settings beside the fabric's",
        a5(all={"pd_fabric": "ubg", **resources({"fabric_memory.max_capacity": 64})}),
    ),
    Quiet("fabric-protocol", "Host UB on the default fabric", a5(all=resources({PROTOCOL: ["ub_ctp:host"]}))),
    Provoking(
        "intra-roce-on-a5",
        "copied from an a2 recipe",
        a5(all={"pd_engine_env_common": {"HCCL_INTRA_ROCE_ENABLE": "1"}}),
        "p1",
        "pd_engine_env_common.HCCL_INTRA_ROCE_ENABLE",
        "1",
        ("850",),
        severity="warning",
    ),
    Quiet("intra-roce-on-a5", "on a3", base(all={"pd_engine_env_common": {"HCCL_INTRA_ROCE_ENABLE": "1"}})),
    Provoking(
        "comm-res-overwritten",
        "beside endpoint files",
        host_roce(all={"pd_engine_env_common": {"ASCEND_LOCAL_COMM_RES": '{"version":"1.3"}'}}),
        "p1",
        "pd_engine_env_common.ASCEND_LOCAL_COMM_RES",
        '{"version":"1.3"}',
        ("ascend_local_comm_res_path",),
        severity="warning",
    ),
    Quiet(
        "comm-res-overwritten",
        "on UB",
        a5(all={"pd_engine_env_common": {"ASCEND_LOCAL_COMM_RES": '{"version": "1.3"}'}}),
    ),
]

HOST_ROCE: list[Provoking | Quiet] = [
    Provoking(
        "roce-addresses-unused",
        "on UB",
        a5(p1={"pd_roce_addresses": roce("p1")}),
        "p1",
        "pd_roce_addresses",
        {str(chip): address for chip, address in roce("p1").items()},
        ("host_roce", "ub"),
        severity="warning",
    ),
    Provoking(
        "roce-address-chip",
        "a ninth chip",
        host_roce(d1={"pd_roce_addresses": roce("d1", range(9))}),
        "d1",
        "pd_roce_addresses",
        {str(chip): address for chip, address in roce("d1", range(9)).items()},
        ("chip 8", "0-7"),
    ),
    Provoking(
        "roce-address-twice",
        "a copied block",
        host_roce(d1={"pd_roce_addresses": roce("p1")}),
        "d1",
        "pd_roce_addresses",
        "198.51.100.10",
        ("198.51.100.10", "p1", "d1", "chip 0"),
    ),
    Provoking(
        "roce-address-of-host",
        "the address that another host is reached at",
        host_roce(d1={"pd_roce_addresses": {**roce("d1"), 2: "192.0.2.11"}}),
        "d1",
        "pd_roce_addresses",
        "192.0.2.11",
        ("chip 2", "d1", "pd_node_ip of p1", "192.0.2.11"),
    ),
    Provoking(
        "roce-address-of-host",
        "the host's own management address",
        host_roce(p1={"ansible_host": "192.0.2.111", "pd_roce_addresses": {**roce("p1"), 0: "192.0.2.111"}}),
        "p1",
        "pd_roce_addresses",
        "192.0.2.111",
        ("chip 0", "ansible_host of p1", "RDMA"),
        severity="warning",
    ),
    Provoking(
        "variable-value",
        "a loopback address of a chip",
        host_roce(d1={"pd_roce_addresses": {**roce("d1"), 1: "127.0.0.1"}}),
        "d1",
        "pd_roce_addresses",
        {**roce("d1"), 1: "127.0.0.1"},
        ("chip 1", "loopback"),
    ),
    Provoking(
        "roce-address-missing",
        "two of the chips in use",
        host_roce(d1={"pd_roce_addresses": roce("d1", [0, 1])}),
        "d1",
        "pd_roce_addresses",
        {"0": "198.51.100.20", "1": "198.51.100.21"},
        ("chips 2,3", "preflight", "look it up on the host"),
        severity="warning",
    ),
    Quiet(
        "roce-address-missing", "chips not in use need none", host_roce(d1={"pd_roce_addresses": roce("d1", range(4))})
    ),
    Provoking(
        "endpoint-folder",
        "a relative path",
        a5(d1=folder("hixlep")),
        "d1",
        "pd_kv_transfer_config.kv_connector_extra_config.ascend_local_comm_res_path",
        "hixlep",
        ("absolute",),
        alone=False,
    ),
    Quiet("endpoint-folder", "endpoint files of one's own, at the folder on the host", a5(all=folder("/etc/hixlep"))),
    Quiet(
        "endpoint-folder",
        "endpoint files of one's own for UB",
        a5(all={**folder("/etc/hixlep"), "pd_mounts": ["/etc/hixlep:/etc/hixlep:ro"]}),
    ),
    Quiet("endpoint-folder", "without a container", a5(all={**folder("/etc/hixlep"), "pd_runtime": "process"})),
    Quiet("endpoint-folder", "Host RoCE at the default folder", host_roce(all=folder("/etc/hixlep"))),
    Quiet("endpoint-folder", "Host RoCE at a folder given there", host_roce(all=folder("/opt/mooncake/endpoints"))),
    Provoking(
        "kv-transfer-contradiction",
        "another folder than the container's",
        host_roce(all={**folder("/etc/hixlep"), "pd_endpoint_container_dir": "/opt/mooncake/endpoints"}),
        "p1",
        "pd_kv_transfer_config.kv_connector_extra_config.ascend_local_comm_res_path",
        "/etc/hixlep",
        ("/opt/mooncake/endpoints", "pd_endpoint_container_dir"),
    ),
    Provoking(
        "endpoint-file-number",
        "a container that shows four of eight chips",
        host_roce(
            all={"pd_container_privileged": False},
            d1={"pd_chips": [4, 5, 6, 7], "pd_mapped_chips": [4, 5, 6, 7]},
        ),
        "d1",
        "pd_mapped_chips",
        [4, 5, 6, 7],
        ("chip 4", "ub_endpoint_npu_0.json", "ub_endpoint_npu_4.json"),
        alone=False,
    ),
    Quiet("endpoint-file-number", "privileged", host_roce(d1={"pd_chips": [4, 5, 6, 7]})),
    Provoking(
        "container-not-privileged",
        "Host RoCE",
        host_roce(all={"pd_container_privileged": False}),
        "all",
        "pd_container_privileged",
        False,
        ("NET_ADMIN", "validate"),
        severity="warning",
    ),
    Quiet(
        "container-not-privileged", "no container", a5(all={"pd_container_privileged": False, "pd_runtime": "process"})
    ),
    Quiet("container-not-privileged", "a3", base(all={"pd_container_privileged": False})),
    Provoking(
        "mapped-chips-privileged",
        "half of the chips",
        a5(p1={"pd_mapped_chips": [0, 1, 2, 3]}),
        "p1",
        "pd_mapped_chips",
        [0, 1, 2, 3],
        ("privileged", "pd_chips"),
    ),
    Quiet("mapped-chips-privileged", "all of them", a5(p1={"pd_mapped_chips": list(range(8))})),
]

AUTOMATIC: list[Provoking | Quiet] = [
    *(
        Provoking(
            "resource-config",
            f"endpoints of {fabric} by {value!r}",
            a5(all={"pd_fabric": fabric}, d1={"pd_engine_env": {LOCAL: value}}),
            "d1",
            f"pd_engine_env.{LOCAL}",
            None if value is None else json.dumps(value, separators=(",", ":")),
            (fabric, '{"version": "1.3"}', "the plan sets it"),
        )
        for fabric in ("ub", "uboe")
        for value in (None, {"version": "1.2"}, {"versions": "1.3"})
    ),
    *(
        Quiet("resource-config", f"endpoints by {value!r}", source, clean=False)
        for value, source in (
            ("what the plan sets", a5(d1={"pd_engine_env": {LOCAL: {"version": "1.3"}}})),
            ("a list of one's own", a5(d1={"pd_engine_env": {LOCAL: {"version": "1.2", "endpoint_list": []}}})),
            ("nothing, beside files", host_roce(all={"pd_engine_env": {LOCAL: None}})),
        )
    ),
]

ONE_FINDING_EACH: list[Provoking | Quiet] = [
    Provoking(
        "roce-address-twice",
        "a copied block is one finding",
        host_roce(d1={"pd_roce_addresses": roce("p1")}),
        "d1",
        "pd_roce_addresses",
        "198.51.100.10",
        ("chip 0 on p1", "chip 0 on d1", "7 more"),
    ),
    Provoking(
        "resource-config",
        "one level too deep",
        with_env(ASCEND_GLOBAL_RESOURCE_CONFIG={"comm_resource_config": {"protocol_desc": ["hccs:device"]}}),
        "p1",
        f"{COMMON}.ASCEND_GLOBAL_RESOURCE_CONFIG",
        '{"comm_resource_config":{"protocol_desc":["hccs:device"]}}',
        ("flat", "comm_resource_config.protocol_desc"),
        severity="warning",
    ),
]

CASES: list[Provoking | Quiet] = [*FABRIC, *HOST_ROCE, *AUTOMATIC, *ONE_FINDING_EACH]
