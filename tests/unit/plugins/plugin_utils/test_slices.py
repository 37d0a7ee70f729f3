# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What each host gets of the plan, and how it is kept on the controller."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, slices
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.slices import HostRoot
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    DECODE_ARGS,
    Source,
    base,
    one_host,
    planned,
    told,
)

LAYERWISE = "MooncakeLayerwiseConnector"


def slices_of(source: Source, roots: dict[str, HostRoot] | None = None) -> dict[str, dict[str, t.Any]]:
    plan = planned(source)
    assert not plan.errors, told(plan.findings)
    return slices.host_slices(plan, roots or {})


def processes(unit: dict[str, t.Any]) -> list[dict[str, t.Any]]:
    found: list[dict[str, t.Any]] = unit["launch"]["spec"]["processes"]
    return found


def test_every_host_has_one() -> None:
    made = slices_of(base())
    assert list(made) == ["p1", "p2", "d1", "d2"]
    assert {host: [unit["instance"] for unit in content["units"]] for host, content in made.items()} == {
        "p1": ["p-a"],
        "p2": ["p-b"],
        "d1": ["d-a"],
        "d2": ["d-a"],
    }
    assert {host: len(content["proxy_units"]) for host, content in made.items()} == {"p1": 1, "p2": 0, "d1": 0, "d2": 0}


def test_a_host_has_nothing_of_the_others() -> None:
    text = json.dumps(slices_of(base())["p2"])
    assert "192.0.2.12" in text
    for address in ("192.0.2.11", "192.0.2.21", "192.0.2.22"):
        assert address not in text


def test_a_host_with_the_proxy_only() -> None:
    source = base(groups={"proxy": {"hosts": ["x1"]}}, more={"x1": {"pd_node_ip": "192.0.2.99"}})
    made = slices_of(source)["x1"]
    assert made["units"] == []
    assert made["endpoints"] == []
    assert len(made["proxy_units"]) == 1
    assert made["checks"]["chips"] == []
    assert made["checks"]["device_nodes"] == []
    assert made["checks"]["paths"] == []
    assert [(entry["first"], entry["last"]) for entry in made["checks"]["ports"]] == [(1999, 1999)]


def test_units_of_two_instances_on_one_host() -> None:
    made = slices_of(one_host())["h1"]
    assert [unit["name"] for unit in made["units"]] == ["pd-pd-p-a", "pd-pd-d-a"]
    assert [unit["ranks"] for unit in made["units"]] == [2, 4]
    assert made["checks"]["chips"] == list(range(8))


# Launch specification -------------------------------------------------------------------------------------------------


def test_launch_specification() -> None:
    """The shape that the launcher reads; it refuses anything else."""
    unit = slices_of(base())["d2"]["units"][0]
    spec = unit["launch"]["spec"]
    assert unit["launch"]["name"] == spec["unit"] == unit["name"] == "pd-pd-d-a"
    assert (unit["role"], unit["ranks"]) == ("decode", 16)
    assert set(spec) == {
        "schema",
        "unit",
        "stop_grace_seconds",
        "fail_grace_seconds",
        "log_max_bytes",
        "log_keep",
        "processes",
        "container",
    }
    assert spec["schema"] == 1
    assert len(spec["processes"]) == 16
    for number, process in enumerate(spec["processes"]):
        assert set(process) == {"name", "label", "argv", "env", "health_url"}
        assert process["name"] == f"rank{16 + number}"
        assert re.fullmatch(r"[A-Za-z0-9_.-]+", process["name"])
        assert process["label"] == f"rank {16 + number}"
        assert process["health_url"] == f"http://192.0.2.22:{7100 + number}/health"
        assert process["argv"][:2] == ["vllm", "serve"]
        assert all(isinstance(word, str) for word in process["argv"])
        assert process["env"]["ASCEND_RT_VISIBLE_DEVICES"] == str(number)
        assert process["env"]["http_proxy"] is None
        assert all(value is None or isinstance(value, str) for value in process["env"].values())


def test_fab_01_the_launcher_looks_for_the_mounted_files() -> None:
    """FAB-01: a file that docker has made a folder of is found before an engine starts; the proxy has no such file."""
    made = slices_of(base())
    files = made["d2"]["units"][0]["launch"]["spec"]["container"]["files"]
    assert {"/etc/hccn.conf", "/usr/local/Ascend/driver/tools/hccn_tool"} <= set(files)
    assert made["p1"]["proxy_units"][0]["launch"]["spec"]["container"]["files"] == []


