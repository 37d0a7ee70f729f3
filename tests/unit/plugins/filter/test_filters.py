# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Filters: through real templates where what matters is how they are called, as functions otherwise."""

from __future__ import annotations

import json
import typing as t
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.ascend.pd_serving.plugins.filter.plan import plan
from ansible_collections.ascend.pd_serving.plugins.filter.port_ranges import port_ranges
from ansible_collections.ascend.pd_serving.plugins.filter.visible_devices import visible_devices
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import inventories
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import as_json, base, planned

ROOT = Path(__file__).resolve().parents[4]
LAYERWISE = "MooncakeLayerwiseConnector"

Render = t.Callable[..., t.Any]


# plan ---------------------------------------------------------------------------------------------------------------


def test_plan_is_the_planners() -> None:
    assert plan(base()) == json.loads(planner.to_json(planned(base())))


def test_plan_of_hostvars() -> None:
    """What a playbook has: hostvars | ascend.pd_serving.plan."""
    made = plan(inventories.hostvars_of(ROOT / "inventories" / "2p1d"))
    assert [placement["host"] for placement in made["placements"]] == ["p1", "p2", "d1", "d2"]
    assert made["findings"] == []


def test_plan_never_fails_for_a_value() -> None:
    made = plan(base(p1={"pd_kv_port": 20002}))
    assert [finding["rule"] for finding in made["findings"]] == ["kv-port-reserve"]


def test_plan_leaves_its_input_alone() -> None:
    source = base()
    before = json.dumps(source)
    plan(source)
    assert json.dumps(source) == before


@pytest.mark.parametrize("value", [None, "x", 1, [], {}, {"groups": {}}, {"hosts": {}}])
def test_plan_of_something_else(value: t.Any) -> None:
    with pytest.raises(AnsibleFilterError, match="groups and hosts"):
        plan(value)


def test_plan_in_a_template(render: Render) -> None:
    text = (
        "{{ (source | ascend.pd_serving.plan).placements | selectattr('role', 'eq', 'decode') "
        "| map(attribute='dp_rank_start') | list }}"
    )
    assert render(text, source=base()) == [0, 16]
    assert render("{{ (source | ascend.pd_serving.plan).proxy.port }}", source=base()) == 1999


def test_plan_in_a_template_is_the_written_one(render: Render) -> None:
    assert render("{{ source | ascend.pd_serving.plan }}", source=base()) == as_json(base())


# port_ranges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv_port", "options", "expected"),
    [
        (
            36200,
            {"role": "decode", "dp_rank_start": 16, "dp_size_local": 16, "connector": LAYERWISE, "api_port": 7100},
            {"kv_listen": [36216, 36231], "api": [7100, 7115]},
        ),
        (36000, {"role": "prefill", "dp_size_local": 2, "tp_size": 8}, {"kv_listen": [36000, 36015], "api": []}),
        (36200, {"role": "decode", "dp_size_local": 16, "api_port": 7100}, {"kv_listen": [], "api": [7100, 7115]}),
        (30000, {"role": "prefill", "tp_size": 2, "pp_size": 2}, {"kv_listen": [30000, 30003], "api": []}),
        (30000, {"role": "prefill", "tp_size": 2, "pcp_size": 2}, {"kv_listen": [30000, 30003], "api": []}),
        ("36000", {"role": "prefill", "tp_size": "8", "dp_size_local": "2"}, {"kv_listen": [36000, 36015], "api": []}),
        (65535, {"role": "prefill"}, {"kv_listen": [65535, 65535], "api": []}),
    ],
)
def test_port_ranges(kv_port: t.Any, options: dict[str, t.Any], expected: dict[str, list[int]]) -> None:
    assert port_ranges(kv_port, **options) == expected


