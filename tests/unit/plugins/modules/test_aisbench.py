# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Modules aisbench and aisbench_setup with a stand-in for the command that reads the real configuration file and writes
result files as AISBench 3.1.20260630 does. tests/benchmark runs AISBench itself.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import aisbench
from ansible_collections.ascend.pd_serving.plugins.modules import aisbench as module
from ansible_collections.ascend.pd_serving.plugins.modules import aisbench_setup

COMMAND = '''\
import json, os, pathlib, sys, types, contextlib

def stub(name, **values):
    sys.modules[name] = types.SimpleNamespace(**values)

datasets = [{{"path": "", "abbr": "gsm8k"}}]
stub("mmengine"); stub("mmengine.config", read_base=contextlib.nullcontext)
stub("ais_bench.benchmark.models", VLLMCustomAPIChat="VLLMCustomAPIChat")
base = "ais_bench.benchmark.configs."
stub(base + "datasets.gsm8k.gsm8k_gen_0_shot_cot_str_perf", gsm8k_datasets=datasets)
stub(base + "summarizers.perf.default_perf", summarizer="summarizer")
config = {{}}
exec(pathlib.Path(sys.argv[1]).read_text(), config)
work = pathlib.Path(sys.argv[sys.argv.index("--work-dir") + 1])
seen = {{"argv": sys.argv[1:], "env": dict(os.environ), "models": config["models"], "datasets": config["datasets"]}}
pathlib.Path("seen.json").write_text(json.dumps(seen))
for model in config["models"]:
    print("measuring", model["abbr"], "with", model["api_key"])
    if model["batch_size"] == {lacking}:
        sys.exit({code})
    folder = work / "20260131_120000" / "performances" / model["abbr"]
    folder.mkdir(parents=True)
    (folder / "gsm8k.csv").write_text("""{csv}""")
    (folder / "gsm8k.json").write_text(json.dumps({common}))
{more}
'''
CSV = """Performance Parameters,Stage,Average,Min,Max,Median,P75,P90,P99,N
E2EL,total,246.7 ms,243.6 ms,257.4 ms,243.9 ms,248.4 ms,251.9 ms,256.9 ms,8
TTFT,total,33.5 ms,21.7 ms,48.8 ms,33.9 ms,43.1 ms,44.9 ms,48.4 ms,8
TPOT,total,19.4 ms,18.2 ms,20.2 ms,19.9 ms,20.2 ms,20.2 ms,20.2 ms,8
ITL,total,17.8 ms,0.0 ms,24.0 ms,20.1 ms,20.2 ms,20.3 ms,24.0 ms,8
InputTokens,total,5.0,5.0,5.0,5.0,5.0,5.0,5.0,8
OutputTokens,total,12.0,12.0,12.0,12.0,12.0,12.0,12.0,8
OutputTokenThroughput,total,48.6 token/s,46.6 token/s,49.2 token/s,49.2 token/s,49.2 token/s,49.2 token/s,49.2 token/s,8
"""
COMMON: dict[str, Any] = {
    "Benchmark Duration": {"total": "511.0539 ms"},
    "Total Requests": {"total": 8},
    "Failed Requests": {"total": 0},
    "Success Requests": {"total": 8},
    "Concurrency": {"total": 3.8843},
    "Max Concurrency": {"total": 4},
    "Request Throughput": {"total": "15.6539 req/s"},
    "Total Input Tokens": {"total": 40},
    "Prefill Token Throughput": {"total": "139.54 token/s"},
    "Total Generated Tokens": {"total": 96},
    "Input Token Throughput": {"total": "78.2696 token/s"},
    "Output Token Throughput": {"total": "187.8471 token/s"},
    "Total Token Throughput": {"total": "266.1167 token/s"},
}


