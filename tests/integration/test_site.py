# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""site.yml and the other verbs on rehearsed clusters: real launcher, real modules, upstream's own proxies."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
import typing as t
import urllib.error

import pytest
import yaml

from .conftest import PROJECT, Rehearsal, complete, wait_for

INVENTORIES = PROJECT / "inventories"
Make = t.Callable[..., Rehearsal]


def door(rehearsal: Rehearsal) -> str:
    proxy = rehearsal.plan()["proxy"]
    return f"http://{proxy['address']}:{proxy['port']}"


def status_ok(cluster: Rehearsal) -> bool:
    return cluster.run("status.yml").rc == 0


def test_two_prefill_one_decode_from_start_to_stop(rehearse: Make) -> None:
    """36 engines: start, no-change run, proxy-only change, a killed rank, --limit, stop."""
    cluster = rehearse(INVENTORIES / "2p1d")

    first = cluster.run("site.yml")
    assert first.rc == 0, first.stdout
    verified = first.result_of("Send completions through the proxy and read their bodies")
    assert verified["roles"] == {"prefill": {"reached": 4, "total": 4}, "decode": {"reached": 32, "total": 32}}
    assert verified["local_prefill"] == "none"
    assert "curl" in first.stdout and "32/32 ready" in first.stdout
    answer = complete(door(cluster), "ds_r1")
    assert answer["choices"][0]["text"]

    again = cluster.run("site.yml")
    assert again.rc == 0 and again.changed() == {}
    # A condition that is decided once shows as skipped on the first host.
    assert {task: hosts for task, hosts in again.skipped().items() if len(hosts) > 1} == {}
    verified = cluster.run("site.yml", cmdline="--tags verify")
    assert verified.rc == 0 and "Verified" in verified.stdout
    done = {task for tasks in verified.on_hosts().values() for task in tasks}
    assert not {"Look at what runs", "Wait for the ranks"} & done

    before = {
        (h, u): cluster.pids(h, u)
        for h, u in (("p1", "pd-pd-prefill-p1"), ("d1", "pd-pd-decode"), ("d2", "pd-pd-decode"))
    }
    moved = cluster.run("site.yml", pd_proxy_port=2044)
    assert moved.rc == 0
    assert moved.changed() == {"p1": 2}, "the proxy is stopped and started, no engine"
    assert before == {key: cluster.pids(*key) for key in before}
    cluster.extra["pd_proxy_port"] = 2044

    victim = cluster.unit_state("d2", "pd-pd-decode")["processes"][3]
    os.kill(victim["pid"], signal.SIGKILL)
    assert wait_for(lambda: cluster.unit_state("d2", "pd-pd-decode")["phase"] == "ended", 5)
    end = cluster.unit_state("d2", "pd-pd-decode")["end"]
    assert end["code"] == 137 and "rank 19" in end["reason"]

    status = cluster.run("status.yml")
    assert status.rc != 0 and "rank 19" in status.messages() and "d1:7100-7115" in status.messages()

    repaired = cluster.run("site.yml")
    assert repaired.rc == 0
    assert set(repaired.changed()) == {"d1", "d2"}
    assert cluster.pids("p1", "pd-pd-prefill-p1") == before["p1", "pd-pd-prefill-p1"]
    assert set(cluster.pids("d1", "pd-pd-decode")).isdisjoint(before["d1", "pd-pd-decode"])

    limited = cluster.run("site.yml", limit="d2")
    assert limited.rc == 0 and limited.hosts() == {"d2"} and limited.changed() == {}
    assert limited.result_of("Wait for the ranks", "d2")["not_judged"] == ["ranks of decode on d1 (outside --limit)"]
    assert "completions through the proxy" in limited.stdout

    refused = cluster.run("site.yml", limit="d2", pd_engine_env_common={"VLLM_X": "1"})
    assert refused.rc != 0 and "outside --limit" in refused.messages() and refused.changed() == {}
    assert status_ok(cluster), "a share that serves is not stopped for a change that its group cannot follow"

    assert cluster.run("stop.yml").rc == 0
    assert cluster.processes() == []
    assert cluster.listeners({placement["node_ip"] for placement in cluster.plan()["placements"]}) == []
    assert cluster.run("stop.yml").changed() == {}
    assert "is stopped" in cluster.run("status.yml").stdout


