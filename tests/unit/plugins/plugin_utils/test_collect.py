# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""From Ansible's own inventory objects to the planner's plain mapping."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import typing as t
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import collect, role_options
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import inventories
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import planned, told

ROOT = Path(__file__).resolve().parents[4]


def collected(tmp_path: Path, text: str, name: str = "hosts.yml", **files: str) -> dict[str, t.Any]:
    """What is collected of an inventory of these files; a file's name has `__` for a slash."""
    for file, content in {
        name: text,
        **{key.replace("__", "/") + ".yml": value for key, value in files.items()},
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(content), encoding="utf-8")
    return inventories.collected(tmp_path / name)


YAML = """
all:
  vars: {pd_hardware: a3, pd_model_path: /models/m, pd_served_model_name: m, ansible_user: root, other: 1}
  children:
    prefill:
      children:
        p_a: {hosts: {p1: {ansible_host: 192.0.2.1}}}
        p_b: {hosts: {p2: {ansible_host: 192.0.2.2}}}
    decode:
      hosts: {d2: {ansible_host: 192.0.2.4}, d1: {ansible_host: 192.0.2.3}}
    proxy: {hosts: {p1: }}
    elsewhere: {hosts: {x1: {pd_nonsense: 1}}}
"""


def test_groups_in_inventory_order(tmp_path: Path) -> None:
    source = collected(tmp_path, YAML)
    assert source["groups"] == {
        "prefill": {"hosts": [], "children": {"p_a": ["p1"], "p_b": ["p2"]}},
        "decode": {"hosts": ["d2", "d1"], "children": {}},
        "proxy": {"hosts": ["p1"], "children": {}},
    }
    assert list(source["hosts"]) == ["p1", "p2", "d2", "d1"]


def test_only_the_planners_variables(tmp_path: Path) -> None:
    source = collected(tmp_path, YAML)
    assert set(source["hosts"]["p1"]) == {"ansible_host", "pd_hardware", "pd_model_path", "pd_served_model_name"}


def test_a_group_below_a_child_group(tmp_path: Path) -> None:
    """An instance may be made of racks."""
    text = YAML.replace(
        "p_a: {hosts: {p1: {ansible_host: 192.0.2.1}}}",
        "p_a: {children: {rack1: {hosts: {p1: {ansible_host: 192.0.2.1}}}, rack2: {hosts: {p3: }}}}",
    )
    prefill = collected(tmp_path, text)["groups"]["prefill"]
    assert prefill["children"]["p_a"] == ["p1", "p3"]
    assert prefill["nested"] == {"p_a": ["rack1", "rack2"]}


def test_groups_beside_the_clusters_own(tmp_path: Path) -> None:
    assert collected(tmp_path, YAML)["other_groups"] == {"elsewhere": ["x1"]}


def test_options_of_roles_are_taken_along(tmp_path: Path) -> None:
    source = collected(tmp_path, YAML, group_vars__all="mooncake_method: \"{{ 'whe' ~ 'el' }}\"\nhost_name: a host's\n")
    assert source["hosts"]["d1"]["mooncake_method"] == "wheel"
    assert "host_name" not in source["hosts"]["d1"]


def test_truth_values_as_keys(tmp_path: Path) -> None:
    """YAML 1.1 reads YES, NO and on as truth values, also where a name stands."""
    source = collected(
        tmp_path,
        YAML,
        group_vars__all="""
            pd_engine_env_common: {YES: "1", GOOD: y}
            pd_engine_args_common: {NO: "{{ 1 + 1 }}"}
            pd_roce_addresses: {0: 192.0.2.1}
            """,
    )
    found = {f.variable: f.message for f in planned(source).errors if f.rule == "variable-value"}
    assert set(found) == {"pd_engine_env_common", "pd_engine_args_common"}
    assert "has the key true" in found["pd_engine_env_common"]
    assert "has the key false" in found["pd_engine_args_common"]


