# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Clusters with a KV pool, with the real mooncake_master of Mooncake's NPU wheel."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import typing as t
import urllib.request

import yaml

from .conftest import PROJECT, Rehearsal, complete, wait_for

Make = t.Callable[..., Rehearsal]
UNIT = "pd-pd-kv-pool"


def small(folder: pathlib.Path, pool_host: str = "k1", **variables: t.Any) -> pathlib.Path:
    """One prefill and one decode rank, and a host of its own for the pool."""
    inventory = folder / "hosts.yml"
    sizes = {"pd_dp_size": 1, "pd_tp_size": 2}
    content = {
        "all": {
            "vars": {
                "pd_hardware": "a3",
                "pd_model_path": "/models/m",
                "pd_served_model_name": "m",
                "pd_kv_pool": {"backend": "mooncake", "master": {"metrics_port": 50189}},
                **variables,
            },
            "children": {
                "prefill": {"hosts": {"p1": {"ansible_host": "192.0.2.1", **sizes}}},
                "decode": {"hosts": {"d1": {"ansible_host": "192.0.2.2", **sizes}}},
                "proxy": {"hosts": {"p1": None}},
                "kv_pool": {"hosts": {pool_host: {} if pool_host in ("p1", "d1") else {"ansible_host": "192.0.2.3"}}},
            },
        }
    }
    inventory.write_text(yaml.safe_dump(content), encoding="utf-8")
    return inventory


def order(cluster: Rehearsal, units: list[tuple[str, str]]) -> list[float]:
    return [cluster.unit_state(host, unit)["started_at"] for host, unit in units]


def test_a_pool_from_start_to_stop(rehearse: Make, tmp_path: pathlib.Path) -> None:
    cluster = rehearse(small(tmp_path))
    pool = cluster.plan()["kv_pool"]

    first = cluster.run("site.yml")
    assert first.rc == 0, first.stdout
    assert f"KV pool   mooncake, {pool['address']} (on k1)" in first.stdout
    master, *engines = order(cluster, [("k1", UNIT), ("p1", "pd-pd-prefill-p1"), ("d1", "pd-pd-decode")])
    assert master < min(engines), "the master is up before any engine; prefill and decode start side by side"
    assert complete(proxy_of(cluster), "m")["choices"][0]["text"]

    (pid,) = cluster.pids("k1", UNIT)
    assert os.readlink(f"/proc/{pid}/exe").endswith("/mooncake/mooncake_master")
    host = pool["address"].split(":")[0]
    with socket.create_connection((host, 50088), 5):
        pass
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    metrics = opener.open(f"http://{host}:50189/metrics", timeout=5).read().decode()
    assert "master_" in metrics, "the page of the real one"

    again = cluster.run("site.yml")
    assert again.rc == 0 and again.changed() == {}
    assert again.on_hosts()["k1"].count("Look at what runs") == 1
    assert "Wait until the pool's master takes connections" not in again.on_hosts()["k1"], "it was seen to"
    assert {task: hosts for task, hosts in again.skipped().items() if len(hosts) > 1} == {}
    assert cluster.pids("k1", UNIT) == [pid]

    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists(), 10)
    status = cluster.run("status.yml")
    assert status.rc != 0 and "kv pool on k1 has ended" in status.messages()
    engines = cluster.pids("p1", "pd-pd-prefill-p1") + cluster.pids("d1", "pd-pd-decode")
    repaired = cluster.run("site.yml")
    assert repaired.rc == 0 and repaired.changed() == {"k1": 1}
    assert cluster.pids("p1", "pd-pd-prefill-p1") + cluster.pids("d1", "pd-pd-decode") == engines
    assert cluster.run("status.yml").rc == 0

    stopped = cluster.run("stop.yml")
    assert stopped.rc == 0, stopped.stdout
    assert cluster.processes() == []


