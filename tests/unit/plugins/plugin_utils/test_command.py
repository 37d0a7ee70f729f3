# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Environment and argument vector: every word byte for byte, no shell in between."""

from __future__ import annotations

import json
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import command, tables
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    DECODE_ARGS,
    PREFILL_ARGS,
    Source,
    Variables,
    argv_of,
    base,
    only,
    placement,
    planned,
    rules_of,
    told,
    value_of,
)


def layered(common: Variables, instance: Variables, host: Variables) -> Source:
    """Options of prefill from all three layers; decode keeps BASE's."""
    return base(
        prefill={
            "pd_engine_args_common": ABSENT,
            "pd_engine_args": {**PREFILL_ARGS, **instance},
        },
        all={"pd_engine_args_common": common},
        p1={"pd_engine_args_common": common, "pd_engine_args_extra": host},
        p2={"pd_engine_args_common": common},
    )


def own_words(argv: list[str]) -> list[str]:
    """What the options of a test became: the words of pd_engine_args without BASE's own."""
    words = argv[argv.index("--served-model-name") + 2 : argv.index("--kv-transfer-config")]
    for option in ("--block-size", "--speculative-config"):
        position = words.index(option)
        del words[position : position + 2]
    return words


# One value ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--x"]),
        (False, ["--no-x"]),
        (None, []),
        (1, ["--x", "1"]),
        (0, ["--x", "0"]),
        (-1, ["--x=-1"]),
        (0.9, ["--x", "0.9"]),
        (1.0, ["--x", "1.0"]),
        (1e-07, ["--x", "1e-07"]),
        (2**63, ["--x", "9223372036854775808"]),
        ("text", ["--x", "text"]),
        ("", ["--x", ""]),
        (" a  b ", ["--x", " a  b "]),
        ("it's", ["--x", "it's"]),
        ('say "so"', ["--x", 'say "so"']),
        ("$HOME", ["--x", "$HOME"]),
        ("$(id) `id` ; rm -rf / && true | cat > /x", ["--x", "$(id) `id` ; rm -rf / && true | cat > /x"]),
        ("a\\b\\n", ["--x", "a\\b\\n"]),
        ("one\ntwo", ["--x", "one\ntwo"]),
        ("模型 ☃", ["--x", "模型 ☃"]),
        ("-x", ["--x=-x"]),
        ("--flag", ["--x=--flag"]),
        ("-", ["--x=-"]),
        ("a=b", ["--x", "a=b"]),
        ("{{ x }}", ["--x", "{{ x }}"]),
        ({"a": 1}, ["--x", '{"a":1}']),
        ({}, ["--x", "{}"]),
        ([], ["--x", "[]"]),
        ([1, "2", None, True], ["--x", '[1,"2",null,true]']),
        ({"模": ["☃"]}, ["--x", '{"模":["☃"]}']),
        ({"q": 'it\'s "so" $HOME \\ \n'}, ["--x", '{"q":"it\'s \\"so\\" $HOME \\\\ \\n"}']),
    ],
)
def test_value(value: t.Any, words: list[str]) -> None:
    assert own_words(argv_of(layered({}, {}, {"x": value}))) == words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (False, "false"),
        (1, "1"),
        (0.5, "0.5"),
        ("expandable_segments:True", "expandable_segments:True"),
        ("", ""),
        ("$HOME:${LD_LIBRARY_PATH:-}", "$HOME:${LD_LIBRARY_PATH:-}"),
        ('it\'s "so"\n', 'it\'s "so"\n'),
        ("模型", "模型"),
        ({"version": "1.3"}, '{"version":"1.3"}'),
        (["a"], '["a"]'),
        (None, None),
    ],
)
def test_environment_value(value: t.Any, text: str | None) -> None:
    source = base(p1={"pd_engine_env_extra": {"X": value}})
    for process in placement(planned(source), "p-a", "p1").processes:
        assert process.env["X"] == text
        assert "X" in process.env


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("max-model-len", "--max-model-len"),
        ("max_model_len", "--max_model_len"),
        ("attention_config.indexer_kv_dtype", "--attention_config.indexer_kv_dtype"),
        ("a.b.c-d_e", "--a.b.c-d_e"),
        ("O", "--O"),
    ],
)
def test_names_are_kept_verbatim(name: str, word: str) -> None:
    assert value_of(argv_of(layered({}, {}, {name: "v"})), word) == "v"


