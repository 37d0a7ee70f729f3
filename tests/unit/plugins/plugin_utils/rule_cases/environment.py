# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about environment variables."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import (
    COMMON,
    with_env,
    with_pool_env,
    with_version,
)
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import ABSENT, base

CASES: list[Provoking | Quiet] = [
    *(
        Provoking(
            "environment-value",
            f"HCCL's range {value!r}",
            with_env(HCCL_HOST_SOCKET_PORT_RANGE=value),
            "p1",
            f"{COMMON}.HCCL_HOST_SOCKET_PORT_RANGE",
            value,
            (value, "auto"),
        )
        for value in ("60000:60050", "60050-60000", "0-70000", "all")
    ),
    *(
        Quiet("environment-value", f"HCCL's range {value}", with_env(HCCL_HOST_SOCKET_PORT_RANGE=value))
        for value in ("60000-60050", "60000, 60010-60050", "auto")
    ),
    *(
        Provoking(
            "environment-value",
            f"{name} is {value!r}",
            with_env(**{name: value}),
            "p1",
            f"{COMMON}.{name}",
            str(value),
            (name, str(value), unit),
        )
        for name, value, unit in (
            ("ASCEND_CONNECT_TIMEOUT", "10s", "milliseconds"),
            ("ASCEND_CONNECT_TIMEOUT", 10, "milliseconds"),
            ("ASCEND_TRANSFER_TIMEOUT", 10.5, "milliseconds"),
            ("HCCL_RDMA_TIMEOUT", 60, "exponent"),
            ("HCCL_RDMA_RETRY_CNT", 0, "1 to 7"),
            ("HCCL_EXEC_TIMEOUT", -1, "seconds"),
            ("HCCL_CONNECT_TIMEOUT", "20m", "seconds"),
            ("HCCL_BUFFSIZE", "256MB", "MB"),
            ("ASCEND_BASE_PORT", "abc", "port"),
            ("ASCEND_BASE_PORT", 70000, "port"),
            ("HCCL_IF_BASE_PORT", "60000-60031", "port"),
            ("OMP_NUM_THREADS", 0, "threads"),
        )
    ),
    Provoking(
        "environment-value",
        "a pool's segment without a size",
        with_pool_env(MOONCAKE_GLOBAL_SEGMENT_SIZE="lots"),
        "p1",
        f"{COMMON}.MOONCAKE_GLOBAL_SEGMENT_SIZE",
        "lots",
        ("lots", "GB", "pd_kv_pool.config.global_segment_size"),
    ),
    Quiet(
        "environment-value",
        "what recipes have",
        with_env(
            HCCL_EXEC_TIMEOUT="204",
            HCCL_CONNECT_TIMEOUT="400",
            ASCEND_TRANSFER_TIMEOUT="10000",
            HCCL_BUFFSIZE="1100",
            VLLM_RPC_TIMEOUT="3600000",
            OMP_NUM_THREADS=10,
        ),
    ),
    Quiet(
        "environment-value", "the edges", with_env(HCCL_RDMA_TIMEOUT=5, ASCEND_CONNECT_TIMEOUT=100, HCCL_EXEC_TIMEOUT=0)
    ),
    Provoking(
        "address-of-another-host",
        "a line copied to the next host",
        base(d2={"pd_engine_env_extra": {"HCCL_IF_IP": "192.0.2.21"}}),
        "d2",
        "pd_engine_env_extra.HCCL_IF_IP",
        "192.0.2.21",
        ("d2", "d1", "192.0.2.21", "pd_node_ip"),
    ),
    Provoking(
        "address-of-another-host",
        "the first host's for all, which have no pd_node_ip",
        base(
            all={COMMON: {"VLLM_HOST_IP": "192.0.2.11"}},
            **{
                host: {"pd_node_ip": ABSENT, "ansible_host": f"192.0.2.{last}"}
                for host, last in (("p1", 11), ("p2", 12), ("d1", 21), ("d2", 22))
            },
        ),
        "p2",
        f"{COMMON}.VLLM_HOST_IP",
        "192.0.2.11",
        ("p1", "d1", "d2"),
    ),
    *(
        Provoking(
            "address-of-another-host",
            value,
            base(p1={"pd_engine_env_extra": {"HCCL_IF_IP": value}}),
            "p1",
            "pd_engine_env_extra.HCCL_IF_IP",
            value,
            (value, "p1"),
        )
        for value in ("localhost", "127.0.0.1", "0.0.0.0", "2001:db8::11", "192.0.2.11/24", "")
    ),
    *(
        Provoking(
            "address-of-another-host",
            f"{about}: {name}",
            source,
            host,
            variable,
            value,
            (name, *says),
            alone="the proxy's" not in about,
        )
        for name in ("HCCL_IF_IP", "VLLM_HOST_IP", "MC_TCP_BIND_ADDRESS")
        for about, source, host, variable, value, says in (
            (
                "nobody's address, for all hosts",
                with_env(**{name: "198.51.100.99"}),
                "p1",
                f"{COMMON}.{name}",
                "198.51.100.99",
                ("more than one host", "also on p2, d1, d2"),
            ),
            (
                "one address for both hosts of a role",
                base(prefill={"pd_engine_env": {name: "198.51.100.99"}}),
                "p1",
                f"pd_engine_env.{name}",
                "198.51.100.99",
                ("more than one host", "also on p2"),
            ),
            (
                "the management address of another host",
                base(p1={"ansible_host": "203.0.113.11"}, d2={"pd_engine_env_extra": {name: "203.0.113.11"}}),
                "d2",
                f"pd_engine_env_extra.{name}",
                "203.0.113.11",
                ("the address of p1",),
            ),
            (
                "the proxy's, which has no engine",
                base(
                    groups={"proxy": {"hosts": ["x1"]}},
                    more={"x1": {"pd_node_ip": "192.0.2.31"}},
                    d2={"pd_engine_env_extra": {name: "192.0.2.31"}},
                ),
                "d2",
                f"pd_engine_env_extra.{name}",
                "192.0.2.31",
                ("the address of x1",),
            ),
        )
    ),
    *(
        Provoking(
            "environment-overrides",
            f"perhaps another card's: {name}",
            base(
                d2={"pd_node_ip": ABSENT, "ansible_host": "192.0.2.22", "pd_engine_env_extra": {name: "198.51.100.22"}}
            ),
            "d2",
            f"pd_engine_env_extra.{name}",
            "198.51.100.22",
            (name, "198.51.100.22", "192.0.2.22", "pd_node_ip"),
            severity="warning",
        )
        for name in ("HCCL_IF_IP", "VLLM_HOST_IP", "MC_TCP_BIND_ADDRESS")
    ),
    *(
        Provoking(
            "environment-overrides",
            f"unset: {name}",
            base(all={"pd_nic": ABSENT, COMMON: {name: None}}),
            "p1",
            f"{COMMON}.{name}",
            None,
            (name, "unset", source, says, "also on p2, d1, d2"),
            severity="warning",
        )
        for name, source, says in (
            ("VLLM_HOST_IP", "pd_node_ip", "the address of the default route"),
            ("HCCL_IF_IP", "pd_node_ip", "chooses"),
            ("GLOO_SOCKET_IFNAME", "pd_nic", "chooses"),
            ("TP_SOCKET_IFNAME", "pd_nic", "chooses"),
            ("HCCL_SOCKET_IFNAME", "pd_nic", "chooses"),
        )
    ),
    Quiet(
        "address-of-another-host",
        "hosts behind one port forwarding",
        base(all={"ansible_host": "203.0.113.1"}, d2={"pd_engine_env_extra": {"VLLM_HOST_IP": "203.0.113.1"}}),
        clean=False,
    ),
    Quiet("environment-overrides", "what the plan does not set", with_env(MC_TCP_BIND_ADDRESS=None)),
    Quiet("environment-overrides", "HCCL's word for this very card", with_env(HCCL_SOCKET_IFNAME="=eth-data0")),
    Quiet("address-of-another-host", "a socket on every address", with_env(MC_TCP_BIND_ADDRESS="0.0.0.0")),
    Quiet(
        "address-of-another-host",
        "another card of the same host",
        base(p1={"pd_engine_env_extra": {"HCCL_IF_IP": "198.51.100.11"}}),
        clean=False,
    ),
    Quiet(
        "address-of-another-host", "its own, once more", base(p1={"pd_engine_env_extra": {"HCCL_IF_IP": "192.0.2.11"}})
    ),
    *(
        Provoking(
            "http-proxy",
            name,
            with_env(**{name: "http://198.51.100.1:3128"}),
            "p1",
            f"{COMMON}.{name}",
            "http://198.51.100.1:3128",
            (name, "NO_PROXY"),
            severity="warning",
        )
        for name in ("http_proxy", "HTTPS_PROXY")
    ),
    Quiet("http-proxy", "unset", with_env(http_proxy=None, HTTPS_PROXY=None)),
    Quiet("http-proxy", "with exceptions", with_env(http_proxy="http://198.51.100.1:3128", NO_PROXY="192.0.2.0/24")),
    *(
        Provoking(
            "timeout-name",
            name,
            with_env(**{name: 1800}),
            "p1",
            f"{COMMON}.{name}",
            "1800",
            (name, "pd_kv_release_timeout"),
            severity="warning",
        )
        for name in ("VLLM_MOONCAKE_ABORT_REQ_TIMEOUT", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUTS")
    ),
    Quiet("timeout-name", "other limits", with_env(VLLM_RPC_TIMEOUT=1800000, VLLM_ENGINE_READY_TIMEOUT_S=3600)),
    Provoking(
        "environment-overrides",
        "another master than the plan's",
        with_pool_env(MOONCAKE_MASTER="192.0.2.99:50088"),
        "p1",
        f"{COMMON}.MOONCAKE_MASTER",
        "192.0.2.99:50088",
        ("192.0.2.99:50088", "192.0.2.11:50088"),
        severity="warning",
    ),
    Quiet("environment-overrides", "the plan's master", with_pool_env(MOONCAKE_MASTER="192.0.2.11:50088")),
    Provoking(
        "kv-release-timeout",
        "an override that is no number is one finding",
        base(prefill={"pd_engine_env": {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "480s"}}),
        "p1",
        "pd_engine_env.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
        "480s",
        ("480s", "no whole number"),
    ),
    Provoking(
        "port-range",
        "transports moved beyond the last port",
        with_env(ASCEND_BASE_PORT=64000),
        "p1",
        f"{COMMON}.ASCEND_BASE_PORT",
        64000,
        ("64000-65599", "65535"),
    ),
    Provoking(
        "port-range",
        "HCCL moved beyond the last port",
        with_env(HCCL_IF_BASE_PORT=65520),
        "p1",
        f"{COMMON}.HCCL_IF_BASE_PORT",
        65520,
        ("65520-65551",),
    ),
    Quiet("port-range", "moved as far as the image's Mooncake allows", with_env(ASCEND_BASE_PORT=58000)),
    Provoking(
        "kv-port-reserve",
        "where the transfer engine was moved to",
        base(p1={"pd_engine_env_extra": {"MC_MIN_RPC_PORT": 36010, "MC_MAX_RPC_PORT": 37000}}),
        "p1",
        "pd_kv_port",
        36000,
        ("36000-36015", "36010-37000", "37001"),
    ),
    *(
        Provoking(
            "kv-port-reserve",
            f"moved under the misspelt names, {version}",
            with_version(with_env(MC_MIN_PRC_PORT=36000, MC_MAX_PRC_PORT=36500), version),
            "p1",
            "pd_kv_port",
            36000,
            ("36000-36500", "36501"),
            alone=False,
        )
        for version in ("v0.23.0", "v0.14.0rc1")
    ),
    Quiet(
        "kv-port-reserve",
        "a name that old Mooncake does not read moves nothing",
        with_version(with_env(MC_MIN_RPC_PORT=36000, MC_MAX_RPC_PORT=36500), "v0.18.0"),
        clean=False,
    ),
    *(
        Provoking(
            "environment-name",
            f"{name} with {version}",
            with_version(with_env(**{name: 40000}), version),
            "p1",
            f"{COMMON}.{name}",
            "40000",
            (name, mooncake, version, *says),
            severity="warning",
        )
        for name, version, mooncake, says in (
            ("MC_MIN_RPC_PORT", "v0.18.0", "0.3.9", ("set MC_MIN_PRC_PORT",)),
            ("MC_MAX_RPC_PORT", "v0.14.0rc1", "0.3.7.post2", ("set MC_MAX_PRC_PORT",)),
            ("ASCEND_BASE_PORT", "v0.14.0rc1", "0.3.7.post2", ("newer Mooncake",)),
        )
    ),
    *(
        Quiet("environment-name", about, with_version(with_env(**env), version))
        for about, version, env in (
            ("both names", "v0.18.0", {"MC_MAX_RPC_PORT": 18000, "MC_MAX_PRC_PORT": 18000}),
            ("the misspelt one, newer", "v0.23.0", {"MC_MAX_PRC_PORT": 18000}),
            ("the misspelt one, older", "v0.18.0", {"MC_MAX_PRC_PORT": 18000}),
        )
    ),
    Provoking(
        "environment-value",
        "no number under the misspelt name",
        with_env(MC_MIN_PRC_PORT="many"),
        "p1",
        f"{COMMON}.MC_MIN_PRC_PORT",
        "many",
        ("MC_MIN_PRC_PORT", "port"),
    ),
    Quiet(
        "kv-port-reserve",
        "where the transfer engine was",
        base(p1={"pd_kv_port": 16000, "pd_engine_env_extra": {"MC_MIN_RPC_PORT": 40000, "MC_MAX_RPC_PORT": 42000}}),
    ),
]
