# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Data-parallel groups of simulators: they form together, load together and die together."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

SIZES = ((2, 1), (2, 1))


def test_nobody_serves_before_all_ranks_have_joined(lab: Any) -> None:
    host = lab.host()
    head, other = lab.instance([host], "decode", SIZES)
    # The same group once more, on another host, with only one of its two ranks there.
    alone = lab.host()
    lonely = alone.engine(
        *("--data-parallel-size", "2", "--data-parallel-rank", "1", "--data-parallel-address", alone.address),
        *("--kv-transfer-config", decode_json()),
        SIM_DP_TIMEOUT="1",
    )
    head.wait_ready()
    other.wait_ready()
    with pytest.raises(ConnectionRefusedError):
        lonely.request("/health")
    assert lonely.wait_exit() == 1
    assert f"TimeoutError: no data-parallel head at {alone.address}:29550 within 1 seconds" in lonely.log


def test_the_head_names_the_ranks_that_did_not_come(lab: Any) -> None:
    host = lab.host()
    head = host.engine(*group_options(host, 4, 0), "--kv-transfer-config", decode_json(dp=4), SIM_DP_TIMEOUT="1")
    second = host.engine(
        *group_options(host, 4, 2),
        "--kv-transfer-config",
        decode_json(dp=4),
        port=7102,
        devices="2",
        SIM_DP_TIMEOUT="9",
    )
    assert head.wait_exit() == 1
    assert "TimeoutError: ranks 1, 3 did not join the data-parallel group" in head.log
    assert second.wait_exit() == 1
    assert "rank 0 went away" in second.log


def test_a_group_that_lost_a_rank_is_dead_and_takes_no_newcomer(lab: Any) -> None:
    host = lab.host()
    ranks = lab.instance([host], "decode", ((2, 1), (4, 1)))
    for engine in ranks:
        assert engine.wait_ready().request("/health").status == 200

    ranks[2].popen.kill()
    ranks[2].popen.wait()
    survivors = [ranks[0], ranks[1], ranks[3]]
    for engine in survivors:
        engine.wait_for("rank 2 of the data-parallel group")

    for engine in survivors:
        assert engine.popen.poll() is None, "its API process stays"
        assert engine.request("/health").status == 503
        reply = engine.request("/v1/completions", {"prompt": "still there?"})
        assert reply.status == 500
        assert "EngineDeadError" in reply.json["error"]["message"]

    late = host.engine(*group_options(host, 4, 2), "--kv-transfer-config", decode_json(dp=4), port=7102, devices="2")
    assert late.wait_exit() == 1
    assert "refuses rank 2: the group has lost rank 2; restart all of its ranks together" in late.log


def test_a_formed_group_refuses_a_late_rank(lab: Any) -> None:
    host = lab.host()
    for engine in lab.instance([host], "decode", SIZES):
        engine.wait_ready()
    late = host.engine(*group_options(host, 2, 1), "--kv-transfer-config", decode_json(), port=7105, devices="3")
    assert late.wait_exit() == 1
    assert "the group of 2 ranks is already formed; a rank cannot join it late" in late.log


def test_ranks_with_other_sizes_are_refused(lab: Any) -> None:
    host = lab.host()
    head = host.engine(*group_options(host, 2, 0), "--kv-transfer-config", decode_json(), SIM_DP_TIMEOUT="20")
    head.wait_for("vLLM API server version")
    stranger = host.engine(
        *group_options(host, 3, 1), "--kv-transfer-config", decode_json(dp=3), port=7101, devices="1"
    )
    assert stranger.wait_exit() == 1
    assert "Configuration mismatch detected" in stranger.log
    assert "data_parallel_size 3 instead of 2" in stranger.log
    assert head.popen.poll() is None


def test_a_rank_that_dies_while_loading_ends_the_others(lab: Any) -> None:
    host = lab.host()
    host.faults({"rank1": {"fail_start": "torch.OutOfMemoryError: NPU out of memory"}, "*": {"load_seconds": 0.5}})
    ranks = lab.instance([host], "decode", ((2, 1), (3, 1)))
    assert [engine.wait_exit() for engine in ranks] == [1, 1, 1]
    assert ranks[1].log.rstrip().endswith("torch.OutOfMemoryError: NPU out of memory")
    for engine in (ranks[0], ranks[2]):
        assert "rank 1 is lost while loading" in engine.log


def test_a_slow_rank_delays_the_whole_group(lab: Any) -> None:
    host = lab.host()
    host.faults({"rank1": {"load_seconds": 0.8}})
    started = time.monotonic()
    quick, slow = lab.instance([host], "decode", SIZES)
    quick.wait_for("100% Completed")
    with pytest.raises(ConnectionRefusedError):
        quick.request("/health")
    quick.wait_ready()
    assert time.monotonic() - started > 0.8
    assert "40% Completed" in slow.wait_ready().log


