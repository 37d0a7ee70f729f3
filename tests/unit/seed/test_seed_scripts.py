# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The seed's own scripts and commands against the plan, key by key.

data/scripts.json holds them as data: names, options, values and JSON, taken out of the seed's text by a shell's rules.
What differs on purpose is listed here once, with the anchor of docs/differences.md that says why; a difference that
nobody wrote down fails, and so does one that is written down and is not there.
"""

from __future__ import annotations

import ast
import json
import re
import typing as t
from pathlib import Path

import pytest
import yaml

from ansible_collections.ascend.pd_serving.plugins.module_utils import aisbench
from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, scripts, tables
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.model import Placement
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import inventories
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import planned, told

ROOT = Path(__file__).resolve().parents[3]
SEED: dict[str, t.Any] = json.loads((Path(__file__).parent / "data" / "scripts.json").read_text(encoding="utf-8"))
DIFFERENCES = ROOT / "docs" / "differences.md"

# Name in the seed or the plan -> anchor in docs/differences.md. ADDED: only the plan has it; CHANGED: another value.
ENV_ADDED = {
    "HCCL_SOCKET_IFNAME": "hccl_socket_ifname",
    "VLLM_HOST_IP": "vllm_host_ip",
    "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT": "release-timeout",
    "LD_LIBRARY_PATH": "image-environment",
    "LD_PRELOAD": "image-environment",
    **dict.fromkeys(
        ("http_proxy", "https_proxy", "ftp_proxy", "HTTP_PROXY", "HTTPS_PROXY", "FTP_PROXY"), "http-proxies"
    ),
}
PREFILL_ONLY = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
OPTIONS_CHANGED = {"host": "host"}
# Options whose value in the seed is vLLM's own default.
OPTIONS_REMOVED = {"pipeline-parallel-size": "default-options"}
MODEL_CHANGED = "model-path"
VOLUMES_REMOVED = {"/mnt/sfs_turbo/.cache:/root/.cache": "cache-mount"}
VOLUMES_READ_ONLY = {
    f"{path}:{path}": "read-only-mounts" for path in ("/etc/hccn.conf", "/usr/local/Ascend/driver/tools/hccn_tool")
}
VOLUMES_ADDED = {"model": "model-mount", "unit": "unit-folders"}
DOCKER_CHANGED = {"name": "container-name", "rm": "restart-policy"}
IMAGE_CHANGED = "image-tag"
# Positional arguments of run_dp_template.sh, in the order of upstream's launcher.
POSITIONS = {
    "$1": "visible_devices",
    "$2": "--port",
    "$3": "--data-parallel-size",
    "$4": "--data-parallel-rank",
    "$5": "--data-parallel-address",
    "$6": "--data-parallel-rpc-port",
    "$7": "--tensor-parallel-size",
}


def plan_of(connector: str, inventory: str = "2p1d") -> planner.Plan:
    source = inventories.collected(ROOT / "inventories" / inventory)
    for values in source["hosts"].values():
        values["pd_connector"] = connector
    plan = planned(source)
    assert not plan.findings, told(plan.findings)
    return plan


@pytest.fixture(scope="module")
def plans() -> dict[str, planner.Plan]:
    return {name: plan_of(connector) for name, connector in CONNECTORS.items()}


CONNECTORS = {"v1": "MooncakeConnectorV1", "layerwise": "MooncakeLayerwiseConnector"}
ENGINES = {script["name"]: script for script in SEED["engines"]}


def on_host(plan: planner.Plan, host: str) -> Placement:
    (found,) = (placement for placement in plan.placements if placement.host == host)
    return found


def options_of(argv: t.Sequence[str]) -> dict[str, t.Any]:
    """Options of a command line in the seed's data's form: text, True for a flag, lists, parsed JSON."""
    found: dict[str, t.Any] = {}
    name = ""
    for word in argv:
        if re.match(r"--?[a-z]", word):
            name = word.lstrip("-")
            found[name] = []
        else:
            found[name].append(json.loads(word) if word.startswith("{") else word)
    return {name: True if not words else words[0] if len(words) == 1 else words for name, words in found.items()}


def filled(value: t.Any, variables: t.Mapping[str, str], argv: t.Sequence[str], visible: str) -> t.Any:
    """A value of the seed with its shell variables and the launcher's positions put in."""
    if not isinstance(value, str):
        return value
    if value in POSITIONS:
        return visible if value == "$1" else argv[argv.index(POSITIONS[value]) + 1]
    if value.startswith("$") and value[1:] in variables:
        return variables[value[1:]]
    return value


