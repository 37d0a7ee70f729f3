# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The inventory contract: every variable, and every kind of value, good and bad."""

from __future__ import annotations

import re
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import variables
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.variables import VARIABLES, BadValue, convert

# name, value, what it becomes, whether text was converted
GOOD: list[tuple[str, t.Any, t.Any, bool]] = [
    ("pd_tp_size", 1, 1, False),
    ("pd_tp_size", 8, 8, False),
    ("pd_tp_size", "8", 8, True),
    ("pd_tp_size", " 8 ", 8, True),
    ("pd_tp_size", "08", 8, True),
    ("pd_kv_port", 1, 1, False),
    ("pd_kv_port", 65535, 65535, False),
    ("pd_dp_rank_start", 0, 0, False),
    ("pd_dp_rank_start", "0", 0, True),
    ("pd_dp_size_local", -1, -1, False),
    ("pd_dp_size_local", "-1", -1, True),
    ("pd_kv_release_timeout", -1, -1, False),
    ("pd_qos_priority", 0, 0, False),
    ("pd_qos_priority", 4, 4, False),
    ("pd_model_is_moe", True, True, False),
    ("pd_model_is_moe", False, False, False),
    ("pd_model_is_moe", "yes", True, True),
    ("pd_model_is_moe", "OFF", False, True),
    ("pd_model_is_moe", " true ", True, True),
    ("pd_hardware", "a3", "a3", False),
    ("pd_connector", "MooncakeHybridConnector", "MooncakeHybridConnector", False),
    *(
        ("pd_image", image, image, False)
        for image in (
            *(
                "vllm",
                "vllm:latest",
                "quay.io/ascend/vllm-ascend:v0.23.0-a3",
                "Registry.example:5000/a__b/c.d-e/f:V1_x",
            ),
            *("localhost/x@sha256:" + "0" * 64, "e/x:v1@sha256:" + "a" * 64, "sha256:" + "0" * 64),
        )
    ),
    *(
        ("pd_vllm_ascend_version", version, version, False)
        for version in ("v0.23.0", "0.23.0", "v0.21.0rc1", "v0.23.0.post1", "v0.11.0-dev", "main", "nightly-main")
    ),
    ("pd_cann_version", "8.3.RC2", "8.3.RC2", False),
    ("pd_cluster_name", "pd", "pd", False),
    ("pd_cluster_name", "Demo_1.2-x", "Demo_1.2-x", False),
    ("pd_nic", "eth0", "eth0", False),
    ("pd_nic", "bond0.100", "bond0.100", False),
    ("pd_nic", "enp189s0f0np0", "enp189s0f0np0", False),
    ("pd_nic", "eth0:1", "eth0:1", False),
    ("pd_model_path", "/models/m", "/models/m", False),
    ("pd_model_path", "/models/m//", "/models/m", False),
    ("pd_model_path", "/a b/模型", "/a b/模型", False),
    ("pd_node_ip", "192.0.2.1", "192.0.2.1", False),
    ("pd_node_ip", " 192.0.2.1 ", "192.0.2.1", False),
    ("pd_node_ip", "127.0.0.1", "127.0.0.1", False),
    ("pd_chips", [0], [0], False),
    ("pd_chips", [7, 3], [7, 3], False),
    ("pd_chips", (0, 1), [0, 1], False),
    ("pd_chips", ["0", " 1"], [0, 1], True),
    ("pd_chips", [0, "1"], [0, 1], True),
    ("pd_roce_addresses", {}, {}, False),
    ("pd_roce_addresses", {0: "192.0.2.1", "1": "192.0.2.2"}, {"0": "192.0.2.1", "1": "192.0.2.2"}, False),
    ("pd_roce_addresses", {"01": "192.0.2.1"}, {"1": "192.0.2.1"}, False),
    ("pd_mounts", [], [], False),
    ("pd_mounts", ["/a:/b", "/a b:/c:ro", "/d:/d:rw"], ["/a:/b", "/a b:/c:ro", "/d:/d:rw"], False),
    ("pd_kv_transfer_config", {"a": [1, {"b": None}]}, {"a": [1, {"b": None}]}, False),
    ("pd_engine_args", {"max-model-len": 1, "a.b_c": True, "X": None}, None, False),
    ("pd_engine_args", {"no-x": True, "x": False}, None, False),
    ("pd_engine_env", {"A": "1", "_b2": None, "C": {"x": 1}, "D": True}, None, False),
    ("pd_served_model_name", "org/model:v1 (test)", "org/model:v1 (test)", False),
]

