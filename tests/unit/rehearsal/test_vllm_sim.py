# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What the simulated engine accepts, what it refuses and how it says so, and which ports it takes."""

from __future__ import annotations

import copy
import fcntl
import json
import pathlib
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from vllm_sim import text
from vllm_sim.cli import main
from vllm_sim.errors import Refusal, RequestError, UsageError
from vllm_sim.group import ranks_text
from vllm_sim.host import Host
from vllm_sim.kv import CONNECTORS
from vllm_sim.options import OptionTable, parse
from vllm_sim.settings import Settings

TABLE = OptionTable.load("0.23.0")
PACKAGE = pathlib.Path(text.__file__).parent


def kv_json(role: str = "kv_producer", connector: str = "MooncakeConnectorV1", **changes: Any) -> dict[str, Any]:
    """A good configuration with top-level changes; None removes a key."""
    config: dict[str, Any] = {
        "kv_connector": connector,
        "kv_role": role,
        "kv_port": "36000",
        "kv_connector_extra_config": {
            "prefill": {"dp_size": 2, "tp_size": 2},
            "decode": {"dp_size": 4, "tp_size": 1},
        },
    }
    config.update(changes)
    return {key: value for key, value in config.items() if value is not None}


def extra(**changes: Any) -> dict[str, Any]:
    """The sizes of both sides with changes."""
    config = copy.deepcopy(kv_json()["kv_connector_extra_config"])
    for key, value in changes.items():
        if isinstance(value, dict) and key in config:
            config[key].update(value)
        else:
            config[key] = value
    return {key: value for key, value in config.items() if value is not None}