# Engines --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ENGINES)
def test_every_option_of_an_engine_script(name: str, plans: dict[str, planner.Plan]) -> None:
    script = ENGINES[name]
    placement = on_host(plans[name.split("-")[0]], script["host"])
    for process in placement.processes:
        ours = options_of(process.argv[3:])
        theirs = {
            key: filled(value, script["variables"], process.argv, process.visible_devices)
            for key, value in script["options"].items()
        }
        assert set(ours) == set(theirs), f"{set(ours) ^ set(theirs)}"
        assert {key for key in ours if ours[key] != theirs[key]} == set(OPTIONS_CHANGED), name
        assert theirs["host"] == "0.0.0.0" and ours["host"] == script["variables"]["local_ip"]
        assert process.argv[2].rpartition("/")[2] == script["model"].rpartition("/")[2], MODEL_CHANGED


@pytest.mark.parametrize("name", ENGINES)
def test_every_variable_of_an_engine_script(name: str, plans: dict[str, planner.Plan]) -> None:
    script = ENGINES[name]
    for process in on_host(plans[name.split("-")[0]], script["host"]).processes:
        theirs = {
            key: filled(value, script["variables"], process.argv, process.visible_devices)
            for key, value in script["export"].items()
        }
        ours = process.env
        assert set(theirs) <= set(ours), f"exported by the seed, not planned: {set(theirs) - set(ours)}"
        assert {key: ours[key] for key in theirs} == theirs
        added = {key for key in ENV_ADDED if script["host"].startswith("p") or key != PREFILL_ONLY}
        assert set(ours) - set(theirs) == added


@pytest.mark.parametrize("name", ENGINES)
def test_the_positions_are_those_of_the_launcher(name: str, plans: dict[str, planner.Plan]) -> None:
    """Every position of the seed's template is one value of ours, and ours passes them in the same order."""
    script = ENGINES[name]
    plan = plans[name.split("-")[0]]
    assert plan.cluster is not None
    used = [value for value in (*script["export"].values(), *script["options"].values()) if str(value) in POSITIONS]
    assert sorted(used) == sorted(POSITIONS)
    template = scripts.template(plan.cluster, on_host(plan, script["host"]))
    for position, option in POSITIONS.items():
        where = "ASCEND_RT_VISIBLE_DEVICES=" if position == "$1" else f"{option} "
        assert re.search(rf'{re.escape(where)}"?\{position}\b', template), f"{where}{position}"


@pytest.mark.parametrize("line", SEED["launcher"], ids=lambda line: line["host"])
@pytest.mark.parametrize("kind", CONNECTORS)
def test_every_line_that_starts_the_launcher(line: t.Any, kind: str, plans: dict[str, planner.Plan]) -> None:
    assert options_of(scripts.launcher_arguments(on_host(plans[kind], line["host"]))) == line["options"]


# Proxies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONNECTORS)
def test_every_option_of_a_proxy(kind: str, plans: dict[str, planner.Plan]) -> None:
    (theirs,) = (each for each in SEED["proxies"] if each["name"] == kind)
    proxy = plans[kind].proxy
    assert proxy is not None
    assert proxy["argv"][1].rpartition("/")[2] == theirs["script"]
    assert options_of(proxy["argv"][2:]) == theirs["options"]


