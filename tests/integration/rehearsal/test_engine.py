# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""One simulated engine, or one of each side without a proxy: ports, chips, API, faults, and what a transfer checks."""

from __future__ import annotations

import concurrent.futures
import socket
import time
from typing import Any

import pytest

SIZES = ((1, 2), (1, 1))
HAND_OVER = {"do_remote_decode": True, "do_remote_prefill": False}


def pair(lab: Any, prefill_env: dict[str, str] | None = None, **decode: Any) -> tuple[Any, Any]:
    """A prefill and a decode engine, ready."""
    prefill = lab.instance([lab.host()], "prefill", SIZES, **(prefill_env or {}))[0]
    return prefill.wait_ready(), lab.instance([lab.host()], "decode", SIZES, **decode)[0].wait_ready()


def prefill_for_remote(engine: Any, prompt: str) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 1, "kv_transfer_params": HAND_OVER}
    params: dict[str, Any] = engine.request("/v1/completions", body).json["kv_transfer_params"]
    return params


def test_a_transfer_is_checked_from_end_to_end(lab: Any) -> None:
    prefill, decode = pair(lab)
    params = prefill_for_remote(prefill, "one prompt")
    assert prefill.metric("sim:kv_held") == 1
    assert prefill.metric("vllm:kv_cache_usage_perc") > 0

    reply = decode.request("/v1/completions", {"prompt": "another prompt", "kv_transfer_params": params})
    assert reply.status == 500
    assert "sent the KV blocks of another prompt" in decode.log

    assert prefill.metric("sim:kv_held") == 0, "what was fetched is free, whatever decode thinks of it"
    reply = decode.request("/v1/completions", {"prompt": "one prompt", "kv_transfer_params": params})
    assert "no KV blocks of request" in reply.json["error"]["message"]

    # The port of the first worker is right, that of the second belongs to nobody.
    params = prefill_for_remote(prefill, "one prompt")
    shifted = {**params, "remote_port": params["remote_port"] + 1}
    reply = decode.request("/v1/completions", {"prompt": "one prompt", "kv_transfer_params": shifted})
    assert reply.status == 500
    assert f"{prefill.address}:36002" in decode.log

    # An address from a real cluster must not be asked.
    outside = {**params, "remote_host": "10.0.0.1"}
    reply = decode.request("/v1/completions", {"prompt": "one prompt", "kv_transfer_params": outside})
    assert "10.0.0.1:36000: outside the rehearsal" in reply.json["error"]["message"]

    # What decode cannot use at all, it computes itself.
    reply = decode.request("/v1/completions", {"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True}})
    assert reply.status == 200
    assert decode.metric("sim:local_prefills_total") == 1


def test_engines_refuse_the_work_of_the_other_side(lab: Any) -> None:
    prefill, decode = pair(lab)
    params = prefill_for_remote(prefill, "prompt")
    assert prefill.request("/v1/completions", {"prompt": "prompt", "kv_transfer_params": params}).status == 500
    assert decode.request("/v1/completions", {"prompt": "prompt", "kv_transfer_params": HAND_OVER}).status == 500


def test_failed_blocks_are_recomputed_when_the_policy_says_so(lab: Any) -> None:
    prefill, decode = pair(lab, kv={"kv_load_failure_policy": "recompute"})
    params = {**prefill_for_remote(prefill, "prompt"), "remote_port": 39999}
    assert decode.request("/v1/completions", {"prompt": "prompt", "kv_transfer_params": params}).status == 200
    assert (decode.metric("sim:kv_failed_total"), decode.metric("sim:local_prefills_total")) == (1, 1)


@pytest.mark.parametrize("variable", ["VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"])
def test_blocks_that_nobody_fetches_are_freed(lab: Any, variable: str) -> None:
    prefill, decode = pair(lab, {variable: "1"})
    params = prefill_for_remote(prefill, "prompt")
    assert prefill.metric("sim:kv_held") == 1
    prefill.wait_for("Force freed expired request")
    assert prefill.metric("sim:kv_held") == 0
    assert decode.request("/v1/completions", {"prompt": "prompt", "kv_transfer_params": params}).status == 500


def test_hybrid_engines_hand_over_too(lab: Any) -> None:
    hybrid = {"connector": "MooncakeHybridConnector"}
    flag = "--no-disable-hybrid-kv-cache-manager"
    prefill = lab.instance([lab.host()], "prefill", SIZES, flag, **hybrid)[0].wait_ready()
    decode = lab.instance([lab.host()], "decode", SIZES, flag, **hybrid)[0].wait_ready()
    params = prefill_for_remote(prefill, "prompt")
    reply = decode.request("/v1/completions", {"prompt": "prompt", "kv_transfer_params": params})
    assert reply.status == 200
    assert decode.metric("sim:decodes_total") == 1


def test_requests_beyond_the_batch_wait(lab: Any) -> None:
    options = ("--max-num-seqs", "2")
    engine = lab.instance([lab.host()], "prefill", SIZES, *options, SIM_TOKEN_DELAY="0.05")[0].wait_ready()
    body = {"prompt": "slow", "max_tokens": 20, "ignore_eos": True}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(engine.request, "/v1/completions", body) for _ in range(3)]
        deadline = time.monotonic() + 0.9
        while engine.metric("vllm:num_requests_waiting") == 0:
            assert time.monotonic() < deadline, "all three run at once"
        assert engine.metric("vllm:num_requests_running") == 2
        assert all(answer.result().status == 200 for answer in answers)
    assert engine.metric("vllm:generation_tokens_total") == 60
    assert engine.metric("vllm:request_success_total", finished_reason="length") == 3


def test_api(lab: Any) -> None:
    options = ("--api-key", "secret", "--max-model-len", "1k")
    engine = lab.instance([lab.host()], "prefill", SIZES, *options)[0].wait_ready()
    key = {"Authorization": "Bearer secret"}
    assert engine.request("/health").status == 200
    assert engine.request("/version").json == {"version": "0.23.0"}
    assert engine.request("/v1/models").status == 401
    assert engine.request("/v1/models", headers={"Authorization": "Bearer other"}).status == 401
    card = engine.request("/v1/models", headers=key).json["data"][0]
    assert (card["id"], card["root"], card["max_model_len"]) == ("demo", "/models/m", 1000)
    assert engine.request("/nothing").status == 404
    assert engine.request("/v1/completions", headers=key).status == 405
    assert engine.request("/reset_prefix_cache", {}).status == 404, "needs VLLM_SERVER_DEV_MODE=1"
    for body, status in (
        ({"model": "other", "prompt": "x"}, 404),
        ({"model": "demo"}, 400),
        ({"prompt": "x", "max_tokens": 0}, 400),
        ({"prompt": "x", "max_tokens": "many"}, 400),
        ({"prompt": "x", "kv_transfer_params": []}, 400),
        ({"prompt": "x" * 5000}, 400),
        ({"prompt": "x", "n": 2}, 400),
        ("{", 400),
        ("[]", 400),
        ({"prompt": [1, 2, 3]}, 200),
        ({"prompt": ["one text"]}, 200),
    ):
        assert engine.request("/v1/completions", body, headers=key).status == status, body
    assert engine.request("/v1/chat/completions", {"messages": []}, headers=key).status == 400
    reply = engine.request("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, headers=key)
    assert reply.json["choices"][0]["finish_reason"] == "stop", "an answer without a limit ends by itself"
    with socket.create_connection((engine.address, 7100)) as sock:
        sock.sendall(b"nonsense\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 400")


def test_development_endpoints(lab: Any) -> None:
    engine = lab.instance([lab.host()], "prefill", SIZES, VLLM_SERVER_DEV_MODE="1")[0].wait_ready()
    assert engine.request("/reset_prefix_cache", {}).status == 200


def test_a_wildcard_stands_for_the_hosts_own_address(lab: Any) -> None:
    """All simulated hosts share one machine, where two real wildcards with one port would collide."""
    engines = [lab.instance([lab.host()], "prefill", SIZES, "--host", "0.0.0.0")[0] for _ in range(2)]
    for engine in engines:
        assert engine.wait_ready().request("/health").status == 200


def test_two_engines_cannot_share_a_chip(lab: Any) -> None:
    host = lab.host()
    first = lab.instance([host], "prefill", SIZES)[0].wait_ready()
    second = lab.instance([host], "decode", SIZES)[0]
    assert second.wait_exit() == 1
    assert "Free memory on device npu:0" in second.log
    assert "another process holds /dev/davinci0" in second.log
    first.popen.kill()
    first.wait_exit()
    assert lab.instance([host], "decode", SIZES)[0].wait_ready(), "a killed engine gives its chips back"


@pytest.mark.parametrize(
    ("port", "message"),
    [
        (7100, "OSError: [Errno 98] Address already in use: API port {address}:7100"),
        (12321, "zmq.error.ZMQError: Address already in use (addr='tcp://{address}:12321')"),
        (36001, "zmq.error.ZMQError: Address already in use (addr='tcp://{address}:36001')"),
    ],
)
def test_a_busy_port_stops_the_start(lab: Any, port: int, message: str) -> None:
    host = lab.host()
    with socket.create_server((host.address, port)):
        head = lab.instance([host], "prefill", ((2, 2), (1, 1)))[0]
        assert head.wait_exit() == 1
    assert message.format(address=host.address) in head.log


def test_faults(lab: Any) -> None:
    host = lab.host(chips=6)
    host.faults(
        {
            "*": {"load_seconds": 0.2},
            "7100": {"die_after": 0.3},
            "7101": {"unhealthy": True},
            "7102": {"load_seconds": 30},
            "7103": {"explode": True},
        }
    )

    def start(port: int, device: int) -> Any:
        options = ("--port", str(port), "--no-enable-prefix-caching")
        return lab.instance(
            [host], "decode", SIZES, *options, kv_port=36000 + port, ASCEND_RT_VISIBLE_DEVICES=str(device)
        )

    (dies,), (sick,), (slow,), (unknown,) = (start(7100 + index, index) for index in range(4))
    assert unknown.wait_exit() == 1
    assert "unknown fault or wrong value: explode" in unknown.log
    dies.wait_ready()
    assert dies.wait_exit() == 1
    assert "EngineCore encountered a fatal error" in dies.log
    sick.port = 7101
    assert sick.wait_ready().request("/health").status == 503
    assert sick.request("/v1/completions", {"prompt": "x"}).status == 200
    slow.wait_for("0% Completed")
    started = time.monotonic()
    slow.popen.terminate()
    assert slow.wait_exit() == 0
    assert time.monotonic() - started < 0.5