def multi(*children: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return kv_json(connector="MultiConnector", kv_connector_extra_config={"connectors": list(children), **outer})


STORE = {"kv_connector": "AscendStoreConnector", "kv_role": "kv_producer"}
PREFILL = {
    "--port": "7100",
    "--tensor-parallel-size": "2",
    "--data-parallel-size": "2",
    "--data-parallel-rank": "0",
    "--data-parallel-address": "127.0.0.1",
}
DECODE = {**PREFILL, "--tensor-parallel-size": "1", "--data-parallel-size": "4"}
SINGLE = {"--tensor-parallel-size": "2"}
SINGLE_EXTRA = extra(prefill={"dp_size": 1})


def argv_of(options: Mapping[str, str | None], kv: dict[str, Any] | str | None) -> list[str]:
    """The command line; an option with value None is left out, one with value "" is a switch."""
    argv = ["/models/m"]
    for name, value in options.items():
        argv += [] if value is None else [name, value] if value else [name]
    if kv is not None:
        argv += ["--kv-transfer-config", kv if isinstance(kv, str) else json.dumps(kv)]
    return argv


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    """A simulated host with four chips and a model."""
    (tmp_path / "dev").mkdir()
    for name in ("davinci_manager", "hisi_hdc", "devmm_svm", *(f"davinci{chip}" for chip in (0, 2, 10, 11))):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.json").write_text("{}")
    return tmp_path


def check(root: pathlib.Path, argv: list[str], **env: str) -> Settings:
    """Everything an engine checks before it takes a port."""
    environment = {"PD_REHEARSAL_ROOT": str(root), "ASCEND_RT_VISIBLE_DEVICES": "0,1", **env}
    settings = Settings(argv, environment)
    Host(environment).check(settings)
    return settings


# Options -------------------------------------------------------------------------------------------------------------


def test_the_option_table_has_every_spelling_of_the_real_parser() -> None:
    assert len(TABLE.spellings) == 354
    assert all(name in TABLE.types for name, _ in TABLE.spellings.values())


def test_good_options() -> None:
    argv = [
        *("/models/m", "--tensor_parallel_size=8", "-dp", "2", "--data-parallel-rank", "1", "--enable_expert_parallel"),
        *("--served-model-name", "a", "b", "--no-enable-prefix-caching", "--max-model-len", "40k", "--seed", "-1"),
        *("--attention_config.indexer_kv_dtype", "fp8", "--attention_config.block.n", "2", "-cc.modes+", "x,y"),
        *("--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY"}', "--gpu-memory-util", "0.9", "-O3"),
    ]
    with pytest.raises(UsageError, match="unrecognized arguments: -O3"):
        parse(TABLE, argv)
    model, values = parse(TABLE, argv[:-1])
    assert model == "/models/m"
    assert values == {
        "--tensor-parallel-size": 8,
        "--data-parallel-size": 2,
        "--data-parallel-rank": 1,
        "--enable-expert-parallel": True,
        "--served-model-name": ["a", "b"],
        "--enable-prefix-caching": False,
        "--max-model-len": 40000,
        "--seed": -1,
        "--attention-config": {"indexer_kv_dtype": "fp8", "block": {"n": 2}},
        "--compilation-config": {"modes": ["x", "y"]},  # upstream too: a dotted option replaces the given JSON
        "--gpu-memory-utilization": 0.9,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-such-option", "1"], "vllm: unrecognized arguments: --no-such-option 1"),
        (["--max-num-seq-s", "1"], "vllm: unrecognized arguments: --max-num-seq-s 1"),
        (["extra"], "vllm: unrecognized arguments: extra"),
        (["--no-port"], "vllm: unrecognized arguments: --no-port"),
        (["--no-headless"], "vllm: unrecognized arguments: --no-headless"),
        (["--port"], "argument --port: expected one argument"),
        (["--port", "--seed", "1"], "argument --port: expected one argument"),
        (["--served-model-name"], "argument --served-model-name: expected at least one argument"),
        (["-tp", "two"], "argument --tensor-parallel-size/-tp: Value two cannot be converted to int."),
        (
            ["--gpu-memory-utilization", "90%"],
            "argument --gpu-memory-utilization: Value 90% cannot be converted to float.",
        ),
        (["--max-model-len", "4.5K"], "argument --max-model-len: Value 4.5K cannot be converted to size_or_auto."),
        (["--dtype", "fp7"], "argument --dtype: invalid choice: 'fp7' (choose from 'auto', 'bfloat16', "),
        (["--enforce-eager=true"], "argument --enforce-eager/--no-enforce-eager: ignored explicit argument 'true'"),
        (["--data-parallel-r", "1"], "ambiguous option: --data-parallel-r could match --data-parallel-rank, "),
        (["--additional-config", '{"a": 1,}'], "argument --additional-config: Invalid JSON: "),
        (["--speculative-config", '["a"]'], "Invalid JSON: '[\"a\"]' is not a JSON object"),
        (["--compilation-config", "{'a': 1}"], "argument --compilation-config/-cc: Invalid JSON: "),
        (["--allowed-origins", "*"], "argument --allowed-origins: Invalid JSON: "),
        (["--attention-config.backend"], "argument --attention-config.backend: expected one argument"),
        (["--no-such-config.key", "1"], 'vllm: unrecognized arguments: --no-such-config {"key": 1}'),
    ],
)
def test_wrong_options(words: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(TABLE, ["/models/m", *words])
    prog, _, expected = message.rpartition("vllm: ")
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2
    assert caught.value.prog == ("vllm" if message.startswith("vllm: ") else "vllm serve"), prog


def test_the_model_comes_first() -> None:
    assert parse(TABLE, ["--model", "/models/m"])[0] == "/models/m"
    with pytest.raises(UsageError, match="`model` should be provided as the first positional argument"):
        parse(TABLE, ["--port", "1"])


def test_the_command_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert main(["bench"]) == 2
    assert main(["serve", "/models/m", "--oops"]) == 2
    assert main(["serve", "/models/m"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "0.23.0"
    assert "vllm: error: unrecognized arguments: --oops" in err
    assert "ValueError: --kv-transfer-config is missing" in out


# The whole configuration ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kv"),
    [
        pytest.param(PREFILL, kv_json(), id="external prefill"),
        pytest.param(DECODE, kv_json("kv_consumer"), id="external decode"),
        pytest.param(PREFILL, kv_json(connector="MooncakeLayerwiseConnector"), id="layerwise prefill"),
        pytest.param(DECODE, kv_json("kv_consumer", "MooncakeLayerwiseConnector"), id="layerwise decode"),
        pytest.param(
            {**PREFILL, "--no-disable-hybrid-kv-cache-manager": ""},
            kv_json(connector="MooncakeHybridConnector"),
            id="hybrid",
        ),
        pytest.param(
            PREFILL,
            kv_json(
                connector="MooncakeConnector",
                kv_connector_module_path="vllm_ascend.distributed.kv_transfer.kv_p2p.mooncake_connector",
            ),
            id="V1 by its module path",
        ),
        pytest.param(
            PREFILL, kv_json(kv_connector_extra_config=extra(qos_priority=4, use_ascend_direct=True)), id="qos"
        ),
        pytest.param(PREFILL, multi(kv_json(), {**STORE, "kv_connector": "UCMConnector"}), id="multi"),
        pytest.param(DECODE, kv_json("kv_consumer", "MooncakeD2RHConnectorV1"), id="D2RH"),
        pytest.param(
            {"-tp": "1", "-dp": "4", "-dpl": "2", "-dpr": "2", "--headless": ""}, kv_json("kv_consumer"), id="headless"
        ),
        pytest.param(
            {**SINGLE, "--tensor-parallel-size": "1", "-pp": "2"},
            kv_json(kv_connector_extra_config=extra(prefill={"dp_size": 1, "tp_size": 1, "pp_size": 2})),
            id="pipeline",
        ),
    ],
)
def test_good_configurations(root: pathlib.Path, options: Mapping[str, str | None], kv: dict[str, Any]) -> None:
    assert check(root, argv_of(options, kv)).kv.port == 36000


CONFIG_REFUSALS: list[tuple[str, Mapping[str, str | None], Any, str]] = [
    # the KV transfer configuration by itself
    ("no kv", PREFILL, None, "--kv-transfer-config is missing"),
    ("bad JSON", PREFILL, '{"kv_role": "kv_producer",}', "argument --kv-transfer-config: Invalid JSON"),
    ("unknown field", PREFILL, kv_json(kv_prot=1), "kv_prot: Unexpected keyword argument"),
    ("no connector", PREFILL, kv_json(kv_connector=None), "kv_connector is missing"),
    ("no role", PREFILL, kv_json(kv_role=None), "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'"),
    ("bad role", PREFILL, kv_json("producer"), "Input should be 'kv_producer', 'kv_both' or 'kv_consumer'"),
    ("bad port", PREFILL, kv_json(kv_port="36000-36010"), "kv_port: Input should be a valid integer"),
    ("bad policy", PREFILL, kv_json(kv_load_failure_policy="retry"), "Input should be 'recompute' or 'fail'"),
    ("bad extra", PREFILL, kv_json(kv_connector_extra_config=[]), "Input should be a valid dictionary"),
    (
        "unknown connector",
        PREFILL,
        kv_json(connector="MooncakeV1"),
        "ValueError: Unsupported connector type: MooncakeV1",
    ),
    ("CUDA connector", PREFILL, kv_json(connector="MooncakeConnector"), "is vLLM's CUDA connector"),
    ("empty module", PREFILL, kv_json(kv_connector_module_path=""), "must not be an empty string"),
    ("store alone", PREFILL, kv_json(connector="AscendStoreConnector"), "does not transfer them between"),
    ("qos 5", PREFILL, kv_json(kv_connector_extra_config=extra(qos_priority=5)), "must be an integer in \\[0, 4\\]"),
    ("qos bool", PREFILL, kv_json(kv_connector_extra_config=extra(qos_priority=True)), "must be an integer in"),
    # MultiConnector
    ("multi empty", PREFILL, multi(), "MultiConnector needs kv_connector_extra_config.connectors"),
    ("multi stores", PREFILL, multi(STORE), "no child that transfers KV blocks"),
    ("multi two", PREFILL, multi(kv_json(), kv_json()), "Only one connector can produce KV transfer params"),
    (
        "multi role",
        PREFILL,
        multi(kv_json("kv_consumer")),
        "is kv_producer but its child MooncakeConnectorV1 is kv_con",
    ),
    ("multi field", PREFILL, multi(kv_json(kv_prot=1)), "kv_prot: Unexpected keyword argument"),
    ("multi sizes", PREFILL, multi(kv_json(kv_connector_extra_config={})), 'needs "prefill"'),
    (
        "multi outer",
        PREFILL,
        multi(kv_json(), prefill={"dp_size": 2, "tp_size": 4}),
        "'prefill' config has a conflicting tensor",
    ),
    # sizes of both sides
    (
        "no prefill",
        PREFILL,
        kv_json(kv_connector_extra_config=extra(prefill=None)),
        'AssertionError: .* needs "prefill"',
    ),
    ("no decode", PREFILL, kv_json(kv_connector_extra_config=extra(decode=None)), 'AssertionError: .* needs "decode"'),
    ("no tp", PREFILL, kv_json(kv_connector_extra_config=extra(decode=None, prefill={"x": 1})), 'needs "decode"'),
    (
        "text size",
        PREFILL,
        kv_json(kv_connector_extra_config=extra(decode={"tp_size": "1"})),
        "must be a positive integer",
    ),
    (
        "prefill tp",
        {**PREFILL, "--tensor-parallel-size": "8"},
        kv_json(kv_connector_extra_config=extra(prefill={"tp_size": 4})),
        "KV transfer 'prefill' config has a conflicting tensor parallel size. Expected 8, but got 4.",
    ),
    (
        "prefill dp",
        PREFILL,
        kv_json(kv_connector_extra_config=extra(prefill={"dp_size": 4})),
        "KV transfer 'prefill' config has a conflicting data parallel size. Expected 2, but got 4.",
    ),
    (
        "decode tp",
        {**DECODE, "--tensor-parallel-size": "2"},
        kv_json("kv_consumer"),
        "KV transfer 'decode' config has a conflicting tensor parallel size. Expected 2, but got 1.",
    ),
    (
        "decode dp",
        {**DECODE, "--data-parallel-size": "32"},
        kv_json("kv_consumer"),
        "KV transfer 'decode' config has a conflicting data parallel size. Expected 32, but got 4.",
    ),
    (
        "prefill pp",
        {**PREFILL, "-pp": "2"},
        kv_json(),
        "KV transfer 'prefill' config has a conflicting pipeline parallel size. Expected 2, but got 1.",
    ),
    (
        "tp order",
        PREFILL,
        kv_json(kv_connector_extra_config=extra(decode={"tp_size": 4})),
        "prefill_tp_size: 2 must be greater than or equal to the decode_tp_size: 4",
    ),
    (
        "tp divides",
        {**PREFILL, "-tp": "3", "--tensor-parallel-size": None},
        kv_json(kv_connector_extra_config=extra(prefill={"tp_size": 3}, decode={"tp_size": 2})),
        "Prefill TP size must be divisible by Decode TP size.",
    ),
    (
        "decode pp",
        PREFILL,
        kv_json(kv_connector_extra_config=extra(decode={"pp_size": 2})),
        "decode pp size must be 1",
    ),
    ("own decode pp", {**DECODE, "-pp": "2"}, kv_json("kv_consumer"), "decode pp size must be 1"),
    (
        "pp and pcp",
        {**SINGLE, "-pp": "2", "-pcp": "2"},
        kv_json(kv_connector_extra_config=extra(prefill={"dp_size": 1, "pp_size": 2})),
        "pp and pcp cannot open in same time",
    ),
    (
        "hybrid flag",
        PREFILL,
        kv_json(connector="MooncakeHybridConnector"),
        "give --no-disable-hybrid-kv-cache-manager",
    ),
    (
        "hybrid cp",
        {**SINGLE, "-pcp": "2", "--no-disable-hybrid-kv-cache-manager": ""},
        kv_json(connector="MooncakeHybridConnector", kv_connector_extra_config=SINGLE_EXTRA),
        "Mooncake Hybrid Connector only support cp_world_size == 1.",
    ),
    (
        "layerwise decode cp",
        {**SINGLE, "-tp": "1", "--tensor-parallel-size": None, "-pcp": "2"},
        kv_json("kv_consumer", "MooncakeLayerwiseConnector", kv_connector_extra_config=extra(decode={"dp_size": 1})),
        "Prefill context parallel is not support on decoder nodes",
    ),
    # data parallelism and other options
    (
        "rank beyond",
        {**PREFILL, "--data-parallel-rank": "2"},
        kv_json(),
        r"data_parallel_rank \(2\) must be in the range",
    ),
    ("local beyond", {**SINGLE, "-dp": "2", "-dpl": "4"}, kv_json(), r"\(4\) must be <= data_parallel_size \(2\)"),
    ("external local", {**PREFILL, "-dpl": "2"}, kv_json(), "data_parallel_size_local must be 1 or None"),
    (
        "external start",
        {**PREFILL, "-dpr": "1"},
        kv_json(),
        "Cannot use more than one data parallel load balancing mode",
    ),
    ("external headless", {**PREFILL, "--headless": ""}, kv_json(), "not with --data-parallel-rank"),
    ("external no rank", {**SINGLE, "-dpe": "", "-dp": "2"}, kv_json(), "data_parallel_rank must be specified"),
    ("external dp 1", {**SINGLE, "-dpn": "0"}, kv_json(), "can only be set when data_parallel_size > 1"),
    (
        "headless start",
        {**SINGLE, "-dp": "2", "-dpl": "1", "--headless": ""},
        kv_json(),
        "needs --data-parallel-start-rank",
    ),
    (
        "start no local",
        {**SINGLE, "-dp": "2", "-dpr": "1", "--headless": ""},
        kv_json(),
        "needs --data-parallel-size-local",
    ),
    ("hybrid lb", {**SINGLE, "-dp": "2", "-dpl": "1", "-dpr": "1"}, kv_json(), "hybrid load balancing"),
    (
        "ranks beyond",
        {**SINGLE, "-dp": "4", "-dpl": "2", "-dpr": "3", "--headless": ""},
        kv_json(),
        "ranks 3 to 4 exceed",
    ),
    (
        "headless api",
        {**SINGLE, "-dp": "2", "-dpl": "1", "-dpr": "1", "--headless": "", "-asc": "1"},
        kv_json(),
        "--headless",
    ),
    ("pcp with dp", {**PREFILL, "-pcp": "2"}, kv_json(), "PCP does not support data parallelism yet"),
    ("dcp", {**PREFILL, "-dcp": "3"}, kv_json(), "tp_size=2 must be divisible by dcp_size=3."),
    ("size 0", {**PREFILL, "-pp": "0"}, kv_json(), "Input should be greater than or equal to 1"),
    ("port 0", {**PREFILL, "--port": "0"}, kv_json(), "Port must be between"),
    ("config file", {**PREFILL, "--config": "x.yaml"}, kv_json(), "does not simulate it"),
    ("nnodes", {**PREFILL, "--nnodes": "2"}, kv_json(), "a rank wider than one host"),
    (
        "balance",
        {**PREFILL, "--additional-config": '{"enable_balance_scheduling": true}'},
        kv_json(),
        "enable_balance_scheduling only supports PD-mixed mode",
    ),
    (
        "recompute",
        {**PREFILL, "--additional-config": '{"recompute_scheduler_enable": true}'},
        kv_json("kv_both", kv_connector_extra_config=extra(decode={"dp_size": 2, "tp_size": 2})),
        "recompute_scheduler_enable can only be enabled on PD-disaggregated D nodes",
    ),
]


@pytest.mark.parametrize(
    ("options", "kv", "message"),
    [pytest.param(options, kv, message, id=name) for name, options, kv, message in CONFIG_REFUSALS],
)
def test_refused_configurations(options: Mapping[str, str | None], kv: Any, message: str) -> None:
    with pytest.raises(Refusal, match=message):
        Settings(argv_of(options, kv), {})


def test_a_producer_is_told_that_it_ignores_the_recompute_scheduler() -> None:
    options = {**PREFILL, "--additional-config": '{"recompute_scheduler_enable": true}'}
    assert "is ignored on PD-disaggregated P nodes" in Settings(argv_of(options, kv_json()), {}).warnings[0]
    assert Settings(argv_of(PREFILL, kv_json()), {}).warnings == []


# The host ------------------------------------------------------------------------------------------------------------

HOST_REFUSALS: list[tuple[str, dict[str, str], str]] = [
    ("no devices", {"ASCEND_RT_VISIBLE_DEVICES": ""}, "ASCEND_RT_VISIBLE_DEVICES='' is not a list of numbers"),
    ("blank", {"ASCEND_RT_VISIBLE_DEVICES": "0,,1"}, "'0,,1' is not a list of numbers"),
    ("words", {"ASCEND_RT_VISIBLE_DEVICES": "npu0"}, "'npu0' is not a list of numbers"),
    ("range", {"ASCEND_RT_VISIBLE_DEVICES": "0-1"}, "'0-1' is not a list of numbers"),
    ("negative", {"ASCEND_RT_VISIBLE_DEVICES": "-1,0"}, "'-1,0' is not a list of numbers"),
    ("twice", {"ASCEND_RT_VISIBLE_DEVICES": "1,1"}, "ASCEND_RT_VISIBLE_DEVICES=1,1 repeats a device"),
    # Chips 0, 2, 10 and 11 are there, so their indexes are 0 to 3: a physical id is no index.
    ("physical id", {"ASCEND_RT_VISIBLE_DEVICES": "10,11"}, "invalid device ID 10: .* only 4 NPUs are present"),
    (
        "too few",
        {"ASCEND_RT_VISIBLE_DEVICES": "3"},
        r"World size \(2\) is larger than the number of available NPUs \(1\)",
    ),
    ("gloo", {"GLOO_SOCKET_IFNAME": "nic77"}, r"Unable to find address for: nic77 \(interface in GLOO_SOCKET_IFNAME\)"),
    ("tp", {"TP_SOCKET_IFNAME": "lo,nic77"}, r"nic77 \(interface in TP_SOCKET_IFNAME\)"),
    ("hccl", {"HCCL_SOCKET_IFNAME": "=nic77"}, r"nic77 \(interface in HCCL_SOCKET_IFNAME\)"),
    ("hccl ip", {"HCCL_IF_IP": "192.0.2.77"}, "HCCL_IF_IP=192.0.2.77 is no address of this host"),
    ("host ip", {"VLLM_HOST_IP": "192.0.2.77"}, r"ZMQError: .*VLLM_HOST_IP=192.0.2.77 is no address of this host"),
    ("hccl name", {"HCCL_IF_IP": "gateway.example"}, "HCCL_IF_IP=gateway.example is no address of this host"),
    ("delay", {"SIM_TOKEN_DELAY": "soon"}, "SIM_TOKEN_DELAY must be a number that is not negative, got 'soon'"),
    ("timeout", {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "-1"}, "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT must be a number"),
    ("version", {"SIM_VLLM_VERSION": "0.1"}, "no option table for vLLM 0.1; there is one for: 0.23.0"),
]


@pytest.mark.parametrize(
    ("env", "message"), [pytest.param(env, message, id=name) for name, env, message in HOST_REFUSALS]
)
def test_refused_hosts(root: pathlib.Path, env: dict[str, str], message: str) -> None:
    with pytest.raises(Refusal, match=message):
        check(root, argv_of(PREFILL, kv_json()), **env)


@pytest.mark.parametrize(("option", "value"), [("--host", "10.0.0.1"), ("--data-parallel-address", "d1.example")])
def test_a_rehearsal_stays_on_loopback(root: pathlib.Path, option: str, value: str) -> None:
    with pytest.raises(Refusal, match=f"{option} {value} is outside the rehearsal"):
        check(root, argv_of({**PREFILL, option: value}, kv_json()))


def test_the_own_address() -> None:
    simulated = Host({"PD_REHEARSAL_ROOT": "/x", "HCCL_IF_IP": "127.1.2.4"})
    assert simulated.own_address("127.1.2.3") == "127.1.2.3"
    assert simulated.own_address("0.0.0.0") == simulated.bind_address("") == "127.1.2.4"
    assert Host({"PD_REHEARSAL_ROOT": "/x"}).own_address("") == "127.0.0.1"
    assert Host({"PD_REHEARSAL_ROOT": "/x", "VLLM_HOST_IP": "127.1.2.5"}).bind_address("::") == "127.1.2.5"
    assert Host({}).bind_address("0.0.0.0") == "0.0.0.0"
    assert simulated.may_talk_to("127.9.9.9")
    assert not simulated.may_talk_to("10.0.0.1")
    assert Host({}).may_talk_to("10.0.0.1")


def test_accepted_interfaces_and_addresses(root: pathlib.Path) -> None:
    env = {"GLOO_SOCKET_IFNAME": "lo", "HCCL_SOCKET_IFNAME": "^docker,eth", "HCCL_IF_IP": "127.1.2.3"}
    check(root, argv_of(PREFILL, kv_json()), VLLM_HOST_IP="127.1.2.3", **env)


def test_refused_models(root: pathlib.Path) -> None:
    argv = argv_of(PREFILL, kv_json())
    config = root / "models" / "m" / "config.json"
    config.write_text("{")
    with pytest.raises(Refusal, match=r"/models/m/config.json is not a valid JSON file"):
        check(root, argv)
    config.unlink()
    with pytest.raises(Refusal, match=r"Could not detect config format .*/models/m has no config.json"):
        check(root, argv)
    for model in ("/models/other", "deepseek-ai/DeepSeek-R1"):
        with pytest.raises(Refusal, match=f"'{model}': there is no such model folder on this host"):
            check(root, [model, *argv[1:]])


@pytest.mark.parametrize(
    ("config", "dense"),
    [
        ({}, False),
        ({"architectures": ["Qwen3ForCausalLM"]}, True),
        ({"architectures": ["DeepseekV3ForCausalLM"], "n_routed_experts": 256}, False),
        ({"architectures": ["Qwen3VLMoe"], "text_config": {"num_experts": 128}}, False),
    ],
)
def test_dense_models_have_no_external_data_parallelism(
    root: pathlib.Path, config: dict[str, Any], dense: bool
) -> None:
    (root / "models" / "m" / "config.json").write_text(json.dumps(config))
    if not dense:
        check(root, argv_of(PREFILL, kv_json()))
        return
    with pytest.raises(Refusal, match="Non-MoE models do not support external data parallel mode"):
        check(root, argv_of(PREFILL, kv_json()))
    check(root, argv_of(SINGLE, kv_json(kv_connector_extra_config=SINGLE_EXTRA)))


def test_missing_device_nodes(root: pathlib.Path) -> None:
    (root / "dev" / "hisi_hdc").unlink()
    with pytest.raises(Refusal, match="aclInit failed, error code is 507008: /dev/hisi_hdc is missing"):
        check(root, argv_of(PREFILL, kv_json()))


def test_a_taken_chip_is_named_by_its_device_file(root: pathlib.Path) -> None:
    with (root / "dev" / "davinci10").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(Refusal, match=r"Free memory on device npu:2 .*another process holds /dev/davinci10\."):
            check(root, argv_of(PREFILL, kv_json()), ASCEND_RT_VISIBLE_DEVICES="1,2")
        check(root, argv_of(PREFILL, kv_json()), ASCEND_RT_VISIBLE_DEVICES="1,3")


def test_endpoint_files_of_the_visible_devices(root: pathlib.Path) -> None:
    argv = argv_of(PREFILL, kv_json(kv_connector_extra_config=extra(ascend_local_comm_res_path="/etc/hixlep")))
    with pytest.raises(Refusal, match=r"Endpoint config file not found: /etc/hixlep/ub_endpoint_npu_2\.json"):
        check(root, argv, ASCEND_RT_VISIBLE_DEVICES="2,3")
    folder = root / "etc" / "hixlep"
    folder.mkdir(parents=True)
    (folder / "ub_endpoint_npu_2.json").write_text(endpoint())
    (folder / "ub_endpoint_npu_3.json").write_text("")
    with pytest.raises(Refusal, match=r"Failed to parse endpoint config file: .*npu_3.json"):
        check(root, argv, ASCEND_RT_VISIBLE_DEVICES="2,3")
    (folder / "ub_endpoint_npu_3.json").write_text(endpoint())
    check(root, argv, ASCEND_RT_VISIBLE_DEVICES="2,3")


def endpoint(**changes: Any) -> str:
    """An endpoint file on a chip's own card."""
    entry = {"protocol": "roce", "comm_id": "198.51.100.1", "placement": "device"}
    document = {"version": "1.3", "net_instance_id": "superpod_0", "endpoint_list": [entry]}
    for key, value in changes.items():
        (entry if key in entry else document)[key] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": "1.2"}, "needs version 1.3"),
        ({"net_instance_id": ""}, "needs version 1.3 and a net_instance_id"),
        ({"endpoint_list": []}, "has no endpoint_list"),
        ({"endpoint_list": {}}, "has no endpoint_list"),
        ({"comm_id": "<host_roce_ip>"}, "comm_id '<host_roce_ip>' is no IPv4 address"),
        ({"comm_id": "198.51"}, "is no IPv4 address"),
        ({"placement": "host"}, "/dev/infiniband is missing"),
    ],
)
def test_what_an_endpoint_file_must_say(root: pathlib.Path, changes: dict[str, Any], words: str) -> None:
    argv = argv_of(PREFILL, kv_json(kv_connector_extra_config=extra(ascend_local_comm_res_path="/etc/hixlep")))
    folder = root / "etc" / "hixlep"
    folder.mkdir(parents=True)
    (folder / "ub_endpoint_npu_2.json").write_text(endpoint(**changes))
    (folder / "ub_endpoint_npu_3.json").write_text(endpoint())
    with pytest.raises(Refusal, match=f"TransferEngine initialization failed .*{re.escape(words)}"):
        check(root, argv, ASCEND_RT_VISIBLE_DEVICES="2,3")
    (root / "dev" / "infiniband").mkdir()
    (folder / "ub_endpoint_npu_2.json").write_text(endpoint(placement="host"))
    check(root, argv, ASCEND_RT_VISIBLE_DEVICES="2,3")


