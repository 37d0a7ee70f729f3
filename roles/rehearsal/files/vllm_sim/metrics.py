# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""/metrics: vLLM's own series, and ``sim:`` series for what only a rehearsal can know."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from vllm_sim.engine import Engine, RankState

# How many tokens of KV cache a rank is said to have.
_KV_CAPACITY = 262144

_HELP = {
    "vllm:num_requests_running": "Number of requests in model execution batches.",
    "vllm:num_requests_waiting": "Number of requests waiting to be processed.",
    "vllm:kv_cache_usage_perc": "KV-cache usage. 1 means 100 percent usage.",
    "vllm:prompt_tokens_total": "Number of prefill tokens processed.",
    "vllm:prompt_tokens_by_source_total": "Number of prompt tokens by source.",
    "vllm:generation_tokens_total": "Number of generation tokens processed.",
    "vllm:request_success_total": "Count of successfully processed requests.",
    "sim:prefills_total": "Prompts computed for a remote decode.",
    "sim:decodes_total": "Requests decoded from KV blocks of a remote prefill.",
    "sim:local_prefills_total": "Prompts a decode engine computed itself, because it got no KV blocks.",
    "sim:kv_failed_total": "Requests whose KV blocks were not transferred.",
    "sim:kv_held": "Requests whose KV blocks wait to be fetched.",
}


def render(engine: Engine) -> str:
    """All series in the Prometheus text format, one sample per rank and label."""
    samples: dict[str, list[str]] = {name: [] for name in _HELP}
    model = engine.settings.names[0].replace("\\", "\\\\").replace('"', '\\"')
    for state in engine.states:
        for name, label, value in _samples(engine, state):
            samples[name].append(f'{name}{{engine="{state.rank}"{label},model_name="{model}"}} {value}\n')
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}\n"
        + "".join(samples[name])
        for name, text in _HELP.items()
    )


def _samples(engine: Engine, state: RankState) -> Iterator[tuple[str, str, float]]:
    held = engine.held(state)
    yield "vllm:num_requests_running", "", state.running
    yield "vllm:num_requests_waiting", "", state.waiting
    yield "vllm:kv_cache_usage_perc", "", round(min(1.0, (state.running_tokens + held["tokens"]) / _KV_CAPACITY), 6)
    yield "vllm:prompt_tokens_total", "", sum(state.sources.values())
    for source, tokens in state.sources.items():
        yield "vllm:prompt_tokens_by_source_total", f',source="{source}"', tokens
    yield "vllm:generation_tokens_total", "", state.generated
    for reason, count in state.finished.items():
        yield "vllm:request_success_total", f',finished_reason="{reason}"', count
    yield "sim:prefills_total", "", state.prefills
    yield "sim:decodes_total", "", state.decodes
    yield "sim:local_prefills_total", "", state.local_prefills
    yield "sim:kv_failed_total", "", state.kv_failed
    yield "sim:kv_held", "", held["requests"]