def test_names_are_unique_and_devices_of_a_unit_do_not_meet() -> None:
    for content in (*slices_of(base()).values(), *slices_of(one_host()).values()):
        for unit in content["units"]:
            names = [process["name"] for process in processes(unit)]
            assert len(set(names)) == len(names)
            devices = [d for p in processes(unit) for d in p["env"]["ASCEND_RT_VISIBLE_DEVICES"].split(",")]
            assert len(set(devices)) == len(devices)
            assert all(device.isdigit() for device in devices)


def test_headless_processes_have_no_health() -> None:
    made = slices_of(base(decode={"pd_dp_mode": "internal"}))
    head, follower = (processes(made[host]["units"][0]) for host in ("d1", "d2"))
    assert [(p["name"], p["label"], p["health_url"]) for p in head] == [
        ("rank0", "ranks 0-15", "http://192.0.2.21:7100/health")
    ]
    assert [(p["name"], p["label"], p["health_url"]) for p in follower] == [("rank16", "ranks 16-31", None)]
    assert made["d2"]["endpoints"] == []


@pytest.mark.parametrize(
    ("connector", "script"),
    [
        ("MooncakeConnectorV1", "load_balance_proxy_server_example.py"),
        (LAYERWISE, "load_balance_proxy_layerwise_server_example.py"),
    ],
)
def test_proxy_unit(connector: str, script: str) -> None:
    unit = slices_of(base(all={"pd_connector": connector}))["p1"]["proxy_units"][0]
    (process,) = processes(unit)
    assert unit["name"] == "pd-pd-proxy"
    assert process["name"] == "proxy"
    assert process["argv"][0] == "python3"
    assert process["argv"][1].endswith(f"/disaggregated_prefill_v1/{script}")
    assert process["health_url"] == "http://192.0.2.11:1999/healthcheck"
    assert set(process["env"]) >= {"http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"}
    assert set(process["env"].values()) == {None}


# Checks -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({}, None),
        ({"all": {"pd_engine_args_common": {"api-key": "one-key"}}}, "one-key"),
        ({"all": {"pd_engine_args_common": {"api_key": ["first-key", "second-key"]}}}, "first-key"),
        ({"all": {"pd_engine_env_common": {"VLLM_API_KEY": "env-key"}}}, "env-key"),
        ({"decode": {"pd_engine_env": {"VLLM_API_KEY": "env-key"}}}, "env-key"),
        (
            {
                "all": {"pd_engine_args_common": {"api-key": ["first-key", "second-key"]}},
                "d2": {"pd_engine_args_extra": {"api-key": ["other-key", "second-key"]}},
            },
            "second-key",
        ),
        ({"all": {"pd_engine_args_common": {"api-key": 4711}}}, "4711"),
        ({"all": {"pd_engine_env_common": {"VLLM_API_KEY": ""}}}, None),
        (
            {
                "all": {"pd_engine_args_common": {"api-key": "k1"}},
                "decode": {"pd_engine_args": {**DECODE_ARGS, "api-key": None}},
            },
            "k1",
        ),
    ],
)
def test_the_proxy_gets_the_key_of_the_engines(changes: dict[str, t.Any], key: str | None) -> None:
    """Upstream's proxies send the key of their own environment."""
    (unit,) = slices_of(base(**changes))["p1"]["proxy_units"]
    assert processes(unit)[0]["env"].get("OPENAI_API_KEY") == key
    assert "OPENAI_API_KEY" not in unit["container"]["env"]
    plan = planned(base(**changes))
    assert "OPENAI_API_KEY" not in planner.to_json(plan).decode()
    assert "key" not in json.dumps(slices.overview(plan, slices.host_slices(plan, {})))


def test_checks_of_a_host() -> None:
    checks = slices_of(base(all={"pd_mounts": ["/mnt/cache:/var/cache"]}))["p1"]["checks"]
    assert checks["chips"] == list(range(16))
    assert checks["device_nodes"] == ["davinci_manager", "devmm_svm", "hisi_hdc"]
    assert checks["executables"] == []
    ports = {(p["first"], p["last"], p["owner"], p["variable"], p["address"]) for p in checks["ports"]}
    assert ports == {
        (7100, 7101, "api of p-a", "pd_api_port", "192.0.2.11"),
        (12321, 12321, "dp_rpc of p-a", "pd_dp_rpc_port", "192.0.2.11"),
        (36000, 36015, "kv of p-a", "pd_kv_port", "192.0.2.11"),
        (1999, 1999, "proxy", "pd_proxy_port", "192.0.2.11"),
    }
    paths = {entry["path"]: entry["type"] for entry in checks["paths"]}
    assert paths["/etc/hccn.conf"] == "file"
    assert paths["/usr/local/Ascend/driver/lib64/"] == "directory"
    assert paths["/mnt/cache"] == "any"
    assert paths["/models/DeepSeek-r1_w8a8_mtp"] == "directory"
    assert paths["/models/DeepSeek-r1_w8a8_mtp/config.json"] == "file"
    assert all(entry["variable"] in ("pd_mounts", "pd_model_path") and entry["why"] for entry in checks["paths"])


