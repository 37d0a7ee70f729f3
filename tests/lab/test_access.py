# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Ways to the hosts, and two clusters on one set of them."""

from __future__ import annotations

import typing as t

from .conftest import COMMON, PROJECT, Cluster, Deployed, Lab, inventory

OVER_A_BASTION = PROJECT / "inventories" / "over_a_bastion"
EVERYONE = ("p1", "d1", "d2")
SECOND = {
    "pd_cluster_name": "pdb",
    "pd_proxy_port": 2999,
    "pd_engine_env_common": {"HCCL_IF_BASE_PORT": "61000"},
    "pd_instances": {
        "prefill-p1": {"pd_api_port": 8100, "pd_kv_port": 37000, "pd_dp_rpc_port": 13321},
        "decode": {"pd_api_port": 8100, "pd_kv_port": 37200, "pd_dp_rpc_port": 13321},
    },
}


def test_over_a_bastion_with_a_sudo_password(lab: Lab, deployed: Deployed, tmp_path: t.Any, monkeypatch: t.Any) -> None:
    """The example inventory, over it the lab's addresses and what the deployed cluster has: another way, no change."""
    monkeypatch.setenv("PD_BECOME_PASSWORD", "lab")
    values = {
        **COMMON,
        "ansible_python_interpreter": "/usr/bin/python3",
        "bastion": f"ops@{lab.address['b1']}",
        "ansible_user": "opspw",
    }
    base = inventory(lab)["all"]["children"]
    hosts = {
        name: {
            **values,
            **base[role]["vars"],
            **base[role]["hosts"][name],
            "pd_engine_args": {},
            "pd_engine_env": {},
            "pd_engine_env_common": {},
        }
        for role in ("prefill", "decode")
        for name in base[role]["hosts"]
    }
    cluster = Cluster(lab, tmp_path, {"all": {"hosts": hosts}}, OVER_A_BASTION)
    block = f"INPUT -p tcp --dport 22 -s {lab.controller} -j REJECT --reject-with tcp-reset"
    lab.forget_connections()
    for host in EVERYONE:
        lab.sh(host, f"iptables -I {block}")
    try:
        direct = lab.ssh("ops", "d1", "true")
        over = cluster.run("site.yml")
    finally:
        for host in EVERYONE:
            lab.sh(host, f"iptables -D {block}")
    assert "refused" in direct, "there is no other way"
    assert over.rc == 0, over.stdout
    assert over.changed() == {}


def test_two_clusters_on_one_set_of_hosts(lab: Lab, deployed: Deployed, tmp_path: t.Any) -> None:
    other = f"http://{lab.address['p1']}:2999"
    before = lab.ids(*EVERYONE)

    # A name of its own is not enough; the refusals lead to everything that is.
    careless = Cluster(lab, tmp_path / "careless", inventory(lab, pd_cluster_name="pdb")).run("site.yml")
    assert careless.rc != 0 and careless.changed() == {}
    refused = careless.refusals()
    for host in EVERYONE:
        assert "of cluster pd" in refused[host] and "pd_chips" in refused[host] and "pd_api_port" in refused[host]
    assert "pd_proxy_port" in refused["p1"] and "pd_kv_port" in refused["p1"] and "pd_dp_rpc_port" in refused["d1"]

    second = Cluster(lab, tmp_path / "b", inventory(lab, chips=(8, 9), **SECOND))
    second.site()
    assert lab.complete(other) and lab.complete(deployed.url)
    assert deployed.cluster.run("preflight.yml").rc == 0, "neither is in the other's way"
    assert second.run("stop.yml").rc == 0
    assert lab.ids(*EVERYONE) == before
    assert lab.complete(deployed.url) and not lab.completes(other)