BAD: dict[str, list[t.Any]] = {
    "pd_tp_size": [0, -1, 1.0, 8.5, True, None, "", "x", "8x", "1e3", "0x8", "8.0", [], {}, [8]],
    "pd_kv_port": [0, -1, 65536, 10**30, "65536"],
    "pd_dp_rank_start": [-1, "-1", False],
    "pd_dp_size_local": [0, -2, "0"],
    "pd_qos_priority": [5, -1, True, "high"],
    "pd_model_is_moe": [None, 0, 1, "1", "", "maybe", "truee", [], [True]],
    "pd_hardware": [None, "", "A3", "a3 ", "850E", 3, True, ["a3"]],
    "pd_connector": ["MooncakeD2RHConnector", "mooncakeconnectorv1", "MultiConnector"],
    "pd_vllm_ascend_version": [
        "",
        " ",
        "V0.23.0",
        "v0.23.0 ",
        " v0.23.0",
        "v0.23.0-a3",
        "0.18.0-openeuler",
        0.23,
        1,
        True,
        ["v0"],
        "a b",
    ],
    "pd_image": [
        *(None, "", "Bad Image:", "vllm:", "a b", "Upper/Case/x", "x:v1:v2", "x:-v1", "x@sha256:0", "x\n", 1, ["x"]),
        *("http://quay.io/x", "x/", "/x", "x//y", "x:" + "t" * 129),
    ],
    "pd_cluster_name": [None, "", "p", "-pd", ".pd", "a b", "a/b", "é1", 12, "pd\n"],
    "pd_nic": [None, "", "eth 0", "eth0;x", "a" * 16, 0, ["eth0"], "eth0\n", "../x"],
    "pd_model_path": [None, "", "models/m", "~/m", "$HOME/m", 1, ["/m"], "/a\0", "/a\nb", "/", "//"],
    "pd_node_ip": [
        *(None, "", 0, 3221225985, True, ["192.0.2.1"], "host.example"),
        *("192.0.2", "192.0.2.256", "192.0.2.1.1", "192.0.2.01x", "192.0.2.1/24", "192.0.2.1:80"),
        *("192.0.2.1,192.0.2.2", "0.0.0.0", "255.255.255.255", "224.0.0.1"),
        *("::1", "2001:db8::1", "[2001:db8::1]", "fe80::1%eth0"),
    ],
    "pd_chips": [
        *(None, [], "0,1", "0-7", 8, {0: 1}, [-1], [True], [1.0], ["x"], [None], [[0]]),
        *([0, 0], [1, "1"], [0, 1, 2, 1]),
    ],
    "pd_roce_addresses": [[], {"x": "192.0.2.1"}, {"0": "x"}, {"0": "192.0.2.1", 1: "192.0.2.1"}],
    "pd_mounts": ["/a:/b", ["/a"], ["a:/b"], ["/a:b"], ["/a:/b:x"], ["/a:/b:ro:z"], [1], {}],
    "pd_kv_transfer_config": [None, [], "x", '{"a": 1}', {1: 2}, {None: 1}],
    "pd_engine_args": [["x"], "x", {"--x": 1}, {"-x": 1}, {"": 1}, {"a b": 1}, {"no-x": False}],
    "pd_engine_env": [["A=1"], "A=1", {"A B": 1}, {"1A": 1}, {"A=": 1}, {"": 1}],
    "pd_served_model_name": [None, "", "  ", 1, True, ["x"], "a\0b", "-x", "--port"],
}


@pytest.mark.parametrize(("name", "value", "expected", "converted"), GOOD, ids=repr)
def test_good_value(name: str, value: t.Any, expected: t.Any, converted: bool) -> None:
    wanted = value if expected is None else expected
    made, was_text = convert(VARIABLES[name], value)
    assert made == wanted
    assert type(made) is type(wanted)
    assert was_text is converted


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values], ids=repr
)
def test_bad_value(name: str, value: t.Any) -> None:
    with pytest.raises(BadValue) as problem:
        convert(VARIABLES[name], value)
    assert len(str(problem.value)) > 5


