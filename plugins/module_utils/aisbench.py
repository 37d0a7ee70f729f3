# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""AISBench from its published package: an environment of its own, a configuration made from the plan, its results read.

The configuration file is data that we print with repr(); nothing in it is typed by a person, so address, port and model
name cannot differ from those of the cluster. An exit code of 0 proves nothing: what counts are the result files, one
pair per concurrency, and the numbers of requests in them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import typing as t

PYTHONS = ("python3.11", "python3.12", "python3.10", "python3")
"""AISBench names 3.10 to 3.12; 3.11 is what the engine images have, so it is tried first."""

LEAST_PYTHON = (3, 10)
STAMP = ".pd_serving.json"
LOG_LINES = 25
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "tiktoken.model")
DATASET_FILES = ("train.jsonl", "test.jsonl")
PROXY_VARIABLES = frozenset(f"{scheme}_proxy" for scheme in ("http", "https", "ftp", "all", "no"))
STATISTICS = ("Average", "Min", "Max", "Median", "P75", "P90", "P99")


class AisbenchError(Exception):
    """What a person has to read; names the variable to set where there is one."""


# ---------------------------------------------------------------------------------------------------------------------
# Its environment
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Environment:
    """A virtual environment and what is to be in it."""

    path: str
    package: str
    constraints: tuple[str, ...]
    pip_arguments: tuple[str, ...]
    python: str | None = None

    @property
    def command(self) -> str:
        return os.path.join(self.path, "bin", "ais_bench")

    def wanted(self) -> str:
        """What was asked for, to be compared with what is there."""
        return json.dumps([self.package, self.constraints, self.pip_arguments])

    def is_there(self) -> bool:
        try:
            with open(os.path.join(self.path, STAMP), encoding="utf-8") as stream:
                return stream.read() == self.wanted() and os.access(self.command, os.X_OK)
        except OSError:
            return False

    def find_python(self) -> str:
        """An interpreter that can make the environment."""
        seen = []
        for name in [self.python] if self.python else [*PYTHONS, sys.executable]:
            path = shutil.which(name)
            version = _version(path) if path else None
            if path and version and version >= LEAST_PYTHON:
                return path
            if path:
                said = ".".join(map(str, version)) if version else "no venv module"
                seen.append(f"{path} ({said})")
        raise AisbenchError(
            f"AISBench needs Python {'.'.join(map(str, LEAST_PYTHON))} or newer with its venv module; there is "
            f"{', '.join(seen) or (self.python or 'none')}. Set benchmark_python to one on this host, or install one"
        )

    def make(self) -> None:
        """Make it anew. A half-made one is not taken for a good one: the stamp comes last."""
        python = self.find_python()
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        _call([python, "-m", "venv", "--clear", self.path], "benchmark_python")
        constraints = os.path.join(self.path, "constraints.txt")
        _write(constraints, "".join(f"{line}\n" for line in self.constraints))
        pip = [os.path.join(self.path, "bin", "python"), "-m", "pip", "install", "--no-input", "--quiet"]
        _call([*pip, "--constraint", constraints, *self.pip_arguments, self.package], "benchmark_pip_arguments")
        _call([self.command, "--help"], "benchmark_constraints")
        _write(os.path.join(self.path, STAMP), self.wanted())

    def version(self) -> str:
        """The version of the package that is installed."""
        code = "from importlib.metadata import version; print(version('ais_bench_benchmark'))"
        return _call([os.path.join(self.path, "bin", "python"), "-c", code], "benchmark_package").strip()


def _version(python: str) -> tuple[int, ...] | None:
    code = "import ensurepip, venv, sys; print(*sys.version_info[:2])"
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else None


def _call(command: t.Sequence[str], variable: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    text = done.stdout.decode("utf-8", "replace")
    if done.returncode != 0:
        raise AisbenchError(
            f"{' '.join(command[:5])} ... ended with code {done.returncode} (see {variable}):\n{tail(text)}"
        )
    return text


def tail(text: str) -> str:
    """The last lines of an output."""
    return "\n".join(text.strip().splitlines()[-LOG_LINES:])


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)


# ---------------------------------------------------------------------------------------------------------------------
# Prompts and tokenizer
# ---------------------------------------------------------------------------------------------------------------------


