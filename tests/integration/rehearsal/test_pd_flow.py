# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Simulated prefill and decode instances behind both of upstream's own proxies."""

from __future__ import annotations

import concurrent.futures
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

SIZES = ((2, 2), (4, 1))  # (dp, tp) of prefill and of decode
FLOWS = {
    "pull": ("MooncakeConnectorV1", "load_balance_proxy_server_example.py"),
    "push": ("MooncakeLayerwiseConnector", "load_balance_proxy_layerwise_server_example.py"),
}
PROMPT = "What travels from the prefill side to the decode side?"
CHAT = [{"role": "user", "content": PROMPT}]


@dataclasses.dataclass
class Cluster:
    flow: str
    prefill: list[Any]
    decode: list[Any]
    proxy: Any

    def total(self, side: str, name: str, **labels: str) -> float:
        engines = self.prefill if side == "prefill" else self.decode
        return float(sum(engine.metric(name, **labels) for engine in engines))


@pytest.fixture(scope="module", params=sorted(FLOWS))
def cluster(request: pytest.FixtureRequest, shared_lab: Any) -> Iterator[Cluster]:
    connector, script = FLOWS[request.param]
    prefill_host, decode_host = shared_lab.host(chips=4), shared_lab.host(chips=4)
    prefill = shared_lab.instance([prefill_host], "prefill", SIZES, connector=connector, kv_port=36000)
    decode = shared_lab.instance([decode_host], "decode", SIZES, connector=connector, kv_port=36200)
    for engine in prefill + decode:
        engine.wait_ready()
    proxy = shared_lab.host().proxy(script, prefill, decode).wait_for("Application startup complete")
    yield Cluster(request.param, prefill, decode, proxy)
    for process in [proxy, *decode, *prefill]:
        process.stop()
    assert [process.popen.returncode for process in decode + prefill] == [0] * 6, "SIGTERM is a clean end"


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_the_answer_is_written_from_what_the_prefill_sent(cluster: Cluster, chat: bool, stream: bool) -> None:
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body = {"model": "demo", "max_tokens": 12, **({"messages": CHAT} if chat else {"prompt": PROMPT})}
    expected = cluster.prefill[0].request(path, body).text  # computed by one engine alone
    assert len(expected.split()) == 12
    before = {
        source: cluster.total("decode", "vllm:prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "external_kv_transfer", "local_cache_hit")
    }
    decodes = cluster.total("decode", "sim:decodes_total")

    reply = cluster.proxy.request(path, {**body, "stream": stream, "stream_options": {"include_usage": True}})

    assert reply.status == 200
    assert reply.text == expected
    if stream:
        assert len(reply.events) > 12, "one event per token"
        usage = reply.events[-1]["usage"]
    else:
        usage = reply.json["usage"]
        assert reply.json["choices"][0]["finish_reason"] == "length"
    tokens = usage["prompt_tokens"]
    assert usage["completion_tokens"] == 12
    for source, grown in (("local_compute", 1), ("external_kv_transfer", tokens - 1), ("local_cache_hit", 0)):
        now = cluster.total("decode", "vllm:prompt_tokens_by_source_total", source=source)
        assert now - before[source] == grown, source
    assert cluster.total("decode", "sim:decodes_total") - decodes == 1
    assert cluster.total("decode", "sim:local_prefills_total") == 0
    assert cluster.total("prefill", "sim:kv_held") == 0, "every worker's blocks were fetched"


def test_concurrent_requests_use_every_rank(cluster: Cluster) -> None:
    before = [engine.metric("vllm:request_success_total") for engine in cluster.prefill + cluster.decode]

    def complete(number: int) -> str:
        body = {"model": "demo", "prompt": f"request number {number}", "max_tokens": 40, "ignore_eos": True}
        text: str = cluster.proxy.request("/v1/completions", body).text
        return text

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(complete, range(12)))

    assert all(len(text.split()) == 40 for text in texts)
    assert len(set(texts)) == 12, "every prompt has its own answer"
    after = [engine.metric("vllm:request_success_total") for engine in cluster.prefill + cluster.decode]
    assert all(now > then for now, then in zip(after, before, strict=True))
    assert cluster.total("decode", "vllm:num_requests_running") == 0


def test_the_proxy_counts_its_instances(cluster: Cluster) -> None:
    health = cluster.proxy.request("/healthcheck").json
    assert (health["prefill_instances"], health["decode_instances"]) == (2, 4)


def test_the_binding_side_listens_at_the_ports_of_its_global_ranks(cluster: Cluster) -> None:
    listening, silent = (
        (cluster.prefill, cluster.decode) if cluster.flow == "pull" else (cluster.decode, cluster.prefill)
    )
    base = 36000 if cluster.flow == "pull" else 36200
    ports = [line.rpartition(":")[2] for engine in listening for line in engine.log.splitlines() if "listening" in line]
    assert sorted(map(int, ports)) == list(range(base, base + 4))
    assert not any("listening on" in engine.log for engine in silent)


def test_a_wrong_side_channel_port_fails_the_request(cluster: Cluster) -> None:
    decode = cluster.decode[0]
    before = decode.metric("sim:kv_failed_total")
    params = {"do_remote_prefill": True, "remote_engine_id": "x", "remote_request_id": "x", "remote_ptp_size": 2}
    peer = f"{cluster.prefill[0].address}:39999"
    if cluster.flow == "pull":
        params.update(remote_host=cluster.prefill[0].address, remote_port=39999)
    else:
        params.update(metaserver=f"http://{peer}/v1/metaserver")

    reply = decode.request("/v1/completions", {"prompt": PROMPT, "kv_transfer_params": params})

    assert reply.status == 500
    assert "Mooncake transfer failed, ret: -1" in reply.json["error"]["message"]
    assert "Mooncake transfer failed, ret: -1" in decode.log
    assert peer in decode.log
    assert decode.metric("sim:kv_failed_total") == before + 1
    assert decode.metric("vllm:request_success_total", finished_reason="error") >= 1


def test_a_decode_without_kv_blocks_computes_the_prompt_itself(cluster: Cluster) -> None:
    decode = cluster.decode[1]
    before = decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute")

    reply = decode.request("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})

    assert reply.status == 200
    assert decode.metric("sim:local_prefills_total") == 1
    grown = decode.metric("vllm:prompt_tokens_by_source_total", source="local_compute") - before
    assert grown == reply.json["usage"]["prompt_tokens"]
    decode.request("/v1/completions", {"prompt": PROMPT, "max_tokens": 1})
    assert decode.metric("sim:local_prefills_total") == 2