@pytest.mark.parametrize("name", ["ASCEND_LOCAL_COMM_RES", "ASCEND_GLOBAL_RESOURCE_CONFIG"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("uboe:device", "must be a JSON object"),
        ("{'a': 1}", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ('{"comm_resource_config.protocol_desc": "roce:host"}', "roce:host"),
        ('{"comm_resource_config.protocol_desc": ["uboe:device", "roce:host"]}', "needs endpoint files"),
        ('{"comm_resource_config.protocol_desc": ["uboe:device"]}', None),
        ('{"version":"1.3"}', None),
    ],
)
def test_resource_variables(name: str, value: str, words: str | None) -> None:
    if words is None:
        Settings(argv_of(PREFILL, kv_json()), {name: value})
        return
    with pytest.raises(Refusal, match=re.escape(words)):
        Settings(argv_of(PREFILL, kv_json()), {name: value})


@pytest.mark.parametrize(
    ("connector", "given", "qos"),
    [
        ("MooncakeConnectorV1", {}, 1),
        ("MooncakeConnectorV1", {"qos_priority": 4}, 4),
        ("MooncakeLayerwiseConnector", {"qos_priority": 0}, 0),
        ("MooncakeD2RHConnectorV1", {}, None),
    ],
)
def test_the_priority_that_is_injected(connector: str, given: dict[str, int], qos: int | None) -> None:
    config = kv_json(connector=connector, kv_connector_extra_config=extra(**given))
    assert Settings(argv_of(PREFILL, config), {}).kv.qos == qos


def test_the_mooncake_store_needs_its_settings(root: pathlib.Path) -> None:
    argv = argv_of(PREFILL, multi(kv_json(), STORE))
    with pytest.raises(Refusal, match="The environment variable 'MOONCAKE_CONFIG_PATH' is not set"):
        check(root, argv)
    with pytest.raises(Refusal, match=r"MOONCAKE_CONFIG_PATH=/etc/mooncake\.json cannot be read"):
        check(root, argv, MOONCAKE_CONFIG_PATH="/etc/mooncake.json")
    (root / "etc").mkdir()
    (root / "etc" / "mooncake.json").write_text("{}")
    with pytest.raises(Refusal, match="has no master_server_address"):
        check(root, argv, MOONCAKE_CONFIG_PATH="/etc/mooncake.json")
    with socket.create_server(("127.0.0.1", 0)) as master:
        address = f"127.0.0.1:{master.getsockname()[1]}"
        (root / "etc" / "mooncake.json").write_text(json.dumps({"master_server_address": address}))
        check(root, argv, MOONCAKE_CONFIG_PATH="/etc/mooncake.json")
    with pytest.raises(Refusal, match=f"Initialize mooncake failed.*{address}"):
        check(root, argv, MOONCAKE_CONFIG_PATH="/etc/mooncake.json")
    with pytest.raises(Refusal, match="'nowhere' is no host:port"):
        check(root, argv, MOONCAKE_CONFIG_PATH="/etc/mooncake.json", MOONCAKE_MASTER="nowhere")
    # Of a master outside nothing can be said, and no packet goes there.
    check(root, argv, MOONCAKE_CONFIG_PATH="/etc/mooncake.json", MOONCAKE_MASTER="192.0.2.1:50088")


def test_the_memcache_store_needs_its_services(root: pathlib.Path) -> None:
    store = {**STORE, "kv_connector_extra_config": {"backend": "memcache"}}
    argv = argv_of(PREFILL, multi(kv_json(), store))
    with pytest.raises(Refusal, match="MMC_LOCAL_CONFIG_PATH is not set"):
        check(root, argv)
    with pytest.raises(Refusal, match="cannot be read"):
        check(root, argv, MMC_LOCAL_CONFIG_PATH="/mmc-local.conf")
    with socket.create_server(("127.0.0.1", 0)) as meta, socket.create_server(("127.0.0.1", 0)) as config:
        (root / "mmc-local.conf").write_text(f"ock.mmc.meta_service_url = tcp://127.0.0.1:{meta.getsockname()[1]}\n")
        with pytest.raises(Refusal, match="config_store_url is missing"):
            check(root, argv, MMC_LOCAL_CONFIG_PATH="/mmc-local.conf")
        with (root / "mmc-local.conf").open("a") as stream:
            stream.write(f"ock.mmc.local_service.config_store_url = tcp://127.0.0.1:{config.getsockname()[1]}\n")
        check(root, argv, MMC_LOCAL_CONFIG_PATH="/mmc-local.conf")
    with pytest.raises(Refusal, match=r"meta_service_url tcp://127\.0\.0\.1:.* takes no connections"):
        check(root, argv, MMC_LOCAL_CONFIG_PATH="/mmc-local.conf")


def test_faults_of_the_narrower_entry_win(root: pathlib.Path) -> None:
    host = Host({"PD_REHEARSAL_ROOT": str(root)})
    assert host.faults(7100, 3) == {}
    path = root / "opt" / "pd_rehearsal" / "faults.json"
    path.parent.mkdir(parents=True)
    path.write_text(
        '{"*": {"load_seconds": 1, "die_after": 9}, "rank3": {"load_seconds": 2}, "7100": {"load_seconds": 3}}'
    )
    assert host.faults(7100, 3) == {"load_seconds": 3, "die_after": 9}
    assert host.faults(None, 3) == {"load_seconds": 2, "die_after": 9}
    assert host.faults(7101, 0) == {"load_seconds": 1, "die_after": 9}
    for wrong in ("{", "[]", '{"*": 1}', '{"*": {"boom": 1}}', '{"*": {"unhealthy": 1}}', '{"*": {"die_after": true}}'):
        path.write_text(wrong)
        with pytest.raises(Refusal, match=re.escape(str(path))):
            host.faults(7100, 0)


# Ports ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("connector", "kv_port", "tp", "pp", "pcp", "ranks", "first", "last"),
    [
        ("MooncakeConnectorV1", 36000, 8, 1, 1, range(2), 36000, 36015),
        ("MooncakeConnectorV1", 36100, 8, 1, 1, range(2), 36100, 36115),
        ("MooncakeLayerwiseConnector", 36200, 1, 1, 1, range(16), 36200, 36215),
        ("MooncakeLayerwiseConnector", 36200, 1, 1, 1, range(16, 32), 36216, 36231),
        ("MooncakeConnectorV1", 30000, 16, 1, 1, range(1, 2), 30016, 30031),
        ("MooncakeConnectorV1", 30000, 2, 2, 1, range(1), 30000, 30003),
        ("MooncakeConnectorV1", 30000, 4, 1, 2, range(1, 2), 30008, 30015),
        ("MooncakeHybridConnector", 30000, 4, 2, 1, range(1, 2), 30008, 30015),
        ("MooncakeLayerwiseConnector", 30000, 4, 2, 1, range(1, 2), 30004, 30007),
    ],
)
def test_worked_port_ranges(
    connector: str, kv_port: int, tp: int, pp: int, pcp: int, ranks: range, first: int, last: int
) -> None:
    kind = CONNECTORS[connector]
    workers = range(kind.ports_per_rank(tp, pp, pcp))
    ports = [kind.base_port(kv_port, rank, tp, pp, pcp) + worker for rank in ranks for worker in workers]
    assert ports == list(range(first, last + 1))