def test_layerwise_by_one_variable(rehearse: Make) -> None:
    cluster = rehearse(INVENTORIES / "1p1d", pd_connector="MooncakeLayerwiseConnector")
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    assert "decode_first" in result.stdout
    assert complete(door(cluster), "ds_r1")["choices"][0]["text"]
    assert cluster.run("site.yml").changed() == {}


def test_prefill_and_decode_on_one_host(rehearse: Make) -> None:
    cluster = rehearse(INVENTORIES / "one_host")
    for times in range(2):
        decode = cluster.run("decode.yml")
        assert decode.rc == 0, decode.stdout
        assert len(decode.changed()) == 1 - times
        # It waits, also where nothing was to be started, and for its own role only.
        assert "decode: 4/4 ranks ready" in decode.stdout and "prefill" not in decode.stdout
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    assert complete(door(cluster), "qwen3")["choices"][0]["text"]


@pytest.mark.parametrize("name", ["4p1d-a2", "over_a_bastion"])
def test_other_shipped_inventories_serve(rehearse: Make, name: str) -> None:
    cluster = rehearse(INVENTORIES / name)
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    assert complete(door(cluster), cluster.plan()["cluster"]["served_model_name"])["choices"][0]["text"]


def test_every_shipped_inventory_is_rehearsed_by_some_test() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in pathlib.Path(__file__).parent.glob("test_*.py"))
    assert [path.name for path in INVENTORIES.iterdir() if f'"{path.name}"' not in text] == []


def test_staged_in_host_memory(rehearse: Make) -> None:
    """D2RH: one endpoint per side, and decode's control ports open next to nothing of kv_port's."""
    cluster = rehearse(INVENTORIES / "1p1d-850e-d2rh")
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    assert complete(door(cluster), "dsv4")["choices"][0]["text"]
    decode = next(placement for placement in cluster.plan()["placements"] if placement["role"] == "decode")
    ports = [int(listener.rpartition(":")[2]) for listener in cluster.listeners({decode["node_ip"]})]
    assert set(ports) >= {8200, *range(38100, 38104), *range(38200, 38204)}
    assert not {36020, 36021, 36022, 36023} & set(ports)
    assert cluster.run("site.yml").changed() == {}


def test_host_roce_finds_its_endpoint_files(rehearse: Make) -> None:
    """Each engine reads the files of its own chips, in the folder that it has inside the container."""
    cluster = rehearse(INVENTORIES / "1p1d-950-host-roce")
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    assert complete(door(cluster), "qwen3")["choices"][0]["text"]
    folder = cluster.state / "hosts/d1/opt/mooncake/endpoints"
    assert sorted(path.name for path in folder.iterdir()) == [f"ub_endpoint_npu_{chip}.json" for chip in range(8)]
    assert cluster.run("site.yml").changed() == {}
    assert cluster.run("stop.yml").rc == 0
    (folder / "ub_endpoint_npu_5.json").write_text("{}", encoding="utf-8")
    broken = cluster.run("site.yml")
    assert broken.rc != 0 and "ub_endpoint_npu_5.json" in broken.messages(), broken.stdout


def test_host_roce_without_an_address_is_refused_by_preflight(rehearse: Make, tmp_path: pathlib.Path) -> None:
    inventory = small_inventory(tmp_path)
    inventory["all"]["vars"] |= {"pd_hardware": "a5", "pd_fabric": "host_roce"}
    children = inventory["all"]["children"]
    children["prefill"]["hosts"]["p1"]["pd_roce_addresses"] = {"0": "198.51.100.1", "2": "198.51.100.2"}
    children["decode"]["hosts"]["d1"]["pd_roce_addresses"] = {"0": "198.51.100.3", "1": "198.51.100.4"}
    cluster = rehearse(write(tmp_path, inventory))
    result = cluster.run("preflight.yml")
    assert result.rc != 0
    for chip in (1, 3):
        assert f"/etc/hixlep/ub_endpoint_npu_{chip}.json does not exist" in result.stdout
    assert "pd_roce_addresses" in result.stdout and "2 errors" in result.messages()