@pytest.mark.parametrize(("value", "word"), [(True, "true"), (False, "false")])
def test_a_dotted_truth_value_has_a_value(value: bool, word: str) -> None:
    argv = argv_of(layered({}, {}, {"attention_config.use_x": value}))
    assert value_of(argv, "--attention_config.use_x") == word


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cudagraph-capture-sizes", [1, 2, 4], ["1", "2", "4"]),
        ("lora-modules", [{"name": "a", "path": "/a"}, "b=/b"], ['{"name":"a","path":"/a"}', "b=/b"]),
    ],
)
def test_lists_of_options_that_take_several_words(name: str, value: t.Any, words: list[str]) -> None:
    """vLLM: argument --cudagraph-capture-sizes: Value [1,2,4] cannot be converted to int."""
    assert own_words(argv_of(layered({}, {}, {name: value}))) == [f"--{name}", *words]


@pytest.mark.parametrize("name", ["--max-model-len", "-O", "", " x", "a b", "a=b", "x;y", "é", "a\n"])
def test_names_that_are_no_options(name: str) -> None:
    finding = only(base(p1={"pd_engine_args_extra": {name: 1}}), "variable-value")
    assert (finding.host, finding.variable) == ("p1", "pd_engine_args_extra")


@pytest.mark.parametrize("name", ["", "1X", "A-B", "A B", "A=B", "é", "A\n", "A.B"])
def test_names_that_are_no_environment_variables(name: str) -> None:
    finding = only(base(p1={"pd_engine_env_extra": {name: "1"}}), "variable-value")
    assert (finding.host, finding.variable) == ("p1", "pd_engine_env_extra")


@pytest.mark.parametrize("variable", ["pd_engine_args_extra", "pd_engine_env_extra"])
def test_nul(variable: str) -> None:
    finding = only(base(p1={variable: {"X": "a\0b"}}), "variable-value")
    assert "X" in finding.message


def test_a_nul_inside_json_is_escaped() -> None:
    word = value_of(argv_of(layered({}, {}, {"x": {"y": "\0"}})), "--x")
    assert word == '{"y":"\\u0000"}'


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), {"a": float("nan")}, [float("inf")]])
@pytest.mark.parametrize("variable", ["pd_engine_args_extra", "pd_engine_env_extra", "pd_kv_transfer_config"])
def test_numbers_that_are_none(variable: str, value: t.Any) -> None:
    assert "variable-value" in rules_of(base(p1={variable: {"X": value}}))


def test_not_a_number() -> None:
    assert rules_of(base(p1={"pd_engine_args_extra": {"x": float("nan")}})) == ["variable-value"]


# Layers -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("common", "instance", "host", "words"),
    [
        ({"x": 1}, {}, {}, ["--x", "1"]),
        ({"x": 1}, {"x": 2}, {}, ["--x", "2"]),
        ({"x": 1}, {"x": 2}, {"x": 3}, ["--x", "3"]),
        ({"x": 1}, {}, {"x": None}, []),
        ({"x": 1}, {"x": None}, {}, []),
        ({"x": 1}, {"x": None}, {"x": 3}, ["--x", "3"]),
        ({"x": None}, {"x": 2}, {}, ["--x", "2"]),
        ({"x": True}, {"x": False}, {}, ["--no-x"]),
        ({"x": False}, {"x": True}, {}, ["--x"]),
        ({"x": True}, {"no-x": True}, {}, ["--no-x"]),
        ({"no-x": True}, {"x": True}, {}, ["--x"]),
        ({"no-x": True}, {"x": False}, {}, ["--no-x"]),
        ({"no-x": True}, {"no_x": True}, {}, ["--no_x"]),
        ({"no-x": True}, {"x": None}, {}, []),
        ({"no-x": True}, {"no-x": None}, {}, []),
        ({"x": True}, {"no-x": None}, {}, []),
        ({"x": False}, {}, {"no_x": None}, []),
        ({"a-x": 1}, {"a_x": 2}, {}, ["--a_x", "2"]),
        ({"a_x": 1}, {"a-x": None}, {}, []),
        ({"x": {"a": 1, "b": 2}}, {"x": {"a": 3}}, {}, ["--x", '{"a":3}']),
        ({"x.a": 1}, {"x.b": 2}, {}, ["--x.a", "1", "--x.b", "2"]),
        ({"x.a_b": 1}, {"x.a-b": 2}, {}, ["--x.a_b", "1", "--x.a-b", "2"]),
        ({"x": 1}, {"x": True}, {}, ["--x"]),
        ({"x": 1}, {"x": False}, {}, ["--no-x"]),
    ],
)
def test_layers(common: Variables, instance: Variables, host: Variables, words: list[str]) -> None:
    assert own_words(argv_of(layered(common, instance, host))) == words