def listening(role: str, connector: str, options: Mapping[str, str | None], **changes: Any) -> list[int]:
    settings = Settings(argv_of(options, kv_json(role, connector, **changes)), {})
    return [port for rank in settings.parallel.ranks for port in settings.kv.listening_ports(rank, settings.parallel)]


def test_only_one_side_listens() -> None:
    second = {**PREFILL, "--data-parallel-rank": "1"}
    assert listening("kv_producer", "MooncakeConnectorV1", second) == [36002, 36003]
    assert listening("kv_consumer", "MooncakeConnectorV1", DECODE) == []
    assert listening("kv_producer", "MooncakeLayerwiseConnector", second) == []
    assert listening("kv_consumer", "MooncakeLayerwiseConnector", {**DECODE, "--data-parallel-rank": "3"}) == [36003]
    same = {"kv_connector_extra_config": extra(decode={"dp_size": 2, "tp_size": 2})}
    assert listening("kv_both", "MooncakeConnectorV1", PREFILL, **same) == []
    assert listening("kv_both", "MooncakeLayerwiseConnector", PREFILL, **same) == [36000, 36001]
    assert listening("kv_consumer", "MooncakeD2RHConnectorV1", {**DECODE, "--data-parallel-rank": "3"}) == [
        38103,
        38203,
    ]
    # upstream's own vector: T=2 P=2 and rank 1 give 38107 for the last worker and 38204 for the scheduler
    wide = Settings(argv_of(DECODE, kv_json("kv_consumer", "MooncakeD2RHConnectorV1")), {})
    wide.parallel.tp, wide.parallel.pp = 2, 2
    assert wide.kv.pull_ports(1, wide.parallel) == [38104, 38105, 38106, 38107]
    assert wide.kv.ready_port(1, wide.parallel) == 38204