def test_near_misses_of_roles_variables(tmp_path: Path) -> None:
    source = collected(
        tmp_path,
        YAML,
        group_vars__all="image_archve: x\nengine_version: 1\nlock_force: true\n",
        host_vars__d1="lock_forced: true",
    )
    assert source["misspelt"] == {"image_archve": ["p1", "p2", "d2", "d1"], "lock_forced": ["d1"]}
    found = {f.variable: f for f in planned(source).findings if f.rule == "role-variable-name"}
    assert set(found) == {"image_archve", "lock_forced"}
    assert "did you mean image_archive?" in found["image_archve"].fix


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("image_archve", "image_archive"),
        ("engine_ready_timout", "engine_ready_timeout"),
        ("engine_raedy_timeout", "engine_ready_timeout"),
        ("engine_Ready_Timeout", "engine_ready_timeout"),
        ("preflight_gates", "preflight_gate"),
        ("preflight_gaet", "preflight_gate"),
        ("lock_forced", "lock_force"),
        ("kv_pool_ready_timeouts", "kv_pool_ready_timeout"),
        ("verify_request", "verify_requests"),
        ("host_huge_pages", "host_hugepages"),
        ("host_name", None),
        ("host_group", None),
        ("image_tag", None),
        ("image_archives_of_mine", None),
        ("engine_port", None),
        ("engine_memory", None),
        ("proxy_timeout", None),
        ("proxy_url", None),
        ("lock_file", None),
        ("lock_timeout", None),
        ("verify_cert", None),
        ("unit_test", None),
        ("image_archive", None),
        ("ready_timout", None),
        ("http_proxy", None),
    ],
)
def test_what_a_roles_variable_is_taken_for(name: str, meant: str | None) -> None:
    assert role_options.misspelt(name) == meant


def test_everything_is_plain(tmp_path: Path) -> None:
    """Ansible tags its values; the planner compares types."""
    source = collected(
        tmp_path,
        YAML,
        group_vars__prefill="""
            pd_dp_size: 2
            pd_model_is_moe: true
            pd_engine_args: {gpu-memory-utilization: 0.9, enforce-eager: true, x: null, nested: {list: [1, "2"]}}
            pd_chips: [0, 1]
            """,
    )

    def check(value: t.Any) -> None:
        assert type(value) in (str, int, float, bool, type(None), list, dict), type(value)
        for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(item)
        for key in value if isinstance(value, dict) else ():
            assert type(key) is str

    for values in source["hosts"].values():
        check(values)
    assert source["hosts"]["p2"]["pd_engine_args"] == {
        "gpu-memory-utilization": 0.9,
        "enforce-eager": True,
        "x": None,
        "nested": {"list": [1, "2"]},
    }
    assert json.loads(json.dumps(source)) == source


def test_group_values_are_one_object(tmp_path: Path) -> None:
    """A thousand hosts share one mapping, so it is checked once."""
    source = collected(tmp_path, YAML, group_vars__all="pd_engine_args_common: {seed: 1}")
    assert source["hosts"]["p1"]["pd_engine_args_common"] is source["hosts"]["d2"]["pd_engine_args_common"]


def test_templates_are_evaluated_per_host(tmp_path: Path) -> None:
    """ANS-01: from inventory variables alone."""
    source = collected(
        tmp_path,
        YAML,
        group_vars__all="""
            base: 36000
            pd_kv_port: "{{ base + 100 }}"
            pd_node_ip: "{{ ansible_host }}"
            pd_engine_env_common: {LOG: "/logs/{{ inventory_hostname }}", PLAIN: "$HOME"}
            """,
    )
    assert [source["hosts"][host]["pd_node_ip"] for host in ("p1", "d1")] == ["192.0.2.1", "192.0.2.3"]
    assert source["hosts"]["p1"]["pd_kv_port"] == 36100
    assert source["hosts"]["d2"]["pd_engine_env_common"] == {"LOG": "/logs/d2", "PLAIN": "$HOME"}


OF_OTHERS = """
            pd_dp_address: "{{ hostvars[groups['decode'][0]].ansible_host }}"
            pd_api_port: "{{ hostvars['p1'].pd_proxy_port + 1 }}"
            pd_engine_env: {NO_PROXY: "{{ groups['decode'] | map('extract', hostvars, 'ansible_host') | join(',') }}"}
            """


def test_templates_may_ask_for_values_of_other_hosts(tmp_path: Path) -> None:
    source = collected(tmp_path, YAML, group_vars__decode=OF_OTHERS, group_vars__all='pd_proxy_port: "{{ 2000 + 5 }}"')
    assert source["broken"] == []
    for host in ("d1", "d2"):
        values = source["hosts"][host]
        assert values["pd_dp_address"] == "192.0.2.4"
        assert values["pd_api_port"] == 2006
        assert values["pd_engine_env"] == {"NO_PROXY": "192.0.2.4,192.0.2.3"}
    assert "hostvars" not in source["hosts"]["p1"]