def test_internal_load_balancing_over_two_hosts(lab: Any) -> None:
    """One API server per instance; the ranks of the headless hosts do their share through their own ports."""
    sizes = ((4, 2), (2, 1))
    prefill_hosts = [lab.host(), lab.host()]
    decode_hosts = [lab.host(), lab.host()]
    prefill = lab.instance(prefill_hosts, "prefill", sizes, internal=True)
    decode = lab.instance(decode_hosts, "decode", sizes, internal=True, kv_port=36200)
    for engine in prefill + decode:
        engine.wait_ready()
    assert f"tcp://{prefill_hosts[1].address}:36007" in prefill[1].log

    ports = set()
    for number in range(4):
        body = {"prompt": f"prompt {number}", "max_tokens": 6}
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        first = prefill[0].request("/v1/completions", {**body, "max_tokens": 1, "kv_transfer_params": params}).json
        handed = first["kv_transfer_params"]
        ports.add((handed["remote_host"], handed["remote_port"]))
        reply = decode[0].request("/v1/completions", {**body, "kv_transfer_params": handed})
        assert reply.status == 200
        assert reply.text.startswith(first["choices"][0]["text"])
    assert ports == {
        *((prefill_hosts[0].address, port) for port in (36000, 36002)),
        *((prefill_hosts[1].address, port) for port in (36004, 36006)),
    }
    assert [decode[0].metric("sim:decodes_total", engine=rank) for rank in "01"] == [2, 2]
    assert prefill[0].metric("sim:kv_held") == 0

    decode[1].popen.kill()
    decode[0].wait_for("rank 1 of the data-parallel group")
    assert decode[0].request("/health").status == 503
    prefill[0].popen.kill()
    prefill[1].wait_for("rank 0 of the data-parallel group")
    assert prefill[1].popen.poll() is None


@pytest.mark.parametrize("connector", ["MooncakeD2RHConnectorV1", "MooncakeHybridConnector"])
def test_internal_load_balancing_with_other_connectors(lab: Any, connector: str) -> None:
    """One endpoint per side behind upstream's proxy; D2RH decode is told over its own control ports."""
    sizes = ((4, 1), (4, 1))
    options = ["--no-disable-hybrid-kv-cache-manager"]
    prefill_host, decode_host = lab.host(), lab.host()
    (prefill,) = lab.instance(
        [prefill_host], "prefill", sizes, *options, connector=connector, kv_port=36010, internal=True
    )
    (decode,) = lab.instance(
        [decode_host], "decode", sizes, *options, connector=connector, kv_port=36020, internal=True
    )
    prefill.wait_ready()
    decode.wait_ready()
    proxy = lab.host().proxy("load_balance_proxy_server_example.py", [prefill], [decode], port=8000)
    proxy.wait_for("Application startup complete")
    for number in range(4):
        body = {"model": "demo", "prompt": f"prompt {number}", "max_tokens": 6}
        reply = proxy.request("/v1/completions", body)
        assert reply.status == 200
        assert len(reply.text.split()) == 6
    assert decode.metric("sim:decodes_total") == 4
    assert decode.metric("sim:local_prefills_total") == 0
    assert prefill.metric("sim:kv_held") == 0
    assert sorted(ports_in(prefill.log, "KVCacheSendingThread")) == [36010, 36011, 36012, 36013]
    staged = connector == "MooncakeD2RHConnectorV1"
    assert sorted(ports_in(decode.log, "START_PULL")) == ([38100, 38101, 38102, 38103] if staged else [])
    assert sorted(ports_in(decode.log, "scheduler ready")) == ([38200, 38201, 38202, 38203] if staged else [])
    assert ("Injected comm_resource_config.qos=1" in decode.log) is not staged


def test_a_taken_control_port_stops_d2rh_decode(lab: Any) -> None:
    host = lab.host()
    with socket.create_server((host.address, 38202)):
        (decode,) = lab.instance([host], "decode", ((4, 1), (4, 1)), connector="MooncakeD2RHConnectorV1", internal=True)
        assert decode.wait_exit() == 1
    assert f"zmq.error.ZMQError: Address already in use (addr='tcp://{host.address}:38202')" in decode.log


def ports_in(log: str, words: str) -> list[int]:
    """Ports of the listeners that the log tells of with these words."""
    return [int(line.rpartition(":")[2]) for line in log.splitlines() if words in line and "tcp://" in line]


def group_options(host: Any, dp: int, rank: int) -> list[str]:
    place = ["--data-parallel-address", host.address, "--data-parallel-rpc-port", "12321"]
    return ["--data-parallel-size", str(dp), "--data-parallel-rank", str(rank), *place]


def decode_json(dp: int = 2) -> str:
    sizes = f'{{"prefill": {{"dp_size": 2, "tp_size": 1}}, "decode": {{"dp_size": {dp}, "tp_size": 1}}}}'
    return (
        '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_consumer", "kv_port": "36000", '
        f'"kv_connector_extra_config": {sizes}}}'
    )