@pytest.mark.parametrize("connector", ["MooncakeConnectorV1", "MooncakeHybridConnector"])
def test_internal_data_parallelism_with_a_headless_host(rehearse: Make, tmp_path: pathlib.Path, connector: str) -> None:
    inventory = small_inventory(tmp_path, decode_hosts=2)
    inventory["all"]["vars"] |= {"pd_dp_mode": "internal", "pd_connector": connector}
    inventory["all"]["vars"]["pd_engine_args_common"]["no-disable-hybrid-kv-cache-manager"] = True
    cluster = rehearse(write(tmp_path, inventory))
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    assert complete(door(cluster), "m")["choices"][0]["text"]
    assert cluster.run("site.yml").changed() == {}


def test_upstreams_internal_topology(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """DeepSeek-R1 with EPLB as upstream's nightly runs it: two prefill instances, decode over a head and a headless host."""
    speculative = {"num_speculative_tokens": 1, "method": "mtp"}
    options = {
        **{"enable-expert-parallel": True, "seed": 1024, "quantization": "ascend", "max-model-len": 36864},
        **{"trust-remote-code": True, "gpu-memory-utilization": 0.9, "speculative-config": speculative},
    }
    prefill = {"pd_dp_size": 2, "pd_tp_size": 8, "pd_engine_args": {"enforce-eager": True, "max-num-seqs": 4}}
    decode = {"pd_dp_size": 32, "pd_tp_size": 1, "pd_engine_args": {"max-num-seqs": 28}, "pd_dp_rpc_port": 13389}
    decode["pd_qos_priority"] = 2
    inventory: dict[str, t.Any] = {
        "all": {
            "vars": {
                **{"pd_hardware": "a3", "pd_dp_mode": "internal", "pd_api_port": 8080},
                **{"pd_model_path": "/models/DeepSeek-R1-0528-W8A8", "pd_served_model_name": "r1"},
                "pd_engine_args_common": options,
            },
            "children": {
                "prefill": {
                    "hosts": {"n0": {"ansible_host": "192.0.2.1"}, "n1": {"ansible_host": "192.0.2.2"}},
                    "vars": prefill,
                },
                "decode": {
                    "hosts": {"n2": {"ansible_host": "192.0.2.3"}, "n3": {"ansible_host": "192.0.2.4"}},
                    "vars": decode,
                },
                "proxy": {"hosts": {"n0": {}}},
            },
        }
    }
    cluster = rehearse(write(tmp_path, inventory))
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    verified = result.result_of("Send completions through the proxy and read their bodies")
    assert verified["roles"] == {"prefill": {"reached": 2, "total": 2}, "decode": {"reached": 1, "total": 1}}
    assert complete(door(cluster), "r1")["choices"][0]["text"]
    line = "Injected comm_resource_config.qos=2"
    logs = [cluster.state / f"hosts/{host}/var/log/pd_serving/pd/pd-pd-decode" for host in ("n2", "n3")]
    assert f"decode: {line}" in result.stdout
    assert all(line in log.read_text(encoding="utf-8") for folder in logs for log in folder.glob("rank*.log"))


def test_upstreams_own_launcher_starts_the_ranks(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """launch_online_dp.py from the published package, with the template that the product leaves on the host."""
    inventory = small_inventory(tmp_path, decode_hosts=2)
    inventory["all"]["vars"]["pd_engine_launcher"] = "upstream"
    cluster = rehearse(write(tmp_path, inventory))
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    assert complete(door(cluster), "m")["choices"][0]["text"]
    unit = cluster.unit_state("d2", "pd-pd-decode")
    command = pathlib.Path(f"/proc/{unit['processes'][0]['pid']}/cmdline").read_bytes().decode().replace("\0", " ")
    assert (
        "launch_online_dp.py --dp-size 4" in command and "--dp-rank-start 2" in command and "--dp-rpc-port" in command
    )
    inventory["all"]["vars"]["pd_engine_args_common"]["max-num-seqs"] = 9
    write(tmp_path, inventory)
    changed = cluster.run("site.yml")
    assert changed.rc == 0 and set(changed.changed()) == {"p1", "d1", "d2"}, "the template is part of the unit"
    assert cluster.run("stop.yml").rc == 0 and cluster.processes() == []


@pytest.mark.parametrize("connector", ["MooncakeConnectorV1", "MooncakeLayerwiseConnector"])
def test_engines_that_ask_for_a_key(rehearse: Make, tmp_path: pathlib.Path, connector: str) -> None:
    """The engines refuse whoever has no key, the proxy has it, and nothing that others can read tells it."""
    inventory = small_inventory(tmp_path)
    key = "a-key-of-the-engines"
    inventory["all"]["vars"] |= {"pd_connector": connector, "pd_engine_env_common": {"VLLM_API_KEY": key}}
    cluster = rehearse(write(tmp_path, inventory))
    result = cluster.run("site.yml", cmdline="--diff -vvv")
    assert result.rc == 0, result.stdout
    verified = result.result_of("Send completions through the proxy and read their bodies")
    assert all(role["reached"] == role["total"] for role in verified["roles"].values())
    plan = cluster.plan()
    engine = plan["placements"][0]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        complete(f"http://{engine['node_ip']}:{engine['processes'][0]['api_port']}", "m")
    assert key not in result.stdout + json.dumps(result.events)
    holding = [path for path in cluster.state.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert {path.name for path in holding} == {"launch.json", "run_dp_template.sh"}
    assert [path for path in holding if path.stat().st_mode & 0o077] == []


def test_a_proxy_without_the_engines_key_is_found_out(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """What verify is for: the proxy is up and the engines are healthy, yet nobody gets an answer."""
    inventory = small_inventory(tmp_path)
    inventory["all"]["vars"]["pd_engine_env_common"] = {"VLLM_API_KEY": "the-first-key"}
    cluster = rehearse(write(tmp_path, inventory))
    assert cluster.run("site.yml").rc == 0
    inventory["all"]["vars"]["pd_engine_env_common"] = {"VLLM_API_KEY": "another-key"}
    write(tmp_path, inventory)
    assert cluster.run("prefill.yml").rc == 0
    assert cluster.run("decode.yml").rc == 0
    verify = cluster.run("verify.yml")
    assert verify.rc != 0 and "request 0" in verify.messages()
    assert cluster.run("proxy.yml").rc == 0
    assert cluster.run("verify.yml").rc == 0


def test_a_rank_can_be_run_by_hand(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """The line in the comment of run_dp_template.sh, as an engineer would paste it."""
    inventory = small_inventory(tmp_path)
    inventory["all"]["children"]["prefill"]["vars"] = {"pd_dp_size": 1, "pd_tp_size": 2}
    cluster = rehearse(write(tmp_path, inventory))
    assert cluster.run("prefill.yml").rc == 0
    unit = cluster.state / "hosts/p1/opt/pd_serving/pd/pd-pd-prefill-p1"
    lines = (unit / "run_dp_template.sh").read_text(encoding="utf-8").splitlines()
    by_hand = next(line[1:].strip() for line in lines if line.startswith("#   bash run_dp_template.sh 0"))
    assert cluster.run("stop.yml").rc == 0
    root = str(cluster.state / "hosts/p1")
    environment = {"PATH": f"{root}/opt/pd_rehearsal/bin:/usr/bin:/bin", "PD_REHEARSAL_ROOT": root}
    with subprocess.Popen(["bash", "-c", f"exec {by_hand}"], cwd=unit, env=environment) as rank:
        try:
            address = cluster.plan()["placements"][0]["node_ip"]
            assert wait_for(lambda: _listens(address, 7100), 20)
        finally:
            rank.terminate()
    assert rank.returncode == 0


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


def test_a_proxy_that_cannot_start_is_told_beside_healthy_engines(rehearse: Make, tmp_path: pathlib.Path) -> None:
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path)))
    assert cluster.run("prefill.yml").rc == 0
    proxy = cluster.plan()["proxy"]
    with socket.create_server((proxy["address"], proxy["port"])):
        refused = cluster.run("proxy.yml", proxy_ready_timeout=20)
    # One that ends at once is seen by the start itself, one that takes its time by the wait for it.
    told = ("The proxy on p1 does not answer", "pd-pd-proxy did not come up")
    assert refused.rc != 0 and any(words in refused.messages() for words in told), refused.stdout
    assert "address already in use" in refused.messages()
    served = cluster.run("proxy.yml")
    assert served.rc == 0, served.stdout


def test_two_operators_at_once(rehearse: Make, tmp_path: pathlib.Path) -> None:
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path)))
    cluster.run("preflight.yml")
    lock = cluster.state / "hosts/d1/opt/pd_serving/pd/run.lock"
    lock.parent.mkdir(parents=True)
    other = {"owner": "ana@bastion (pid 1)", "run_id": "another controller", "since": time.time(), "verb": "site"}
    lock.write_text(json.dumps(other), encoding="utf-8")
    maintenance = tmp_path / "maintenance.yml"
    maintenance.write_text(yaml.safe_dump(STAND_ALONE, sort_keys=False), encoding="utf-8")
    for playbook in ("site.yml", "stop.yml", str(maintenance)):
        refused = cluster.run(playbook)
        assert refused.rc != 0 and refused.changed() == {}
        for expected in ("d1: another run", "ana@bastion", "lock_force"):
            assert expected in refused.messages()
        done = {task for tasks in refused.on_hosts().values() for task in tasks}
        assert done == {"Keep other operators' runs away", "Give back what was taken"}
        assert not (cluster.state / "hosts/p1/opt/pd_serving/pd/run.lock").exists(), "what was taken is given back"
    assert json.loads(lock.read_text(encoding="utf-8")) == other
    assert cluster.run("site.yml", cmdline="--check").rc == 0, "who changes nothing is warned only"
    forced = cluster.run("site.yml", lock_force=True)
    assert forced.rc == 0, forced.stdout
    assert not lock.exists()
    assert cluster.run(str(maintenance)).changed() == {}