@pytest.mark.parametrize(
    ("kv_port", "options", "words"),
    [
        (36000, {"role": "proxy"}, "role must be one of prefill, decode"),
        (36000, {"role": "prefill", "connector": "MooncakeStore"}, "connector must be one of MooncakeConnectorV1"),
        ("x", {"role": "prefill"}, "whole number"),
        (None, {"role": "prefill"}, "whole number"),
        ([36000], {"role": "prefill"}, "whole number"),
        (36000, {"role": "prefill", "api_port": "x"}, "whole number"),
        (36000, {"role": "prefill", "tp_size": 0}, "1 or more"),
        (36000, {"role": "prefill", "dp_size_local": -1}, "1 or more"),
        (36000, {"role": "prefill", "dp_rank_start": -1}, "0 or more"),
        (65530, {"role": "prefill", "tp_size": 8}, "65530-65537"),
        (0, {"role": "prefill"}, "leaves 1-65535"),
        (36000, {"role": "decode", "api_port": 65535, "dp_size_local": 2}, "65535-65536"),
    ],
)
def test_port_ranges_refuses(kv_port: t.Any, options: dict[str, t.Any], words: str) -> None:
    with pytest.raises(AnsibleFilterError, match=words):
        port_ranges(kv_port, **options)


@pytest.mark.parametrize("size", ["1.0", "", pytest.param(1.9), pytest.param(True)])
def test_port_ranges_takes_whole_numbers_only(size: t.Any) -> None:
    with pytest.raises(AnsibleFilterError, match="whole number"):
        port_ranges(36000, "prefill", tp_size=size)


@pytest.mark.parametrize("chip", [pytest.param(4.7), pytest.param(True)])
def test_visible_devices_takes_whole_numbers_only(chip: t.Any) -> None:
    with pytest.raises(AnsibleFilterError):
        visible_devices([chip], [0, 1, 4])


def test_port_ranges_in_a_template(render: Render) -> None:
    text = "{{ 36000 | ascend.pd_serving.port_ranges(role='prefill', tp_size=8, dp_size_local=2) }}"
    assert render(text) == {"kv_listen": [36000, 36015], "api": []}


def test_a_refusal_in_a_template_says_why(render: Render) -> None:
    with pytest.raises(Exception, match="role must be one of"):
        render("{{ 36000 | ascend.pd_serving.port_ranges(role='proxy') }}")


def test_port_ranges_agree_with_the_plan() -> None:
    for connector in ("MooncakeConnectorV1", LAYERWISE):
        for own in planned(base(all={"pd_connector": connector})).placements:
            instance = own.instance
            made = port_ranges(
                instance.kv_port,
                instance.role,
                own.dp_rank_start,
                own.dp_size_local,
                instance.tp_size,
                connector=connector,
                api_port=instance.api_port,
            )
            assert made["kv_listen"] == list(own.kv_listen or ())
            assert made["api"] == [own.processes[0].api_port, own.processes[-1].api_port]


# visible_devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chips", "mapped", "devices"),
    [
        ([4, 7], [0, 3, 4, 7], "2,3"),
        ([4, 7], [7, 4, 3, 0], "2,3"),
        ([4, 5, 6, 7], None, "0,1,2,3"),
        ([7, 4], [0, 3, 4, 7], "3,2"),
        (["4", "7"], ["0", "3", "4", "7"], "2,3"),
        ((4,), (4, 5), "0"),
    ],
)
def test_visible_devices(chips: t.Any, mapped: t.Any, devices: str) -> None:
    assert visible_devices(chips, mapped) == devices


@pytest.mark.parametrize(
    ("chips", "mapped", "words"),
    [
        ([5], [0, 3, 4, 7], "5"),
        ([], None, "list of chip numbers"),
        ("4,7", None, "list of chip numbers"),
        (4, None, "list of chip numbers"),
        (None, None, "list of chip numbers"),
        ([4, 4], None, "twice"),
        ([4], [4, 4], "twice"),
        ([-1], None, "negative"),
        (["x"], None, "input"),
        ([4], "x", "mapped_chips"),
        ([[4]], None, "input"),
    ],
)
def test_visible_devices_refuses(chips: t.Any, mapped: t.Any, words: str) -> None:
    with pytest.raises(AnsibleFilterError, match=words):
        visible_devices(chips, mapped)


def test_visible_devices_in_a_template(render: Render) -> None:
    assert render("{{ [4, 7] | ascend.pd_serving.visible_devices([0, 3, 4, 7]) }}") == "2,3"
    text = "{{ chips | ascend.pd_serving.visible_devices(mapped_chips=mapped) }}"
    assert render(text, chips=[4], mapped=[4, 5]) == "0"