class Host:
    """Folders of a host with an environment, a model and the dataset."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.model = root / "models" / "m"
        self.gsm8k = root / "gsm8k"
        self.venv = root / "venv"
        for folder in (self.model, self.gsm8k, self.venv / "bin"):
            folder.mkdir(parents=True)
        (self.model / "tokenizer.json").touch()
        (self.gsm8k / "train.jsonl").touch()
        (self.gsm8k / "test.jsonl").touch()
        self.command()

    def command(self, *, lacking: int = 0, code: int = 0, more: str = "", **common: Any) -> None:
        """The stand-in; it ends with a code before the results of one concurrency, and changes single results."""
        path = self.venv / "bin" / "ais_bench"
        changed = {**COMMON, **{name.replace("_", " "): {"total": value} for name, value in common.items()}}
        text = COMMAND.format(lacking=lacking, code=code, csv=CSV, common=changed, more=more)
        script = path.with_suffix(".py")
        script.write_text(text, encoding="utf-8")
        # No first line of a script may hold an interpreter whose path has a space.
        words = shlex.join([sys.executable, str(script)])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        path.chmod(0o755)

    def measure(self, **args: Any) -> dict[str, Any]:
        given = {
            "venv": str(self.venv),
            "folder": str(self.root / "runs"),
            "address": "192.0.2.10",
            "port": 1999,
            "model": "ds_r1",
            "tokenizer_path": str(self.model),
            "dataset_path": str(self.gsm8k),
            "concurrency": [4, 1],
            "timeout": 30,
            **args,
        }
        return call(module.main, given)

    def seen(self, result: dict[str, Any]) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((Path(result["folder"]) / "seen.json").read_text(encoding="utf-8"))
        return loaded


def call(main: Any, given: dict[str, Any]) -> dict[str, Any]:
    out = io.StringIO()
    with patch_module_args(given), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_configuration_is_what_was_given(host: Host) -> None:
    result = host.measure(generation_kwargs={"temperature": 0}, num_prompts=8, max_out_len=10, request_rate=2.5)
    assert not result.get("failed"), result
    seen = host.seen(result)
    assert [model["batch_size"] for model in seen["models"]] == [1, 4]
    for model in seen["models"]:
        assert (model["host_ip"], model["host_port"], model["model"]) == ("192.0.2.10", 1999, "ds_r1")
        assert model["stream"] is True and model["attr"] == "service" and model["path"] == str(host.model)
        assert model["request_rate"] == 2.5 and model["max_out_len"] == 10
        assert model["generation_kwargs"] == {"temperature": 0}
    assert seen["datasets"][0]["path"] == str(host.gsm8k)
    argv = seen["argv"]
    assert argv[argv.index("--mode") + 1] == "perf" and argv[argv.index("--num-prompts") + 1] == "8"
    assert argv[argv.index("--num-warmups") + 1] == "0"


def test_the_numbers_are_those_of_the_files(host: Host) -> None:
    result = host.measure()
    assert result["prompts"] == "gsm8k" and result["tokenizer"] == "model"
    first = result["levels"][0]
    assert (
        first["concurrency"] == 1 and first["output_token_throughput"] == 187.8471 and first["duration_ms"] == 511.0539
    )
    assert first["ttft_ms"]["median"] == 33.9 and first["tpot_ms"]["p99"] == 20.2 and first["requests"] == 8


def test_no_http_proxy_reaches_it(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTPS_PROXY", "ftp_proxy", "ALL_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "http://192.0.2.99:3128")
    seen = host.seen(host.measure())
    assert not [name for name in seen["env"] if name.lower().endswith("_proxy")]
    assert seen["env"]["HF_HUB_OFFLINE"] == "1" and "PATH" in seen["env"]


def test_what_a_run_writes_is_its_own(host: Host) -> None:
    result = host.measure(api_key="a-secret-key")
    assert stat.S_IMODE(os.stat(result["folder"]).st_mode) == 0o700
    assert "a-secret-key" not in json.dumps({key: value for key, value in result.items() if key != "invocation"})


@pytest.mark.parametrize("code", [0, 3])
def test_a_missing_result_is_a_failure_whatever_the_exit_code(host: Host, code: int) -> None:
    host.command(lacking=4, code=code)
    result = host.measure(api_key="a-secret-key")
    assert result["failed"] and "concurrency 4" in result["msg"] and f"code {code}" in result["msg"]
    assert "measuring concurrency-4" in result["msg"] and "a-secret-key" not in result["msg"]


def test_failed_requests_are_a_failure(host: Host) -> None:
    host.command(Failed_Requests=2, Success_Requests=6)
    result = host.measure()
    assert result["failed"] and "concurrency 1: 2 of 8 requests failed" in result["msg"]


def test_no_request_at_all_is_a_failure(host: Host) -> None:
    host.command(Total_Requests=0, Success_Requests=0)
    assert "0 of 0" in host.measure()["msg"]


@pytest.mark.parametrize("value", ["15.6 req/min", "fast", ""])
def test_a_value_in_another_unit_is_not_taken(host: Host, value: str) -> None:
    host.command(Request_Throughput=value)
    result = host.measure()
    assert result["failed"] and repr(value) in result["msg"]


def test_a_run_that_takes_too_long_is_ended_with_all_its_processes(host: Host) -> None:
    more = "import subprocess; subprocess.Popen(['sleep', '987']); import time; time.sleep(987)"
    host.command(more=more)
    began = time.monotonic()
    result = host.measure(timeout=2)
    assert result["failed"] and "benchmark_timeout" in result["msg"] and time.monotonic() - began < 20
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 987" not in left


def test_without_gsm8k_it_says_what_to_do(host: Host) -> None:
    (host.gsm8k / "test.jsonl").unlink()
    result = host.measure()
    assert result["failed"]
    for word in (str(host.gsm8k), "test.jsonl", "benchmark_dataset_path", "benchmark_prompts"):
        assert word in result["msg"]


def test_our_own_prompts_stand_in_only_where_gsm8k_is_missing(host: Host) -> None:
    assert host.measure(prompts="auto")["prompts"] == "gsm8k"
    (host.gsm8k / "test.jsonl").unlink()
    result = host.measure(prompts="auto", concurrency=[40])
    assert result["prompts"] == "sample"
    path = Path(host.seen(result)["datasets"][0]["path"]) / "test.jsonl"
    prompts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(prompts) == 40, "as many as are asked at the same time"
    assert len({prompt["question"] for prompt in prompts}) == 40
    assert all(re.fullmatch(r"#### -?\d+", prompt["answer"]) for prompt in prompts)


def test_sample_prompts_can_be_asked_for(host: Host) -> None:
    assert host.measure(prompts="sample")["prompts"] == "sample"


def test_without_a_tokenizer_it_says_what_to_do(host: Host) -> None:
    (host.model / "tokenizer.json").unlink()
    result = host.measure()
    assert result["failed"] and "benchmark_tokenizer_path" in result["msg"] and str(host.model) in result["msg"]


def test_a_tiny_tokenizer_stands_in(host: Host) -> None:
    (host.model / "tokenizer.json").unlink()
    result = host.measure(tokenizer_stand_in=True)
    assert result["tokenizer"] == "stand-in"
    made = json.loads((Path(host.seen(result)["models"][0]["path"]) / "tokenizer.json").read_text(encoding="utf-8"))
    assert len(made["model"]["vocab"]) == 256, "one token for each byte"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": []}, "benchmark_concurrency is empty"),
        ({"concurrency": [0, 4]}, "benchmark_concurrency has 0"),
        ({"concurrency": [4, 4]}, "benchmark_concurrency has 4 more than once"),
        ({"num_prompts": 0}, "benchmark_num_prompts"),
        ({"max_out_len": 0, "request_rate": -1, "timeout": 0}, "benchmark_timeout"),
    ],
)
def test_loads_that_make_no_sense_are_refused(host: Host, wrong: dict[str, Any], said: str) -> None:
    result = host.measure(**wrong)
    assert result["failed"] and said in result["msg"]
    assert not (host.root / "runs").exists(), "nothing was started"


# The environment


def package(path: Path, code: str = "def main():\n    print('usage')\n") -> Path:
    """A wheel of the same name, so that pip needs no index."""
    info = "ais_bench_benchmark-1.0.dist-info"
    files = {
        "ais_bench.py": code,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: ais_bench_benchmark\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\nais_bench = ais_bench:main\n",
    }
    record = "".join(f"{name},,\n" for name in files) + f"{info}/RECORD,,\n"
    with zipfile.ZipFile(path / "ais_bench_benchmark-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(name, text)
    return path


def install(tmp_path: Path, **args: Any) -> dict[str, Any]:
    wheel = tmp_path / "ais_bench_benchmark-1.0-py3-none-any.whl"
    given = {"venv": str(tmp_path / "env"), "package": str(wheel), "python": sys.executable}
    return call(aisbench_setup.main, {**given, "pip_arguments": ["--no-index"], **args})


def test_the_environment_is_made_once(tmp_path: Path) -> None:
    package(tmp_path)
    would = install(tmp_path, _ansible_check_mode=True)
    assert would["changed"] and not (tmp_path / "env").exists()
    first = install(tmp_path)
    assert first.get("changed") and first["version"] == "1.0", first
    assert install(tmp_path)["changed"] is False
    would = install(tmp_path, constraints=["idna<99"], _ansible_check_mode=True)
    assert would["changed"], "other constraints, another environment"


def test_a_failed_installation_is_not_taken_for_a_good_one(tmp_path: Path) -> None:
    """As with the real package and newer dependencies: pip is content, but the command does not start."""
    package(tmp_path, "import pkg_resources_of_old\n")
    result = install(tmp_path)
    assert result["failed"] and "pkg_resources_of_old" in result["msg"] and "benchmark_constraints" in result["msg"]
    assert install(tmp_path, _ansible_check_mode=True)["changed"]


def test_a_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\necho 3 8\n", encoding="utf-8")
    old.chmod(0o755)
    result = install(tmp_path, python=str(old))
    assert result["failed"] and f"{old} (3.8)" in result["msg"] and "benchmark_python" in result["msg"]


def test_no_python_at_all_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(aisbench.AisbenchError, match="benchmark_python"):
        aisbench.Environment(str(tmp_path / "env"), "p", (), ()).find_python()