def test_roles_of_a_playbook_of_ones_own(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """Their entry point main looks and starts, as the two halves do that our playbooks use."""
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path, decode_hosts=2)))
    playbook = tmp_path / "own.yml"
    playbook.write_text(yaml.safe_dump(STAND_ALONE, sort_keys=False), encoding="utf-8")
    first = cluster.run(str(playbook))
    assert first.rc == 0 and set(first.changed()) == {"p1", "d1", "d2"}, first.stdout
    assert complete(door(cluster), "m")["choices"][0]["text"]
    again = cluster.run(str(playbook))
    assert again.rc == 0 and again.changed() == {}


def test_a_host_that_cannot_be_locked_ends_the_run(rehearse: Make, tmp_path: pathlib.Path) -> None:
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path)))
    cluster.run("preflight.yml")
    (cluster.state / "hosts/d1/opt/pd_serving/pd/run.lock").mkdir(parents=True)
    for playbook in ("site.yml", "stop.yml"):
        result = cluster.run(playbook)
        assert result.rc != 0 and "run.lock" in result.messages()
        plays = [event["event_data"]["play"] for event in result.events if event["event"] == "playbook_on_play_start"]
        assert plays == ["Plan", "Lock"]


def test_check_mode_on_fresh_hosts_changes_nothing(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """ANS-05: read-only tasks run, changing ones do not."""
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path)))
    result = cluster.run("site.yml", cmdline="--check --diff")
    assert result.rc == 0, result.stdout
    assert not cluster.state.exists()
    assert cluster.processes() == []
    assert "launch.json" in result.stdout, "the diff shows what would be written"
    assert "nothing was judged" in result.stdout
    assert cluster.run("status.yml").rc == 0