# Containers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["p1", "p2", "d1", "d2"])
def test_every_flag_of_the_docker_run_for_a3(host: str, plans: dict[str, planner.Plan]) -> None:
    (theirs,) = (each for each in SEED["docker"] if each["name"] == "a3")
    whole = json.loads(planner.to_json(plans["v1"]))
    (placement,) = (each for each in whole["placements"] if each["host"] == host)
    ours = placement["container"]
    assert ours["devices"] == theirs["devices"]
    model = whole["cluster"]["model_path"]
    own = {mount for mount in ours["mounts"] if mount.split(":")[0] == model or f"/{ours['name']}" in mount}
    volumes = {f"{each}:ro" if each in VOLUMES_READ_ONLY else each for each in theirs["volumes"]}
    assert volumes - set(ours["mounts"]) == set(VOLUMES_REMOVED)
    assert set(ours["mounts"]) - volumes == own and len(own) == 3
    options = theirs["options"]
    assert (ours["network"], ours["shm_size"]) == (options["net"], options["shm-size"])
    assert ours["privileged"] is False and not ours["ulimits"] and not ours["capabilities"]
    assert set(options) == {"net", "shm-size", *DOCKER_CHANGED}
    assert ours["name"] == f"pd-pd-{placement['instance']}"
    assert ours["restart_policy"] == ("no" if host.startswith("d") else "unless-stopped"), "not beside a dead member"
    seen, wanted = theirs["image"].rpartition(":"), ours["image"].rpartition(":")
    assert seen[0].endswith(wanted[0]) and wanted[2] == f"{seen[2]}-a3", IMAGE_CHANGED


def test_the_cache_of_the_docker_run_is_one_variable_away() -> None:
    source = inventories.collected(ROOT / "inventories" / "2p1d")
    for values in source["hosts"].values():
        values["pd_mounts"] = list(VOLUMES_REMOVED)
    plan = planned(source)
    assert not plan.findings
    placements = json.loads(planner.to_json(plan))["placements"]
    assert all(mount in placement["container"]["mounts"] for placement in placements for mount in VOLUMES_REMOVED)


# Benchmark and verification --------------------------------------------------------------------------------------------


def test_the_benchmarks_configuration() -> None:
    """Every key of the seed's entry is in ours; host, port and model are the plan's, where the seed contradicts itself."""
    (theirs,) = SEED["benchmark"]["models"]
    defaults = yaml.safe_load((ROOT / "roles" / "benchmark" / "defaults" / "main.yml").read_text(encoding="utf-8"))
    load = aisbench.Load(
        tuple(defaults["benchmark_concurrency"]),
        defaults["benchmark_request_rate"],
        defaults["benchmark_max_out_len"],
        defaults["benchmark_retry"],
        defaults["benchmark_generation_kwargs"],
        defaults["benchmark_trust_remote_code"],
    )
    text = aisbench.configuration(aisbench.Target("192.0.0.1", 1999, "ds_r1"), load, "/models/m", "/data")
    ours = ast.literal_eval(re.findall(r"dict\(type=VLLMCustomAPIChat, \*\*(\{.*\})\)", text)[0])
    assert set(theirs) - set(ours) == {"type"}
    assert set(ours) - set(theirs) == {"stream", "use_timestamp", "api_key", "url"}
    changed = {key for key in theirs if key in ours and theirs[key] != ours[key]}
    assert changed == {
        "abbr",
        "path",
        "model",
        "request_rate",
        "host_port",
        "max_out_len",
        "batch_size",
        "trust_remote_code",
    }
    assert ours["generation_kwargs"] == theirs["generation_kwargs"] and ours["retry"] == theirs["retry"]
    assert (theirs["model"], theirs["host_port"]) == ("dsr1", 8000), "the conflict that docs/differences.md tells of"


def test_the_benchmarks_command() -> None:
    environment = aisbench.Environment("/venv", "p", (), ())
    ours = options_of(aisbench.command(environment, "config.py", "/out", None)[2:])
    theirs = SEED["benchmark"]["command"]
    assert ours["mode"] == theirs["mode"] and ours["debug"] is theirs["debug"] is True
    config = aisbench.configuration(aisbench.Target("a", 1, "m"), aisbench.Load((1,), 0, 1, 0, {}, False), "t", "d")
    assert theirs["datasets"] in config, "the same task of AISBench"
    assert set(SEED["benchmark"]["unset"]) <= aisbench.PROXY_VARIABLES


def test_the_verifying_request() -> None:
    """The seed asks the wrong port with an option that /v1/completions does not know; verify does neither."""
    body = SEED["curl"]["body"]
    request = completions_request()
    assert body["model"] == request["model"] and body["temperature"] == request["temperature"]
    assert "max_completion_tokens" in body and "max_completion_tokens" not in request and "max_tokens" in request
    assert ":8080/" in SEED["curl"]["url"]