# The model and its parts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3, 16, 64, 100])
def test_a_digest_survives_its_journey_in_pieces(parts: int) -> None:
    digest = text.Prompt("prompt", 1).digest
    pieces = text.split_digest(digest, parts)
    assert len(pieces) == parts
    assert all(pieces)
    assert text.join_digest(pieces) == digest
    if parts > 1:
        assert text.join_digest(pieces[1:]) != digest


def test_prompts() -> None:
    assert text.read_prompt({"prompt": "x" * 9}, chat=False).tokens == 3
    assert text.read_prompt({"prompt": [5, 6]}, chat=False).tokens == 2
    assert text.read_prompt({"prompt": ["a"]}, chat=False).digest == text.read_prompt({"prompt": "a"}, False).digest
    wrong: list[Any] = [None, "", [], ["a", "b"], {}]
    for prompt in wrong:
        with pytest.raises(RequestError):
            text.read_prompt({"prompt": prompt}, chat=False)
    with pytest.raises(RequestError):
        text.read_prompt({"prompt": "x"}, chat=True)


def test_names_of_ranks() -> None:
    assert ranks_text({3}) == "rank 3"
    assert ranks_text({1, 4, 5, 6, 9}) == "ranks 1, 4-6, 9"


def test_it_starts_without_the_heavy_modules() -> None:
    heavy = {"typing", "argparse", "http", "email", "dataclasses", "urllib", "asyncio", "ssl"}
    probe = "import sys; sys.path.insert(0, sys.argv[1]); import vllm_sim.cli; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", probe, str(PACKAGE.parent)]
    loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert not heavy & set(loaded)