def test_order_is_that_of_the_first_mention() -> None:
    argv = argv_of(layered({"one": 1, "two": 2}, {"three": 3, "one": 9}, {"four": 4}))
    given = [word for word in argv if word in ("--one", "--two", "--three", "--four")]
    assert given == ["--one", "--two", "--three", "--four"]
    assert value_of(argv, "--one") == "9"


def test_a_hosts_own_options_stay_there() -> None:
    source = base(d2={"pd_engine_args_extra": {"x": 1}})
    assert "--x" not in argv_of(source, "d-a", "d1", 15)
    for process in range(16):
        assert "--x" in argv_of(source, "d-a", "d2", process)


def test_an_instances_options_reach_all_of_its_hosts_and_no_other() -> None:
    source = base(decode={"pd_engine_args": {**DECODE_ARGS, "x": 1}})
    assert "--x" in argv_of(source, "d-a", "d1")
    assert "--x" in argv_of(source, "d-a", "d2")
    assert "--x" not in argv_of(source, "p-b", "p2")


@pytest.mark.parametrize(
    ("common", "instance", "host", "value"),
    [
        ({"X": "1"}, {}, {}, "1"),
        ({"X": "1"}, {"X": "2"}, {}, "2"),
        ({"X": "1"}, {"X": "2"}, {"X": "3"}, "3"),
        ({"X": "1"}, {"X": None}, {}, None),
        ({"X": "1"}, {"X": None}, {"X": "3"}, "3"),
    ],
)
def test_environment_layers(common: Variables, instance: Variables, host: Variables, value: str | None) -> None:
    source = base(
        all={"pd_engine_env_common": common}, prefill={"pd_engine_env": instance}, p1={"pd_engine_env_extra": host}
    )
    assert placement(planned(source), "p-a", "p1").processes[0].env["X"] == value


# What vLLM would end at -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-enable-prefix-caching", "no_enable_prefix_caching"])
def test_a_negated_flag_given_as_text(name: str) -> None:
    source = base(p1={"pd_engine_args_extra": {name: "true"}})
    assert rules_of(source) == ["text-option"]
    assert own_words(argv_of(source)) == [f"--{name}"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable-expert-parallel", "maybe"),
        ("enforce-eager", 1),
        ("max-model-len", True),
        ("max-model-len", False),
        ("seed", {"a": 1}),
        ("cudagraph-capture-sizes", []),
        ("lora-modules", ["-x=1"]),
    ],
)
def test_values_that_an_option_does_not_take(name: str, value: t.Any) -> None:
    """A flag with a word, an option without one: vLLM ends at them, after the fleet has been started."""
    assert rules_of(base(p1={"pd_engine_args_extra": {name: value}}))


@pytest.mark.parametrize("name", ["hf-overrides", "limit-mm-per-prompt", "eplb-config", "kv-events-config"])
def test_python_text_in_any_json_option(name: str) -> None:
    assert "json-option" in rules_of(base(p1={"pd_engine_args_extra": {name: "{'a': True}"}}))


@pytest.mark.parametrize(
    ("name", "value"), [("uds", "/run/vllm.sock"), ("ssl-certfile", "/x.pem"), ("nnodes", 2), ("grpc", True)]
)
def test_options_behind_which_nobody_finds_the_api(name: str, value: t.Any) -> None:
    """Gate, proxy and status ask http://address:port."""
    assert planned(base(p1={"pd_engine_args_extra": {name: value}})).findings


# What the plan sets ---------------------------------------------------------------------------------------------------


def test_the_whole_command_of_one_rank() -> None:
    argv = argv_of(base(), "d-a", "d2", 3)
    kv = {
        "kv_connector": "MooncakeConnectorV1",
        "kv_role": "kv_consumer",
        "kv_port": "36200",
        "kv_connector_extra_config": {
            "prefill": {"dp_size": 2, "tp_size": 8},
            "decode": {"dp_size": 32, "tp_size": 1},
        },
    }
    assert argv == [
        "vllm",
        "serve",
        "/models/DeepSeek-r1_w8a8_mtp",
        *("--host", "192.0.2.22", "--port", "7103"),
        *("--data-parallel-size", "32", "--data-parallel-rank", "19"),
        *("--data-parallel-address", "192.0.2.21", "--data-parallel-rpc-port", "12321"),
        *("--tensor-parallel-size", "1"),
        *("--served-model-name", "ds_r1"),
        *("--block-size", "128"),
        *("--speculative-config", '{"num_speculative_tokens":3,"method":"deepseek_mtp"}'),
        *("--kv-transfer-config", json.dumps(kv, separators=(",", ":"))),
    ]