def test_values_reach_the_process_byte_for_byte(rehearse: Make, tmp_path: pathlib.Path) -> None:
    """ANS-03: Quotes, $HOME, backslashes, non-ASCII and JSON's true/null, through Ansible, module, launcher and exec."""
    odd = {
        "chat-template": "it's \"quoted\" $HOME ${HOME} `id` \\n \\\\ 中文 {{ '{{' }} x }}",
        "revision": "null",
        "hf-overrides": {"a": True, "b": None, "c": "it's $HOME", "d": '"\\', "e": "中文"},
    }
    inventory = small_inventory(tmp_path)
    inventory["all"]["vars"]["pd_engine_args_common"].update(odd)
    inventory["all"]["vars"]["pd_engine_env_common"] = {
        "VLLM_ODD": "it's $HOME \\ 中文",
        "LD_LIBRARY_PATH": "/opt/x:$LD_LIBRARY_PATH",
    }
    cluster = rehearse(write(tmp_path, inventory))
    result = cluster.run("site.yml")
    assert result.rc == 0, result.stdout
    pid = cluster.pids("p1", "pd-pd-prefill-p1")[0]
    words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    wanted = odd["chat-template"].replace("{{ '{{' }}", "{{")
    assert words[words.index("--chat-template") + 1] == wanted
    assert words[words.index("--revision") + 1] == "null"
    assert json.loads(words[words.index("--hf-overrides") + 1]) == odd["hf-overrides"]
    assert '"a":true,"b":null' in words[words.index("--hf-overrides") + 1]
    environ = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    assert "VLLM_ODD=it's $HOME \\ 中文" in environ
    assert "LD_LIBRARY_PATH=/opt/x" in [entry.rstrip(":") for entry in environ]