def test_a_host_that_is_asked_for_often_is_put_together_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts.yml").write_text(YAML, encoding="utf-8")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text(textwrap.dedent(OF_OTHERS) + "pd_proxy_port: 1999\n", encoding="utf-8")
    hostvars = inventories.hostvars_of(tmp_path / "hosts.yml")
    asked: list[str] = []
    get_vars = hostvars._variable_manager.get_vars
    monkeypatch.setattr(
        hostvars._variable_manager,
        "get_vars",
        lambda host, **more: asked.append(host.name) or get_vars(host=host, **more),
    )
    assert collect.collect(hostvars)["broken"] == []
    assert sorted(asked) == sorted(set(asked)), asked


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ hostvars['d9'].ansible_host }}", "d9"),
        ("{{ hostvars['p1'].nothing }}", "nothing"),
        ("{{ hostvars['p1'].pd_cann_version }}", "evaluates that one without hostvars of its own"),
    ],
)
def test_what_other_hosts_do_not_have(tmp_path: Path, template: str, says: str) -> None:
    source = collected(
        tmp_path,
        YAML,
        group_vars__decode=f'pd_nic: "{template}"',
        host_vars__p1="pd_cann_version: \"{{ hostvars['d1'].ansible_host }}\"",
    )
    broken = {(entry["host"], entry["variable"]): entry["message"] for entry in source["broken"]}
    assert set(broken) == {("d1", "pd_nic"), ("d2", "pd_nic")}
    assert says in broken["d1", "pd_nic"]