def proxy_of(cluster: Rehearsal) -> str:
    proxy = cluster.plan()["proxy"]
    return f"http://{proxy['address']}:{proxy['port']}"


def test_engines_are_not_stopped_while_the_master_is_down(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """Nothing starts a master outside --limit, so preflight looks whether it is there before engines are stopped."""
    cluster = rehearse(small(tmp_path))
    address = cluster.plan()["kv_pool"]["address"]
    assert cluster.run("site.yml").rc == 0
    (master,) = cluster.pids("k1", UNIT)
    engines = cluster.pids("p1", "pd-pd-prefill-p1")
    os.kill(master, signal.SIGKILL)
    assert wait_for(lambda: not pathlib.Path(f"/proc/{master}").exists(), 10)

    changed = {"pd_engine_args_common": {"max-num-seqs": 7}}
    refused = cluster.run("site.yml", limit="p1,d1", **changed)
    assert refused.rc != 0
    assert f"p1 does not reach the KV pool's master at {address} (k1; refused)" in refused.stdout
    assert cluster.pids("p1", "pd-pd-prefill-p1") == engines, "the engines serve as they did"

    # Without the gate an engine itself says what it lacks.
    run = cluster.run("site.yml", limit="p1,d1", preflight_gate="off", **changed)
    assert run.rc != 0
    assert "Initialize mooncake failed" in run.messages() and address in run.messages()
    assert "Traceback" not in run.stdout

    # What crashed before is stopped as well when a stop has ended it.
    assert cluster.run("status.yml").rc != 0
    assert cluster.run("stop.yml").rc == 0
    status = cluster.run("status.yml")
    assert status.rc == 0 and "Cluster pd is stopped" in status.stdout, status.stdout


def test_a_stranger_on_the_masters_port_is_not_the_master(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """Without preflight nobody else looks who it is; what takes connections would pass."""
    cluster = rehearse(small(tmp_path), preflight_gate="off")
    host, port = cluster.plan()["kv_pool"]["address"].split(":")
    with socket.create_server((host, int(port))):
        run = cluster.run("site.yml")
    assert run.rc != 0
    assert "KV pool's master on k1 does not serve" in run.messages(), run.messages()
    assert [line for line in cluster.processes() if "vllm_sim" in line] == []


def test_a_master_that_cannot_start_stops_the_run_before_any_engine(rehearse: Make, tmp_path: pathlib.Path) -> None:
    pool = {"backend": "mooncake", "master": {"args": {"no_such_flag": 1}}}
    cluster = rehearse(small(tmp_path, "p1", pd_kv_pool=pool), kv_pool_ready_timeout=20)
    run = cluster.run("site.yml")
    assert run.rc != 0
    assert "no_such_flag" in run.messages(), run.messages()
    assert "p1" in run.messages()
    engines = [line for line in cluster.processes() if "vllm_sim" in line]
    assert engines == []


def test_check_mode_of_a_fresh_cluster_changes_nothing(rehearse: Make, tmp_path: pathlib.Path) -> None:
    cluster = rehearse(small(tmp_path))
    run = cluster.run("site.yml", cmdline="--check")
    assert run.rc == 0, run.stdout
    assert not cluster.state.exists()


def test_memcache(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """Its MetaService is simulated: there is no package of it to be had here."""
    cluster = rehearse(small(tmp_path, "d1", pd_kv_pool={"backend": "memcache"}))
    run = cluster.run("site.yml")
    assert run.rc == 0, run.stdout
    assert complete(proxy_of(cluster), "m")["choices"][0]["text"]
    assert cluster.run("stop.yml").rc == 0


def test_the_shipped_inventory(rehearse: Make) -> None:
    cluster = rehearse(PROJECT / "inventories" / "1p1d-kv-pool")
    run = cluster.run("site.yml")
    assert run.rc == 0, run.stdout
    assert complete(proxy_of(cluster), "ds_r1")["choices"][0]["text"]