def test_a_rank_that_dies_while_loading_fails_the_gate_at_once(rehearse: Make, tmp_path: pathlib.Path) -> None:
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path, decode_hosts=2)))
    cluster.run("preflight.yml")
    for host in ("p1", "d1", "d2"):
        path = cluster.state / "hosts" / host / "opt/pd_rehearsal/faults.json"
        path.write_text(json.dumps({"*": {"load_seconds": 60}}), encoding="utf-8")

    def kill_rank_3_while_it_loads() -> None:
        state = cluster.state / "hosts/d2/opt/pd_serving/pd/pd-pd-decode/state.json"
        assert wait_for(state.exists, 30)
        time.sleep(6)
        os.kill(cluster.pids("d2", "pd-pd-decode")[1], signal.SIGKILL)

    killer = threading.Thread(target=kill_rank_3_while_it_loads)
    killer.start()
    result = cluster.run("site.yml")
    killer.join()
    assert result.rc != 0
    assert result.seconds < 40, "the gate does not wait for the rest"
    assert "rank 3" in result.messages() and "d2" in result.messages()
    assert "Log " in result.messages(), "the tail of the log is shown"
    assert "PLAY [Proxy]" not in result.stdout


def test_preflight_names_everything_that_is_missing(rehearse: Make, tmp_path: pathlib.Path) -> None:
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path)))
    assert cluster.run("preflight.yml").rc == 0
    root = cluster.state / "hosts" / "d1"
    (root / "dev" / "davinci1").unlink()
    (root / "models" / "m" / "config.json").unlink()
    address = cluster.plan()["placements"][1]["node_ip"]
    with socket.create_server((address, 7101)):
        result = cluster.run("site.yml")
    assert result.rc != 0
    message = result.messages()
    for expected in ("d1", "davinci1", "/models/m/config.json", "7101", "pd_api_port", str(os.getpid())):
        assert expected in message, message
    assert result.changed() == {} and cluster.processes() == []


def test_a_running_cluster_passes_its_own_preflight_and_survives_a_refused_plan(
    rehearse: Make, tmp_path: pathlib.Path
) -> None:
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path)))
    assert cluster.run("site.yml").rc == 0
    before = cluster.pids("p1", "pd-pd-prefill-p1")
    assert cluster.run("preflight.yml").rc == 0
    refused = cluster.run("site.yml", pd_kv_release_timeout=5)
    assert refused.rc != 0 and "pd_kv_release_timeout" in refused.messages() and refused.changed() == {}
    assert cluster.pids("p1", "pd-pd-prefill-p1") == before
    assert complete(door(cluster), "m")["choices"][0]["text"]


def test_one_engine_option_of_a_role_restarts_that_role_only(rehearse: Make, tmp_path: pathlib.Path) -> None:
    inventory = small_inventory(tmp_path)
    cluster = rehearse(write(tmp_path, inventory))
    assert cluster.run("site.yml").rc == 0
    before = cluster.pids("p1", "pd-pd-prefill-p1"), cluster.pids("d1", "pd-pd-decode")
    inventory["all"]["children"]["decode"]["vars"]["pd_engine_args"] = {"max-num-seqs": 17}
    write(tmp_path, inventory)
    result = cluster.run("site.yml")
    assert result.rc == 0 and set(result.changed()) == {"d1"}
    assert cluster.pids("p1", "pd-pd-prefill-p1") == before[0]
    assert cluster.pids("d1", "pd-pd-decode") != before[1]