def test_good_values_cover_every_kind() -> None:
    assert {VARIABLES[name].kind for name, *_rest in GOOD} == {variable.kind for variable in VARIABLES.values()}
    assert {VARIABLES[name].kind for name in BAD} == {variable.kind for variable in VARIABLES.values()}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("pd_chips", ["²"]),
        pytest.param("pd_chips", ["9" * 5000]),
        pytest.param("pd_kv_port", "9" * 5000),
    ],
    ids=["superscript", "long chip", "long number"],
)
def test_text_that_only_looks_like_a_number(name: str, value: t.Any) -> None:
    with pytest.raises(BadValue):
        convert(VARIABLES[name], value)


@pytest.mark.parametrize("name", ["pd_dp_size", "pd_tp_size", "pd_pp_size", "pd_dp_rank_start"])
def test_sizes_have_an_upper_limit(name: str) -> None:
    with pytest.raises(BadValue):
        convert(VARIABLES[name], 10**9)


@pytest.mark.parametrize("path", ["/models/a:b", "/models/a:ro"])
def test_a_colon_cannot_be_mounted(path: str) -> None:
    with pytest.raises(BadValue):
        convert(VARIABLES["pd_model_path"], path)


# The table itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_is_well_formed(name: str) -> None:
    variable = VARIABLES[name]
    assert re.fullmatch(r"pd_[a-z0-9]+(_[a-z0-9]+)*", name)
    assert variable.scope in ("C", "I", "H")
    assert variable.meaning.endswith((".", ")"))
    assert bool(variable.choices) is (variable.kind == "choice")
    assert variable.default is None or not variable.required
    assert not variable.physical or variable.scope == "H"
    if variable.minimum is not None and variable.maximum is not None:
        assert variable.minimum < variable.maximum


@pytest.mark.parametrize("name", [name for name, variable in VARIABLES.items() if variable.default is not None])
def test_defaults_are_values_of_their_variable(name: str) -> None:
    variable = VARIABLES[name]
    assert convert(variable, variable.default) == (variable.default, False)


def test_the_contract() -> None:
    """Names and scopes are public: changing one needs a changelog entry."""
    scopes: dict[str, set[str]] = {"C": set(), "I": set(), "H": set()}
    for name, variable in VARIABLES.items():
        scopes[variable.scope].add(name)
    assert scopes["C"] >= {
        "pd_cluster_name",
        "pd_hardware",
        "pd_fabric",
        "pd_topology",
        "pd_vllm_ascend_version",
        "pd_cann_version",
        "pd_mooncake_version",
        "pd_hixl_version",
        "pd_image",
        "pd_model_path",
        "pd_served_model_name",
        "pd_model_is_moe",
        "pd_model_family",
        "pd_connector",
        "pd_engine_args_common",
        "pd_engine_env_common",
        "pd_kv_pool",
        "pd_kv_release_timeout",
        "pd_port_reserve",
        "pd_container_network",
        "pd_proxy_port",
        "pd_proxy_workers",
        "pd_runtime",
        "pd_engine_launcher",
        "pd_instances",
    }
    assert scopes["I"] >= {
        "pd_dp_size",
        "pd_tp_size",
        "pd_pp_size",
        "pd_pcp_size",
        "pd_dcp_size",
        "pd_dp_mode",
        "pd_dp_address",
        "pd_dp_rpc_port",
        "pd_api_port",
        "pd_kv_port",
        "pd_engine_args",
        "pd_engine_env",
        "pd_qos_priority",
    }
    assert scopes["H"] >= {
        "pd_chips_per_node",
        "pd_chips",
        "pd_mapped_chips",
        "pd_node_ip",
        "pd_nic",
        "pd_roce_addresses",
        "pd_mounts",
        "pd_dp_size_local",
        "pd_dp_rank_start",
        "pd_engine_args_extra",
        "pd_engine_env_extra",
        "pd_kv_transfer_config",
    }


def test_required() -> None:
    required = {name for name, variable in VARIABLES.items() if variable.required}
    assert required == {"pd_hardware", "pd_model_path", "pd_served_model_name", "pd_dp_size", "pd_tp_size"}


def test_run_switches_are_no_variables() -> None:
    assert not set(variables.RUN_SWITCHES) & set(VARIABLES)


def test_every_wrong_roce_address_is_named_with_its_chip() -> None:
    with pytest.raises(BadValue) as caught:
        convert(VARIABLES["pd_roce_addresses"], {0: "192.0.2.1", 3: None, 7: "300.1.2.3"})
    assert "chip 3: None must" in str(caught.value)
    assert "chip 7: '300.1.2.3' must be an IPv4 address" in str(caught.value)