def test_values_of_other_hosts_by_ansible_playbook(tmp_path: Path) -> None:
    """The same by the action behind plan.yml."""
    (tmp_path / "hosts.yml").write_text(YAML, encoding="utf-8")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars/all.yml").write_text(
        "pd_dp_size: 2\npd_tp_size: 8\npd_proxy_port: 2005\n", encoding="utf-8"
    )
    (tmp_path / "group_vars/decode.yml").write_text(textwrap.dedent(OF_OTHERS), encoding="utf-8")
    out = tmp_path / "plan.json"
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")),
        *("plan.yml", "-i", str(tmp_path / "hosts.yml"), "-e", f"plan_out={out}"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads(out.read_text(encoding="utf-8"))
    (decode,) = (instance for instance in plan["instances"] if instance["role"] == "decode")
    assert (decode["dp_address"], decode["api_port"]) == ("192.0.2.4", 2006)
    environments = [p["processes"][0]["env"] for p in plan["placements"] if p["role"] == "decode"]
    assert [env["NO_PROXY"] for env in environments] == ["192.0.2.4,192.0.2.3"] * 2


def test_a_template_that_fails_names_host_and_variable(tmp_path: Path) -> None:
    text = YAML.replace("d1: {ansible_host: 192.0.2.3}", 'd1: {ansible_host: 192.0.2.3, pd_nic: "{{ nowhere }}"}')
    broken = collected(tmp_path, text)["broken"]
    assert [(entry["host"], entry["variable"]) for entry in broken] == [("d1", "pd_nic")]
    assert "nowhere" in broken[0]["message"]


def test_an_option_of_a_role_may_hold_what_only_its_task_knows(tmp_path: Path) -> None:
    source = collected(tmp_path, YAML, group_vars__all='verify_api_key: "{{ of_a_later_task }}"')
    assert source["broken"] == []
    assert "verify_api_key" not in source["hosts"]["p1"]


@pytest.mark.parametrize("name", ["Prefill", "prefills", "prefiller", "pre_fill"])
def test_a_role_group_of_another_name(tmp_path: Path, name: str) -> None:
    source = collected(tmp_path, YAML.replace("    prefill:", f"    {name}:"))
    (finding,) = (found for found in planned(source).errors if found.rule == "role-without-hosts")
    assert f"did you mean to call group {name} prefill?" in finding.fix


NUMBERS = """
pd_proxy_port: 20:00
pd_dp_rank_start: 016  # of a host
pd_chips: [00, 01, 07, 010]
pd_instances: {prefill-p1: {pd_kv_port: 036000}}
pd_api_port: 7100
pd_kv_port: 36_000
pd_dp_rpc_port: 0x3021
pd_engine_args_common: {max-model-len: 032768, seed: 0}
"""


def test_numbers_that_yaml_reads_in_another_base(tmp_path: Path) -> None:
    """Leading zeros and colons: the text is gone when variables are read, so the file is looked at again."""
    source = collected(tmp_path, YAML, group_vars__all=NUMBERS)
    assert [(found["variable"], found["written"], found["value"]) for found in source["misread"]] == [
        ("pd_proxy_port", "20:00", 1200),
        ("pd_dp_rank_start", "016", 14),
        ("pd_chips", "010", 8),
        ("pd_instances.prefill-p1.pd_kv_port", "036000", 15360),
    ]
    findings = [finding for finding in planned(source).errors if finding.rule == "variable-value"]
    assert [(finding.variable, finding.value) for finding in findings] == [
        ("pd_proxy_port", 1200),
        ("pd_dp_rank_start", 14),
        ("pd_chips", 8),
        ("pd_instances.prefill-p1.pd_kv_port", 15360),
    ], told(findings)
    assert "20:00" in findings[0].message and "base 60" in findings[0].message
    assert "016" in findings[1].message and "base 8" in findings[1].message


def test_a_misread_number_is_no_second_fault(tmp_path: Path) -> None:
    """Nothing is said of a port that nobody meant, nor that the variable is not set."""
    text = YAML.replace("p1: {ansible_host: 192.0.2.1", "p1: {pd_kv_port: 036000, ansible_host: 192.0.2.1")
    assert text != YAML
    plan = planned(collected(tmp_path, text))
    assert [(finding.host, finding.variable, finding.value) for finding in plan.errors if finding.value == 15360] == [
        ("p1", "pd_kv_port", 15360)
    ]
    assert "kv-port-reserve" not in {finding.rule for finding in plan.findings}


INI = """
[prefill]
p1 ansible_host=192.0.2.1
p2 ansible_host=192.0.2.2 pd_kv_port=36100
[decode]
d1 ansible_host=192.0.2.3 pd_chips=[0,1,2,3] pd_nic=eth1
[proxy]
p1
[prefill:vars]
pd_dp_size=2
pd_tp_size=8
[decode:vars]
pd_dp_size=4
pd_tp_size=1
pd_engine_args={"max-num-seqs": 4}
[all:vars]
pd_hardware=a3
pd_model_path=/models/m
pd_served_model_name=m
pd_model_is_moe=true
"""


def test_ini(tmp_path: Path) -> None:
    """Numbers, lists and mappings are Python's there; a lower-case true stays text and is read openly."""
    source = collected(tmp_path, INI, name="hosts.ini")
    assert source["hosts"]["p2"]["pd_kv_port"] == 36100
    assert source["hosts"]["d1"]["pd_chips"] == [0, 1, 2, 3]
    assert source["hosts"]["d1"]["pd_engine_args"] == {"max-num-seqs": 4}
    plan = planned(source)
    assert [(f.rule, f.variable) for f in plan.findings] == [("text-value", "pd_model_is_moe")], told(plan.findings)
    assert len(plan.placements) == 3


def test_ini_chips_without_brackets(tmp_path: Path) -> None:
    source = collected(tmp_path, INI.replace("[0,1,2,3]", "0,1,2,3"), name="hosts.ini")
    assert source["hosts"]["d1"]["pd_chips"] == [0, 1, 2, 3]
    assert not planned(source).errors


def test_an_inventory_without_the_groups(tmp_path: Path) -> None:
    assert collected(tmp_path, "all: {hosts: {x1: }}") == {
        "groups": {},
        "hosts": {},
        "broken": [],
        "misread": [],
        "misspelt": {},
        "other_groups": {},
    }


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (1, 1),
        (1.5, 1.5),
        ("x", "x"),
        ((1, 2), [1, 2]),
        ({1: {2: None}}, {"1": {"2": None}}),
        ({True: {None: 1.5}}, {True: {None: 1.5}}),
        ([{"a": (1,)}], [{"a": [1]}]),
        (b"x", "b'x'"),
    ],
)
def test_plain(value: t.Any, plain: t.Any) -> None:
    made = collect.plain(value)
    assert made == plain
    assert type(made) is type(plain)