def test_several_faults_of_an_inventory_are_told_together(rehearse: Make, tmp_path: pathlib.Path) -> None:
    inventory = small_inventory(tmp_path)
    inventory["all"]["vars"] |= {"pd_kv_release_timeout": 5, "pd_conector": "x", "pd_model_path": "/path_to_weight/m"}
    inventory["all"]["children"]["prefill"]["hosts"]["p1"]["pd_kv_port"] = 20002
    cluster = rehearse(write(tmp_path, inventory))
    result = cluster.run("site.yml")
    assert result.rc != 0
    for expected in ("pd_kv_release_timeout", "pd_connector?", "/path_to_weight", "20002", "p1"):
        assert expected in result.messages()
    assert "Traceback" not in result.stdout
    assert not cluster.state.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a network namespace, which needs root")
def test_a_rehearsal_never_leaves_loopback(tmp_path: pathlib.Path) -> None:
    """SSH, sudo and a bastion in the inventory; no route anywhere: any attempt to leave would fail. Stopping is done from
    outside, whatever happened, and is not judged for that."""
    inventory = small_inventory(tmp_path)
    inventory["all"]["vars"] |= {
        "ansible_connection": "ssh",
        "ansible_user": "ops",
        "ansible_become": True,
        "ansible_become_method": "sudo",
        "ansible_become_password": "secret",
        "ansible_python_interpreter": "/opt/none/python3",
        "ansible_ssh_common_args": "-o ProxyJump=ops@198.51.100.7",
    }
    path = write(tmp_path, inventory)
    playbook = pathlib.Path(sys.executable).with_name("ansible-playbook")
    state = tmp_path / "state"

    def run(name: str, *isolated: str) -> subprocess.CompletedProcess[str]:
        command = [str(playbook), name, "-i", str(path), "-e", "pd_rehearsal=true", "-e", f"pd_rehearsal_dir={state}"]
        return subprocess.run(
            [*isolated, *command],
            cwd=PROJECT,
            env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg")},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    isolated = ("unshare", "--net", "sh", "-c", 'ip link set lo up && test -z "$(ip route)" && exec "$@"', "sh")
    try:
        site = run("site.yml", *isolated)
        assert site.returncode == 0, site.stdout + site.stderr
        # Another namespace sees the processes but not their sockets.
        assert "decode" in run("status.yml", *isolated).stdout
    finally:
        stop = run("stop.yml")
    assert stop.returncode == 0, stop.stdout + stop.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ansible_connection", "ssh"),
        ("ansible_become", True),
        ("pd_runtime", "docker"),
        ("pd_node_ip", "192.0.2.1"),
        ("ansible_ssh_common_args", "-o ProxyJump=x"),
    ],
)
def test_a_rehearsal_refuses_a_command_line_that_would_overrule_it(
    rehearse: Make, tmp_path: pathlib.Path, name: str, value: t.Any
) -> None:
    cluster = rehearse(write(tmp_path, small_inventory(tmp_path)))
    result = cluster.run("site.yml", **{name: value})
    assert result.rc != 0 and name in result.messages() and "stays on this machine" in result.messages()
    assert not cluster.state.exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("pd_rehearsal=maybe", "pd_rehearsal must be true or false; it is 'maybe'"),
        ("pd_rehersal=true", "did you mean pd_rehearsal?"),
        ("pd_query=no_such_key", "pd_query 'no_such_key' matches nothing in this plan"),
        ("pd_query=[", "pd_query '[' is no JMESPath expression"),
        ("pd_query=", "pd_query is empty"),
        ("plan_out=", "plan_out is empty"),
        ("plan_out=/proc/none/plan.json", "msg: 'cannot write /proc/none/plan.json: No such file or directory'\n"),
    ],
)
def test_a_plan_that_cannot_be_had_as_asked_says_so(tmp_path: pathlib.Path, given: str, message: str) -> None:
    run = play(tmp_path, "plan.yml", write(tmp_path, small_inventory(tmp_path)), "-e", given)
    assert (run.returncode == 0) is ("matches nothing" in message)
    assert message in run.stdout
    assert "Traceback" not in run.stdout