def test_the_whole_environment_of_one_rank() -> None:
    env = placement(planned(base()), "p-b", "p2").processes[1].env
    assert env == {
        **dict.fromkeys(("http_proxy", "https_proxy", "ftp_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY")),
        **tables.image_shell_environment(),
        "HCCL_IF_IP": "192.0.2.12",
        "VLLM_HOST_IP": "192.0.2.12",
        "GLOO_SOCKET_IFNAME": "eth-data0",
        "TP_SOCKET_IFNAME": "eth-data0",
        "HCCL_SOCKET_IFNAME": "eth-data0",
        "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "480",
        "ASCEND_RT_VISIBLE_DEVICES": "8,9,10,11,12,13,14,15",
    }


def test_sizes_of_one_are_left_out() -> None:
    argv = argv_of(base())
    for option in ("--pipeline-parallel-size", "--prefill-context-parallel-size", "--decode-context-parallel-size"):
        assert option not in argv


def test_sizes_above_one_are_given() -> None:
    argv = argv_of(base(prefill={"pd_tp_size": 4, "pd_pp_size": 2}))
    assert value_of(argv, "--pipeline-parallel-size") == "2"
    assert value_of(argv, "--tensor-parallel-size") == "4"


@pytest.mark.parametrize("name", sorted(command.PLANNED_ARGUMENTS))
def test_planned_options_are_refused_in_every_layer(name: str) -> None:
    value = "not what the plan has"
    for layer in ("pd_engine_args_common", "pd_engine_args_extra"):
        finding = only(base(p1={layer: {name: value}}), "planned-argument", "p1")
        assert (finding.variable, finding.value) == (f"{layer}.{name}", value)
        assert command.PLANNED_ARGUMENTS[name] in finding.fix


@pytest.mark.parametrize(
    "name",
    ["tensor_parallel_size", "tp", "dp", "data_parallel_size", "dpl", "dpa", "dpp", "dpr", "dpn", "pp", "pcp", "dcp"],
)
def test_planned_options_are_refused_in_every_spelling(name: str) -> None:
    finding = only(base(p1={"pd_engine_args_extra": {name: 999}}), "planned-argument", "p1")
    assert finding.variable == f"pd_engine_args_extra.{name}"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor-parallel-size", 8),
        ("tensor_parallel_size", "8"),
        ("tp", 8),
        ("data-parallel-size", 2),
        ("data-parallel-size-local", 2),
        ("host", "192.0.2.11"),
        ("data-parallel-address", "192.0.2.11"),
        ("data-parallel-rpc-port", 12321),
        ("pipeline-parallel-size", 1),
        pytest.param("served-model-name", "ds_r1"),
        pytest.param("model", "/models/DeepSeek-r1_w8a8_mtp"),
    ],
)
def test_repeating_the_plan_does_no_harm_and_is_not_doubled(name: str, value: t.Any) -> None:
    source = base(p1={"pd_engine_args_extra": {name: value}})
    assert not planned(source).findings, told(planned(source).findings)
    argv = argv_of(source)
    assert argv.count(f"--{name}") == (1 if f"--{name}" in argv_of(base()) else 0)


def test_a_planned_option_never_reaches_the_command() -> None:
    argv = argv_of(base(p1={"pd_engine_args_extra": {"headless": True, "port": 1, "tp": 4}}))
    assert "--headless" not in argv
    assert "--tp" not in argv
    assert value_of(argv, "--port") == "7100"


@pytest.mark.parametrize("name", ["tensor-parallel", "data-parallel-rpc", "served-model", "headles"])
def test_planned_options_are_refused_when_they_are_cut_short(name: str) -> None:
    assert "planned-argument" in rules_of(base(p1={"pd_engine_args_extra": {name: 4}}))


@pytest.mark.parametrize("layer", ["pd_engine_env_common", "pd_engine_env", "pd_engine_env_extra"])
def test_visible_devices_are_the_plans(layer: str) -> None:
    for value in ("0,1", None, [0, 1]):
        source = base(prefill={layer: {"ASCEND_RT_VISIBLE_DEVICES": value}}, decode={layer: ABSENT})
        findings = [f for f in planned(source).errors if f.rule == "planned-environment"]
        assert {f.variable for f in findings} == {f"{layer}.ASCEND_RT_VISIBLE_DEVICES"}
        devices = placement(planned(source), "p-a", "p1").processes[0].env["ASCEND_RT_VISIBLE_DEVICES"]
        assert devices == "0,1,2,3,4,5,6,7"


