# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about the proxy, the launcher and the container."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.blocks import LAYERWISE
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import base

CASES: list[Provoking | Quiet] = [
    *(
        Provoking(
            "container-network",
            network,
            base(all={"pd_container_network": network}),
            "all",
            "pd_container_network",
            network,
            (network, "HCCL", "host"),
        )
        for network in ("bridge", "none", "Host", "my-net")
    ),
    Provoking(
        "proxy-not-on-prefill",
        "on a decode host",
        base(groups={"proxy": {"hosts": ["d1"], "children": {}}}),
        "d1",
        "proxy",
        "d1",
        ("p1", "prefill"),
        severity="warning",
    ),
    Quiet(
        "proxy-not-on-prefill", "on the second prefill host", base(groups={"proxy": {"hosts": ["p2"], "children": {}}})
    ),
    Provoking(
        "proxy-workers",
        "the layerwise proxy",
        base(all={"pd_connector": LAYERWISE, "pd_proxy_workers": 2}),
        "p1",
        "pd_proxy_workers",
        2,
        ("decode_first", "--workers"),
    ),
    Provoking(
        "proxy-workers",
        "a proxy before 0.21",
        base(all={"pd_vllm_ascend_version": "v0.20.2rc1", "pd_proxy_workers": 4}),
        "p1",
        "pd_proxy_workers",
        4,
        ("v0.20.2rc1", "0.21"),
    ),
    Quiet("proxy-workers", "0.21", base(all={"pd_vllm_ascend_version": "v0.21.0rc1", "pd_proxy_workers": 4})),
    Provoking(
        "upstream-launcher",
        "internal decode",
        base(all={"pd_engine_launcher": "upstream"}, decode={"pd_dp_mode": "internal"}),
        "d1",
        "pd_engine_launcher",
        "upstream",
        ("d-a", "launch_online_dp.py"),
    ),
    Quiet("upstream-launcher", "external", base(all={"pd_engine_launcher": "upstream"})),
]