@pytest.mark.parametrize(
    ("content", "playbook"),
    [
        ("", "site.yml"),
        ("all: {children: {prefill: , decode: , proxy: }}", "plan.yml"),
        ("all: {hosts: {x: }}", "plan.yml"),
    ],
)
def test_an_inventory_without_hosts_is_no_success(tmp_path: pathlib.Path, content: str, playbook: str) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(content, encoding="utf-8")
    run = play(tmp_path, playbook, inventory)
    assert run.returncode != 0
    assert "the inventory has no hosts in the groups prefill and decode" in run.stdout
    assert "Traceback" not in run.stdout


@pytest.mark.parametrize(
    ("playbook", "limit", "wanted"),
    [
        ("verify.yml", "d1", "hosts of proxy only. Fix: put p1"),
        ("prefill.yml", "d1", "hosts of prefill only. Fix: put p1"),
        ("stop.yml", "spare", "prefill and decode and proxy only"),
    ],
)
def test_a_limit_that_leaves_nothing_to_do_is_no_success(
    tmp_path: pathlib.Path, playbook: str, limit: str, wanted: str
) -> None:
    given = small_inventory(tmp_path)
    given["all"]["hosts"] = {"spare": {"ansible_host": "192.0.2.9"}}
    run = play(tmp_path, playbook, write(tmp_path, given), "--limit", limit)
    assert run.returncode != 0
    assert f"nothing was done: this run is for {limit} (--limit)" in run.stdout
    assert wanted in " ".join(run.stdout.split())


def play(folder: pathlib.Path, playbook: str, inventory: pathlib.Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A run that no host is needed for: it ends at the plan."""
    return subprocess.run(
        [f"{sys.prefix}/bin/ansible-playbook", playbook, "-i", str(inventory), *words],
        cwd=PROJECT,
        env={**os.environ, "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"), "ANSIBLE_HOME": str(folder / "ansible")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


# Small clusters -----------------------------------------------------------------------------------------------------

STAND_ALONE = [
    {"import_playbook": "ascend.pd_serving.plan"},
    {
        "hosts": "prefill:decode",
        "gather_facts": False,
        "any_errors_fatal": True,
        "roles": [{"role": "ascend.pd_serving.lock", "lock_verb": "maintenance"}, "ascend.pd_serving.engine"],
        "post_tasks": [{"import_role": {"name": "ascend.pd_serving.engine", "tasks_from": "gate"}}],
    },
    {"hosts": "proxy", "gather_facts": False, "roles": ["ascend.pd_serving.proxy"]},
    {
        "hosts": "prefill:decode",
        "gather_facts": False,
        "tasks": [{"import_role": {"name": "ascend.pd_serving.lock", "tasks_from": "release"}}],
    },
]


def small_inventory(folder: pathlib.Path, decode_hosts: int = 1) -> dict[str, t.Any]:
    """One prefill instance (2 x tp 2) and one decode instance (2 ranks a host) on a2 hosts."""
    return {
        "all": {
            "vars": {
                "pd_hardware": "a2",
                "pd_model_path": "/models/m",
                "pd_served_model_name": "m",
                "pd_engine_args_common": {"max-model-len": 4096, "enable-expert-parallel": True},
            },
            "children": {
                "prefill": {"hosts": {"p1": {"ansible_host": "192.0.2.1"}}, "vars": {"pd_dp_size": 2, "pd_tp_size": 2}},
                "decode": {
                    "hosts": {f"d{i + 1}": {"ansible_host": f"192.0.2.{i + 2}"} for i in range(decode_hosts)},
                    "vars": {"pd_dp_size": 2 * decode_hosts, "pd_tp_size": 1},
                },
                "proxy": {"hosts": {"p1": {}}},
            },
        }
    }


def write(folder: pathlib.Path, inventory: dict[str, t.Any]) -> pathlib.Path:
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump(inventory, allow_unicode=True, sort_keys=False), encoding="utf-8")
    return path