def completions_request() -> dict[str, t.Any]:
    from ansible_collections.ascend.pd_serving.plugins.module_utils import completions

    (request,) = completions.build_requests(0, 1, 16, chat=False)
    return request.body("ds_r1")


# What later hardware brings --------------------------------------------------------------------------------------------


def test_the_docker_run_for_950() -> None:
    (theirs,) = (each for each in SEED["docker"] if each["name"] == "950")
    hardware = tables.hardware("a5")
    assert {f"/dev/{node}" for node in hardware.device_nodes} <= set(theirs["devices"])
    assert {mount.split(":")[0] for mount in theirs["volumes"]} <= {
        mount.split(":")[0].rstrip("/") for mount in hardware.mounts
    }
    assert hardware.privileged is theirs["options"]["privileged"]
    assert hardware.shm_size == theirs["options"]["shm-size"]


D2RH_INVENTORY = ROOT / "inventories" / "1p1d-850e-d2rh"


@pytest.mark.parametrize("script", SEED["d2rh"], ids=lambda script: script["name"])
def test_the_d2rh_scripts(script: dict[str, t.Any]) -> None:
    plan = planned(inventories.collected(D2RH_INVENTORY))
    role = "prefill" if script["name"].endswith("-p") else "decode"
    (placement,) = (each for each in plan.placements if each.instance.role == role)
    (process,) = placement.processes
    ours, theirs = options_of(process.argv[3:]), script["options"]
    own = {"host", "port", "data-parallel-address", "data-parallel-rpc-port", "served-model-name", "kv-transfer-config"}
    own |= set(OPTIONS_REMOVED)
    assert not set(OPTIONS_REMOVED) & set(ours) and theirs["pipeline-parallel-size"] == "1"
    assert {key: value for key, value in theirs.items() if key not in own} == {
        key: ours.get(key) for key in theirs if key not in own
    }
    assert (
        ours["kv-transfer-config"]["kv_connector_extra_config"]
        == theirs["kv-transfer-config"]["kv_connector_extra_config"]
    )
    exported = {key: value for key, value in script["export"].items() if not value.startswith("$")}
    assert {key: process.env.get(key) for key in exported if key != "LD_LIBRARY_PATH"} == {
        key: value for key, value in exported.items() if key != "LD_LIBRARY_PATH"
    }
    assert all(process.env.get(key, "") is None for key in script["unset"])


# The page -------------------------------------------------------------------------------------------------------------


def page() -> str:
    return DIFFERENCES.read_text(encoding="utf-8")


def anchors() -> set[str]:
    return set(re.findall(r"^\| `([a-z_0-9-]+)` \|", page(), re.MULTILINE))


def listed() -> set[str]:
    named = (
        ENV_ADDED,
        OPTIONS_CHANGED,
        OPTIONS_REMOVED,
        VOLUMES_REMOVED,
        VOLUMES_READ_ONLY,
        VOLUMES_ADDED,
        DOCKER_CHANGED,
    )
    benchmark = {"benchmark-load", "benchmark-type", "benchmark-target"}
    return {*(anchor for each in named for anchor in each.values()), MODEL_CHANGED, IMAGE_CHANGED, *benchmark}


def test_every_difference_is_explained_and_no_other() -> None:
    assert anchors() == listed()


def test_every_explanation_has_a_reason_and_a_reference() -> None:
    rows = [line for line in page().splitlines() if re.match(r"^\| `[a-z_0-9-]+` \|", line)]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5 and all(cells), row


def test_the_seeds_own_conflicts_are_told() -> None:
    """Those that its scripts contain, found here in the data, each named on the page."""
    text = page().partition("## The seed's own conflicts")[2]
    (model,) = SEED["benchmark"]["models"]
    ports = {
        *(each["options"]["port"] for each in SEED["proxies"] if each["name"] != "d2rh"),
        str(model["host_port"]),
        re.findall(r":(\d+)/", SEED["curl"]["url"])[0],
    }
    names = {SEED["engines"][0]["options"]["served-model-name"], model["model"]}
    images = {each["image"].rpartition(":")[2] for each in SEED["docker"] if each["name"] == "a3"}
    assert len(ports) == 3 and len(names) == 2
    for word in (*ports, *names, *images, "max_completion_tokens", "VLLM_MOONCAKE_CONNECTOR_TIMEOUT"):
        assert word in text, word