@pytest.mark.parametrize(
    ("mounts", "model"),
    [
        ([], "/models/DeepSeek-r1_w8a8_mtp"),
        (["/data/models:/models:ro"], "/data/models/DeepSeek-r1_w8a8_mtp"),
        (["/data/:/models/"], "/data/DeepSeek-r1_w8a8_mtp"),
        (["/a:/models", "/b:/models/DeepSeek-r1_w8a8_mtp"], "/b"),
        (["/a:/model", "/b:/models/Deep"], "/models/DeepSeek-r1_w8a8_mtp"),
    ],
)
def test_the_model_is_looked_for_where_the_host_has_it(mounts: list[str], model: str) -> None:
    paths = slices_of(base(all={"pd_mounts": mounts}))["p1"]["checks"]["paths"]
    found = {entry["path"]: entry["type"] for entry in paths if entry["variable"] == "pd_model_path"}
    assert found == {model: "directory", f"{model}/config.json": "file"}


def test_a_host_knows_where_its_model_is() -> None:
    """What runs there outside the container, as a benchmark does, needs the path of the host."""
    held = base(all={"pd_model_path": "/var/cache/m", "pd_mounts": ["/srv/cache:/var/cache"]})
    assert slices.host_slices(planned(held), {})["p1"]["model_path"] == "/srv/cache/m"
    held = base(all={"pd_model_path": "/var/cache/m", "pd_mounts": [], "pd_runtime": "process"})
    assert slices.host_slices(planned(held), {})["p1"]["model_path"] == "/var/cache/m"
    apart = base(groups={"proxy": {"hosts": ["x1"]}}, more={"x1": {"pd_node_ip": "192.0.2.99"}})
    own = slices.host_slices(planned(apart), {})["x1"]
    assert own["model_path"] == "/models/DeepSeek-r1_w8a8_mtp" and own["units"] == []


def test_checks_without_a_container() -> None:
    source = base(all={"pd_runtime": "process", "pd_mounts": ["/mnt/cache:/var/cache"]})
    checks = slices_of(source)["d1"]["checks"]
    assert [entry["name"] for entry in checks["executables"]] == ["vllm"]
    assert "/var/cache" in {entry["path"] for entry in checks["paths"]}


def test_the_chips_to_check_are_the_mapped_ones() -> None:
    source = one_host(
        prefill={"pd_chips": [4, 7], "pd_mapped_chips": [0, 3, 4, 7], "pd_dp_size": 1},
        decode={"pd_chips": [1], "pd_dp_size": 1},
    )
    assert slices_of(source)["h1"]["checks"]["chips"] == [0, 1, 3, 4, 7]


# Roots --------------------------------------------------------------------------------------------------------------


def test_production_has_no_root_and_no_environment() -> None:
    made = slices_of(base())["p1"]
    assert made["root"] == ""
    assert made["environment"] == {}
    assert "PD_REHEARSAL_CHIPS" not in processes(made["units"][0])[0]["env"]


def test_a_simulated_host_is_told_its_chips_and_its_root() -> None:
    root = HostRoot(root="/x/hosts/h1", environment={"PD_REHEARSAL_ROOT": "/x/hosts/h1"})
    source = one_host(
        prefill={"pd_chips": [4, 7], "pd_mapped_chips": [0, 3, 4, 7], "pd_dp_size": 1},
        decode={"pd_chips": [1], "pd_dp_size": 1},
    )
    made = slices_of(source, {"h1": root})["h1"]
    assert made["root"] == "/x/hosts/h1"
    assert made["environment"] == {"PD_REHEARSAL_ROOT": "/x/hosts/h1"}
    assert [processes(unit)[0]["env"]["PD_REHEARSAL_CHIPS"] for unit in made["units"]] == ["0,3,4,7", "1"]


# On the controller ----------------------------------------------------------------------------------------------------