def sample_prompts(count: int) -> str:
    """Our own prompts, in gsm8k's format, where a rehearsal has no gsm8k. All differ."""
    things = ("racks", "hosts", "boards", "fans", "cables", "switches")
    lines = []
    for number in range(count):
        one, other = things[number % len(things)], things[(number // len(things) + number + 1) % len(things)]
        each, many = 2 + number % 13, 3 + number // 13
        question = (
            f"A machine room has {many} {one}. To every one of them belong {each} {other}. On Monday {number % 3} of the "
            f"{other} are away for repair. How many {other} are in the room on Monday?"
        )
        lines.append(json.dumps({"question": question, "answer": f"#### {many * each - number % 3}"}) + "\n")
    return "".join(lines)


def tiny_tokenizer() -> dict[str, t.Any]:
    """A tokenizer with one token per byte: enough to count with, where a rehearsal has no model."""
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": {char: rank for rank, char in enumerate(_byte_alphabet())}, "merges": []},
    }


def _byte_alphabet() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return sorted([chr(byte) for byte in printable] + [chr(256 + place) for place in range(len(others))])


def tokenizer_folder(path: str, stand_in: str | None) -> str:
    """The folder to load the tokenizer from; with stand_in, ours is made there where the model has none."""
    if any(os.path.exists(os.path.join(path, name)) for name in TOKENIZER_FILES):
        return path
    if stand_in is None:
        raise AisbenchError(
            f"no tokenizer in {path} (none of {', '.join(TOKENIZER_FILES)}): set benchmark_tokenizer_path to a folder on "
            "this host that has the model's tokenizer"
        )
    os.makedirs(stand_in, exist_ok=True)
    _write(os.path.join(stand_in, "tokenizer.json"), json.dumps(tiny_tokenizer()))
    _write(os.path.join(stand_in, "tokenizer_config.json"), '{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return stand_in


def missing_dataset(path: str) -> list[str]:
    """The files of gsm8k that are not in a folder."""
    return [name for name in DATASET_FILES if not os.path.isfile(os.path.join(path, name))]


def require_dataset(path: str) -> None:
    """gsm8k has to be there."""
    missing = missing_dataset(path)
    if missing:
        raise AisbenchError(
            f"gsm8k is not in {path}: {' and '.join(missing)} missing. Unpack the dataset there (AISBench's page of gsm8k "
            "says where it is), set benchmark_dataset_path to where it is on this host, or set benchmark_prompts to "
            "sample for prompts of our own"
        )


def write_sample(folder: str, count: int) -> None:
    """Our own prompts, as files that AISBench takes for gsm8k's."""
    os.makedirs(folder, exist_ok=True)
    for name in DATASET_FILES:
        _write(os.path.join(folder, name), sample_prompts(count))


# ---------------------------------------------------------------------------------------------------------------------
# Configuration and run
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Target:
    """What is measured: the cluster's door, from its plan."""

    address: str
    port: int
    model: str
    api_key: str = ""


@dataclasses.dataclass(frozen=True)
class Load:
    """How it is measured."""

    concurrency: tuple[int, ...]
    request_rate: float
    max_out_len: int
    retry: int
    generation: t.Mapping[str, t.Any]
    trust_remote_code: bool
    num_prompts: int | None = None


def level_name(concurrency: int) -> str:
    """What AISBench calls the results of one concurrency."""
    return f"concurrency-{concurrency}"


def configuration(target: Target, load: Load, tokenizer: str, dataset: str) -> str:
    """AISBench's configuration file: its own gsm8k performance task and summary, one model entry per concurrency."""
    models = [
        {
            "attr": "service",
            "abbr": level_name(concurrency),
            "path": tokenizer,
            "model": target.model,
            "stream": True,
            "request_rate": load.request_rate,
            "use_timestamp": False,
            "retry": load.retry,
            "api_key": target.api_key,
            "host_ip": target.address,
            "host_port": target.port,
            "url": "",
            "max_out_len": load.max_out_len,
            "batch_size": concurrency,
            "trust_remote_code": load.trust_remote_code,
            "generation_kwargs": dict(load.generation),
        }
        for concurrency in load.concurrency
    ]
    entries = "".join(f"    dict(type=VLLMCustomAPIChat, **{model!r}),\n" for model in models)
    return (
        "# Written by ascend.pd_serving from the plan; each run writes it anew.\n"
        "from mmengine.config import read_base\n"
        "from ais_bench.benchmark.models import VLLMCustomAPIChat\n"
        "\n"
        "with read_base():\n"
        "    from ais_bench.benchmark.configs.datasets.gsm8k.gsm8k_gen_0_shot_cot_str_perf import gsm8k_datasets\n"
        "    from ais_bench.benchmark.configs.summarizers.perf.default_perf import summarizer\n"
        "\n"
        f"gsm8k_datasets[0]['path'] = {dataset!r}\n"
        "datasets = gsm8k_datasets\n"
        f"models = [\n{entries}]\n"
    )


def command(environment: Environment, config: str, folder: str, num_prompts: int | None) -> list[str]:
    """The seed's command with a configuration file of its own. Warming up was done before, over all endpoints."""
    prompts = [] if num_prompts is None else ["--num-prompts", str(num_prompts)]
    options = ["--mode", "perf", "--debug", "--num-warmups", "0", "--work-dir", folder]
    return [environment.command, config, *options, *prompts]


def run_environment(given: t.Mapping[str, str]) -> dict[str, str]:
    """Without HTTP proxies, in either case; and nothing is fetched while it measures."""
    kept = {name: value for name, value in given.items() if name.lower() not in PROXY_VARIABLES}
    return {**kept, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def run(
    environment: Environment, target: Target, load: Load, tokenizer: str, dataset: str, folder: str, timeout: float
) -> list[dict[str, t.Any]]:
    """Measure all concurrencies into a new folder; returns one mapping per concurrency."""
    os.makedirs(folder, mode=0o700)
    config = os.path.join(folder, "pd_serving.py")
    _write(config, configuration(target, load, tokenizer, dataset))
    log = os.path.join(folder, "aisbench.log")
    argv = command(environment, config, os.path.join(folder, "outputs"), load.num_prompts)
    code = _wait(argv, folder, log, timeout)
    with open(log, encoding="utf-8", errors="replace") as stream:
        text = stream.read()
    said = tail(text.replace(target.api_key, "********") if target.api_key else text)
    if code is None:
        raise AisbenchError(f"AISBench was not done after {timeout:g} s (benchmark_timeout); end of {log}:\n{said}")
    found = results(os.path.join(folder, "outputs"), load.concurrency)
    lacking = [str(level) for level in load.concurrency if level not in found]
    if lacking:
        raise AisbenchError(
            f"AISBench ended with code {code} and has no results for concurrency {', '.join(lacking)}; end of {log}:\n{said}"
        )
    return [found[level] for level in load.concurrency]


def _wait(argv: t.Sequence[str], folder: str, log: str, timeout: float) -> int | None:
    """Exit code; None when the time was over. Nothing of it is left running."""
    old = os.umask(0o077)  # its copies of the configuration hold the key
    try:
        with open(log, "wb") as stream:
            child = subprocess.Popen(
                argv,
                cwd=folder,
                env=run_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    finally:
        os.umask(old)
    deadline = time.monotonic() + timeout
    try:
        while child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        return child.poll()
    finally:
        with contextlib.suppress(ProcessLookupError):  # all of it has ended by itself
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


# ---------------------------------------------------------------------------------------------------------------------
# Results
# ---------------------------------------------------------------------------------------------------------------------

_PER_REQUEST = {
    "E2EL": ("latency_ms", "ms"),
    "TTFT": ("ttft_ms", "ms"),
    "TPOT": ("tpot_ms", "ms"),
    "ITL": ("itl_ms", "ms"),
    "InputTokens": ("input_tokens", ""),
    "OutputTokens": ("output_tokens", ""),
}
_IN_ALL = {
    "Benchmark Duration": ("duration_ms", "ms"),
    "Total Requests": ("requests", ""),
    "Failed Requests": ("failed", ""),
    "Success Requests": ("succeeded", ""),
    "Concurrency": ("mean_concurrency", ""),
    "Request Throughput": ("request_throughput", "req/s"),
    "Output Token Throughput": ("output_token_throughput", "token/s"),
    "Total Token Throughput": ("total_token_throughput", "token/s"),
}


def number(given: t.Any, unit: str) -> float:
    """A value as AISBench writes it: a number, or text with its unit."""
    words = str(given).split()
    try:
        value = float(words[0])
    except (IndexError, ValueError):
        raise AisbenchError(f"AISBench's result {given!r} is no number") from None
    if " ".join(words[1:]) != unit:
        raise AisbenchError(f"AISBench's result {given!r} is not in {unit or 'plain numbers'}")
    return value


def results(folder: str, concurrency: t.Iterable[int]) -> dict[int, dict[str, t.Any]]:
    """What is in the result files below AISBench's work folder, by concurrency."""
    found = {}
    for level in concurrency:
        for stamp in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            base = os.path.join(folder, stamp, "performances", level_name(level), "gsm8k")
            if os.path.exists(f"{base}.csv") and os.path.exists(f"{base}.json"):
                found[level] = {"concurrency": level, **_in_all(f"{base}.json"), **_per_request(f"{base}.csv")}
    return found


def _in_all(path: str) -> dict[str, t.Any]:
    with open(path, encoding="utf-8") as stream:
        loaded = json.load(stream)
    missing = sorted(set(_IN_ALL) - set(loaded))
    if missing:
        raise AisbenchError(f"{path} has no {', '.join(missing)}")
    return {name: number(loaded[key]["total"], unit) for key, (name, unit) in _IN_ALL.items()}


def _per_request(path: str) -> dict[str, t.Any]:
    with open(path, encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split(",") for line in stream if line.strip()]
    head, body = rows[0], [dict(zip(rows[0], row)) for row in rows[1:]]
    if head[0] != "Performance Parameters":
        raise AisbenchError(f"{path} does not begin with the heading of AISBench's table")
    found: dict[str, t.Any] = {}
    for row in body:
        if row["Stage"] == "total" and row[head[0]] in _PER_REQUEST:
            name, unit = _PER_REQUEST[row[head[0]]]
            found[name] = {each.lower(): number(row[each], unit) for each in STATISTICS if each in row}
    return found


def failures(levels: t.Iterable[t.Mapping[str, t.Any]]) -> list[str]:
    """Levels that do not count: a request that failed makes the others look faster."""
    return [
        f"concurrency {level['concurrency']}: {level['failed']:g} of {level['requests']:g} requests failed"
        for level in levels
        if level["failed"] or not level["requests"] or level["succeeded"] != level["requests"]
    ]