def test_the_users_environment_wins() -> None:
    source = base(
        all={
            "pd_nic": ABSENT,
            "pd_engine_env_common": {"HCCL_SOCKET_IFNAME": "bond0", "http_proxy": "http://x:1", "NO_PROXY": "*"},
        }
    )
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    env = placement(plan, "p-a", "p1").processes[0].env
    assert env["HCCL_SOCKET_IFNAME"] == "bond0"
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert env["http_proxy"] == "http://x:1"


@pytest.mark.parametrize(
    ("variable", "name", "value"),
    [
        pytest.param("pd_node_ip", "HCCL_IF_IP", "198.51.100.1"),
        pytest.param("pd_node_ip", "VLLM_HOST_IP", None),
        ("pd_nic", "TP_SOCKET_IFNAME", "bond0"),
        ("pd_kv_release_timeout", "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", 1800),
    ],
)
def test_two_explicit_values_are_a_warning_that_names_both(variable: str, name: str, value: t.Any) -> None:
    finding = only(base(p1={"pd_engine_env_extra": {name: value}}), "environment-overrides")
    assert finding.severity == "warning"
    assert finding.host == "p1"
    assert variable in finding.message
    assert name in finding.message


@pytest.mark.parametrize("seconds", ["5", 10, "0"])
def test_a_release_timeout_by_environment_has_the_same_bound(seconds: t.Any) -> None:
    env = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": seconds}
    source = base(all={"pd_kv_release_timeout": ABSENT}, prefill={"pd_engine_env": env})
    assert planned(source).errors


def test_a_release_timeout_of_many_digits() -> None:
    planned(base(prefill={"pd_engine_env": {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "9" * 5000}}))


def test_ranks_of_one_placement_share_nothing_that_can_be_changed() -> None:
    """What differs per rank is per rank; nobody's environment is another's."""
    first, second = placement(planned(base()), "p-a", "p1").processes
    assert first.env is not second.env
    assert first.argv is not second.argv


# Helpers that the rules use -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "canonical"),
    [
        ("max-model-len", 1, "max-model-len"),
        ("max_model_len", 1, "max-model-len"),
        ("no-enable-x", True, "enable-x"),
        ("no_enable_x", True, "enable-x"),
        ("no-enable-x", "text", "no-enable-x"),
        ("enable-x", False, "enable-x"),
        ("tp", 1, "tensor-parallel-size"),
        ("dpr", 1, "data-parallel-rank"),
        ("a_b.c_d", 1, "a-b.c_d"),
        ("no-a.b", True, "no-a.b"),
        ("nothing", True, "nothing"),
    ],
)
def test_canonical(name: str, value: t.Any, canonical: str) -> None:
    assert command.canonical(name, value) == canonical


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x", True, True),
        ("x", False, False),
        ("no-x", True, False),
        ("no_x", True, False),
        ("x", 3, 3),
        ("x", "true", "true"),
    ],
)
def test_option(name: str, value: t.Any, expected: t.Any) -> None:
    args = {command.canonical(name, value): command.Argument(name, value, "pd_engine_args")}
    assert command.option(args, "x") == expected
    assert command.option(args, "y") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ("{'a': 1}", {}),
        ("[1]", {}),
        ("", {}),
        (True, {}),
        (3, {}),
        ([1], {}),
    ],
)
def test_json_option(value: t.Any, expected: t.Any) -> None:
    args = {"x": command.Argument("x", value, "pd_engine_args")}
    assert command.json_option(args, "x") == expected


def test_json_option_that_is_not_given() -> None:
    assert command.json_option({}, "x") == {}


@pytest.mark.parametrize(
    ("cluster", "names"),
    [
        ({"pd_image": "registry.example/ai/serving:v0.17.0rc1-a3"}, 2),
        ({"pd_image": "e/vllm-ascend:main-a3"}, 2),
        ({"pd_image": "registry.example:5000/vllm-ascend"}, 2),
        ({"pd_vllm_ascend_version": "main"}, 2),
        ({"pd_image": "e/vllm-ascend:v0.23.0-a3"}, 1),
        ({"pd_image": "private/own:1.2", "pd_vllm_ascend_version": "v0.23.0"}, 1),
    ],
)
def test_an_image_of_unknown_version_gets_every_name_of_the_release_limit(cluster: dict[str, str], names: int) -> None:
    env = placement(planned(base(all=cluster)), "p-a", "p1").processes[0].env
    both = {"VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "480", "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "480"}
    assert {name: value for name, value in env.items() if "ABORT" in name} == dict(list(both.items())[:names])