def test_written_and_read_back(tmp_path: Path) -> None:
    plan = planned(base())
    slices.write(plan, {}, str(tmp_path))
    made = slices.host_slices(plan, {})
    for host, content in made.items():
        assert slices.read(str(tmp_path), host) == json.loads(json.dumps(content))
    overview = slices.read(str(tmp_path), slices.CLUSTER_FILE)
    assert overview is not None
    assert overview["name"] == "pd"
    assert [instance["name"] for instance in overview["instances"]] == ["p-a", "p-b", "d-a"]
    assert [instance["ranks"] for instance in overview["instances"]] == [2, 2, 32]
    assert len(overview["endpoints"]) == 36
    assert {(e["name"], e["url"]) for e in overview["endpoints"]} >= {
        ("p1:7101", "http://192.0.2.11:7101"),
        ("d2:7115", "http://192.0.2.22:7115"),
    }
    assert overview["proxy"]["address"] == "192.0.2.11"
    assert slices.read(str(tmp_path), "nobody") is None


def test_only_the_user_may_read_it(tmp_path: Path) -> None:
    """Environments may hold keys."""
    slices.write(planned(base()), {}, str(tmp_path))
    folder = slices.directory(str(tmp_path))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.iterdir())
    assert len(files) == 5
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize("host", ["a/b", "..", ".", "host with blanks", "模型", "x" * 100, "192.0.2.1", "a:b"])
def test_any_host_name_makes_a_file_name(tmp_path: Path, host: str) -> None:
    source = base()
    source["groups"] = json.loads(json.dumps(source["groups"]).replace('"p2"', json.dumps(host)))
    source["hosts"][host] = source["hosts"].pop("p2")
    plan = planned(source)
    assert not plan.errors, told(plan.findings)
    slices.write(plan, {}, str(tmp_path))
    content = slices.read(str(tmp_path), host)
    assert content is not None
    assert content["node_ip"] == "192.0.2.12"
    assert sorted(path.name for path in tmp_path.iterdir()) == [slices.directory(str(tmp_path)).name]


def test_writing_twice_is_writing_once(tmp_path: Path) -> None:
    plan = planned(base())
    slices.write(plan, {}, str(tmp_path))
    before = {path.name: path.read_bytes() for path in slices.directory(str(tmp_path)).iterdir()}
    slices.write(plan, {}, str(tmp_path))
    assert {path.name: path.read_bytes() for path in slices.directory(str(tmp_path)).iterdir()} == before


def test_every_word_reaches_the_launcher_and_the_script(tmp_path: Path) -> None:
    """Empty words too: --root-path "" takes back a root path that a lower layer sets."""
    source = base(p1={"pd_engine_args_extra": {"root-path": "", "chat-template": "a b'$HOME\\"}})
    unit = slices_of(source)["p1"]["units"][0]
    argv = processes(unit)[0]["argv"]
    assert argv[argv.index("--root-path") + 1] == ""
    assert launcher.build_spec(unit["launch"]["spec"]).processes[0].argv == tuple(argv)

    vllm = tmp_path / "vllm"
    vllm.write_text('#!/bin/sh\nprintf "%s\\0" vllm "$@"\n', encoding="utf-8")
    vllm.chmod(0o755)
    script = unit["launch"]["files"][0]["content"]
    positions = ["0,1,2,3,4,5,6,7", "7100", "2", "0", "192.0.2.11", "12321", "8"]
    run = subprocess.run(
        ["/bin/bash", "-c", script, "run_dp_template.sh", *positions],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert run.stdout.decode().split("\0")[:-1] == argv


def test_slices_hold_the_very_words_of_the_plan() -> None:
    plan = planned(base())
    written = json.loads(planner.to_json(plan))
    made = slices.host_slices(plan, {})
    for placement in written["placements"]:
        unit = next(u for u in made[placement["host"]]["units"] if u["instance"] == placement["instance"])
        assert [p["argv"] for p in processes(unit)] == [p["argv"] for p in placement["processes"]]
        assert [p["env"] for p in processes(unit)] == [p["env"] for p in placement["processes"]]


def test_containers_of_all_kinds_have_every_setting() -> None:
    """Role unit asks for each of them."""
    pool = base(groups={"kv_pool": {"hosts": ["p1"], "children": {}}}, all={"pd_kv_pool": {"backend": "mooncake"}})
    made = slices_of(pool)["p1"]
    kinds = {key: [set(unit["container"]) for unit in made[key]] for key in slices.UNIT_KEYS}
    assert all(kinds.values())
    ((first, *others), *rest) = kinds.values()
    assert all(settings == first for settings in [*others, *(one for kind in rest for one in kind)])
    asked = Path(slices.__file__).parents[2] / "roles/unit/tasks/docker.yml"
    assert set(re.findall(r"__unit_container\.(\w+)", asked.read_text(encoding="utf-8"))) <= first
