# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A rehearsal plans what production plans, except for what it must override; nothing of it may leave loopback."""

from __future__ import annotations

import copy
import ipaddress
import json
import re
import subprocess
import typing as t
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, rehearsal, slices
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    ABSENT,
    Source,
    Variables,
    base,
    one_host,
    planned,
    planned_by_default,
    told,
)

STATE = "/state/one"
SIMULATORS = Path(__file__).parents[4] / "roles" / "rehearsal" / "files"
DIFFERENT: dict[str, Source] = {
    "four hosts": planned_by_default(),
    "layerwise": planned_by_default(all={"pd_connector": "MooncakeLayerwiseConnector"}),
    "internal": planned_by_default(decode={"pd_dp_mode": "internal"}),
    "pool": planned_by_default(all={"pd_kv_pool": {"backend": "mooncake"}}),
    "one host": one_host(),
    "mapped chips": one_host(
        prefill={"pd_chips": [4, 7], "pd_mapped_chips": [0, 3, 4, 7], "pd_tp_size": 1},
        decode={"pd_chips": [1, 2, 5, 6]},
    ),
    "process": planned_by_default(all={"pd_runtime": "process"}, p1={"pd_chips": list(range(16))}),
    "ansible_host only": planned_by_default(p1={"pd_node_ip": ABSENT, "ansible_host": "192.0.2.11"}),
    "a proxy host of its own": planned_by_default(
        groups={"proxy": {"hosts": ["x1"]}}, more={"x1": {"ansible_host": "192.0.2.99"}}
    ),
    "card and address of one instance": one_host(prefill={"pd_nic": "eth7"}, host={"pd_nic": "eth1"}),
}


def production_addresses(source: Source) -> dict[str, str]:
    """Host -> its address in production."""
    return {
        host: values.get("pd_node_ip") or values.get("ansible_host") or host for host, values in source["hosts"].items()
    }


def test_addresses_are_loopback_and_all_different() -> None:
    hosts = [f"h{number}" for number in range(1000)]
    given = rehearsal.addresses(hosts, STATE)
    assert list(given) == hosts
    assert len(set(given.values())) == 1000
    for address in given.values():
        assert ipaddress.ip_address(address).is_loopback
        assert not address.startswith("127.0.0."), "upstream's proxies rewrite 127.0.0.1"


def test_addresses_stay_and_other_states_have_others() -> None:
    hosts = ["a", "b"]
    assert rehearsal.addresses(hosts, STATE) == rehearsal.addresses(hosts, STATE)
    states = {tuple(rehearsal.addresses(hosts, f"/state/{number}").values()) for number in range(20)}
    assert len(states) > 10


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_plan_differs_only_in_what_is_overridden(name: str) -> None:
    """Addresses, card and runtime are replaced by the production ones; then both plans are the same text."""
    source = DIFFERENT[name]
    rehearsed = rehearsal.rehearse(source, STATE)
    production, own = planned(source), planned(rehearsed)
    assert not production.errors, told(production.findings)
    assert not own.errors, told(own.findings)
    simulated = {rehearsed["hosts"][host]["pd_node_ip"]: at for host, at in production_addresses(source).items()}
    text = planner.to_json(own).decode()
    text = re.sub(r"127\.\d+\.\d+\.\d+", lambda found: simulated[found[0]], text)
    wanted = json.loads(planner.to_json(production))
    got = json.loads(text)
    assert got["cluster"].pop("runtime") == "process"
    wanted["cluster"].pop("runtime")
    for placement, original in zip(got["placements"], wanted["placements"], strict=True):
        for process, before in zip(placement["processes"], original["processes"], strict=True):
            for card in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"):
                assert process["env"].pop(card) == "lo"
                before["env"].pop(card)
    assert got == wanted


@pytest.mark.parametrize("name", DIFFERENT)
def test_nothing_of_production_is_left(name: str) -> None:
    source = DIFFERENT[name]
    text = planner.to_json(planned(rehearsal.rehearse(source, STATE))).decode()
    assert not re.findall(r"192\.0\.2\.\d+", text)
    assert "eth" not in text.replace("method", "")


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_inventory_stays_as_it_is(name: str) -> None:
    source = copy.deepcopy(DIFFERENT[name])
    rehearsal.rehearse(source, STATE)
    assert source == DIFFERENT[name]


def test_given_dp_addresses_are_simulated_too() -> None:
    rehearsed = rehearsal.rehearse(base(), STATE)
    plan = planned(rehearsed)
    assert not plan.findings, told(plan.findings)
    assert "192.0.2." not in planner.to_json(plan).decode()


def test_addresses_in_pd_instances_are_simulated_too() -> None:
    source = one_host(prefill={"pd_node_ip": "192.0.2.77", "pd_dp_address": "192.0.2.77"})
    plan = planned(rehearsal.rehearse(source, STATE))
    assert not plan.errors, told(plan.findings)
    assert "192.0.2." not in planner.to_json(plan).decode()


@pytest.mark.parametrize(
    ("name", "value"), [("HCCL_IF_IP", "192.0.2.11"), ("VLLM_HOST_IP", "192.0.2.11"), ("GLOO_SOCKET_IFNAME", "eth1")]
)
def test_addresses_of_the_environment_are_simulated_too(name: str, value: str) -> None:
    source = planned_by_default(p1={"pd_engine_env_extra": {name: value}})
    plan = planned(rehearsal.rehearse(source, STATE))
    assert not plan.errors, told(plan.findings)
    assert all(value not in (process.env.get(name) or "") for own in plan.placements for process in own.processes)


def test_the_production_runtime_decides_what_a_container_sees() -> None:
    """Chips are counted in the container that production would have."""
    plan = planned(rehearsal.rehearse(one_host(), STATE))
    devices = [process.visible_devices for own in plan.placements for process in own.processes]
    assert devices == ["0,1", "2,3", "0", "1", "2", "3"]
    process = planned(rehearsal.rehearse(one_host(host={"pd_runtime": "process"}), STATE))
    assert [q.visible_devices for p in process.placements for q in p.processes][-1] == "7"


def test_a_plan_knows_that_it_is_rehearsed() -> None:
    for source, rehearsed in ((base(), False), (rehearsal.rehearse(base(), STATE), True)):
        plan = planned(source)
        assert plan.cluster is not None
        assert plan.cluster.rehearsal is rehearsed


@pytest.mark.parametrize(
    ("scope", "variable", "value"),
    [
        ("all", "pd_runtime", "podman"),
        ("d2", "pd_nic", "xxxx"),
        ("d2", "pd_node_ip", "192.0.2.21"),
        ("d2", "pd_node_ip", "2001:db8::1"),
        ("d2", "pd_node_ip", "<your ip>"),
    ],
)
def test_faults_of_what_is_overridden_are_still_found(scope: str, variable: str, value: str) -> None:
    """A rehearsal proves the production inventory before the cluster is touched."""
    source = planned_by_default(**{scope: {variable: value}})
    assert planned(source).errors
    assert planned(rehearsal.rehearse(source, STATE)).errors


@pytest.mark.parametrize(
    "fault",
    [
        {"pd_cann_version": 9.1},
        {"pd_kv_transfer_config": {"kv_load_failure_policy": "retry"}},
        {"pd_engine_env_common": {"HCCL_IF_IP": "192.0.2.11", "ASCEND_CONNECT_TIMEOUT": "10s"}},
    ],
    ids=lambda fault: next(iter(fault)),
)
def test_a_fault_of_all_hosts_is_said_as_often_as_in_production(fault: Variables) -> None:
    """Not once for the first host and once more for the others."""
    source = base(all=fault)
    said = [(f.rule, f.host, f.variable) for f in planned(source).findings]
    assert said
    assert [(f.rule, f.host, f.variable) for f in planned(rehearsal.rehearse(source, STATE)).findings] == said


def test_a_runtime_that_is_no_text() -> None:
    rehearsal.rehearse(planned_by_default(all={"pd_runtime": ["docker"]}), STATE)


@pytest.mark.parametrize("entries", [None, "x", [], {"d-a": None}, {"d-a": "x"}, {"d-a": {"pd_node_ip": None}}])
def test_strange_pd_instances(entries: t.Any) -> None:
    planned(rehearsal.rehearse(base(all={"pd_instances": entries}), STATE))


def test_simulated_hosts_lie_below_the_state() -> None:
    root = rehearsal.host_root("/state/one", "p1")
    assert root.root == "/state/one/hosts/p1"
    assert root.environment["PD_REHEARSAL_ROOT"] == root.root
    assert root.environment["PATH"].startswith(f"{root.root}/opt/pd_rehearsal/bin:")


# Simulated machines ---------------------------------------------------------------------------------------------------


def build(tmp_path: Path, source: Source, host: str, files: Path | None = None) -> Path:
    state = str(tmp_path / "state")
    rehearsed = rehearsal.rehearse(source, state)
    plan = planned(rehearsed)
    assert not plan.errors, told(plan.findings)
    root = rehearsal.host_root(state, host)
    made = slices.host_slices(plan, {host: root})[host]
    rehearsal.build_host(made, "a2", 8, files or tmp_path / "files", tmp_path / "upstream", "/usr/bin/python3")
    return Path(root.root)


def test_a_host_is_built(tmp_path: Path) -> None:
    root = build(tmp_path, one_host(host={"pd_mounts": ["/mnt/cache:/var/cache:ro"]}), "h1")
    assert sorted(path.name for path in (root / "dev").iterdir()) == [
        *(f"davinci{chip}" for chip in range(8)),
        "davinci_manager",
        "devmm_svm",
        "hisi_hdc",
    ]
    assert (root / "etc/hccn.conf").is_file()
    assert (root / "usr/local/dcmi").is_dir()
    assert (root / "models/m").is_dir()
    assert json.loads((root / "models/m/config.json").read_text()) == {}
    tools = root / "opt/pd_rehearsal/bin"
    for tool in ("vllm", "python3", "npu-smi", "hccn_tool"):
        assert (tools / tool).stat().st_mode & 0o111
        assert (tools / tool).read_text().startswith("#!/bin/sh\n")
    assert (root / "vllm-workspace/vllm-ascend/examples").is_symlink()


def call(root: Path, tool: str, *words: str) -> str:
    """A tool of a built host by its name, as the playbooks call it, and without the variable that says whose it is."""
    path = f"{root}/opt/pd_rehearsal/bin:/usr/bin:/bin"
    command = ["env", f"PATH={path}", tool, *words]
    return subprocess.run(command, env={}, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_chips_of_a_host_have_addresses(tmp_path: Path) -> None:
    root = build(tmp_path, one_host(), "h1", SIMULATORS)
    conf = dict(line.split("=") for line in (root / "etc/hccn.conf").read_text().splitlines())
    assert len({conf[f"address_{chip}"] for chip in range(8)}) == 8
    live = call(root, "hccn_tool", "-i", "7", "-ip", "-g")
    assert live == f"ipaddr:{conf['address_7']}\nnetmask:{conf['netmask_7']}\n"
    assert call(root, "npu-smi", "info").count("910B4") == 8
    version = (root / "usr/local/Ascend/driver/version.info").read_text().splitlines()[0]
    assert version == f"Version={call(root, 'npu-smi', '-v').split()[-1]}"
    assert "Driver_Install_Path_Param=/usr/local/Ascend\n" in (root / "etc/ascend_install.info").read_text()


def test_hosts_of_one_rehearsal_ping_each_other(tmp_path: Path) -> None:
    first, second = (build(tmp_path, base(), host, SIMULATORS) for host in ("p1", "d1"))
    address = (second / "etc/hccn.conf").read_text().split("address_3=")[1].split()[0]
    assert address not in (first / "etc/hccn.conf").read_text()
    assert "3 received, 0.00%" in call(first, "hccn_tool", "-i", "0", "-ping", "-g", "address", address)
    faults = second / "opt/pd_rehearsal/npu/faults"
    faults.write_text("link 3 down\n")
    assert "0 received, 100.00%" in call(first, "hccn_tool", "-i", "0", "-ping", "-g", "address", address)
    # A host that is built again keeps its place and its faults.
    (second / "opt/pd_rehearsal/built.json").unlink()
    build(tmp_path, base(), "d1", SIMULATORS)
    assert address in (second / "etc/hccn.conf").read_text()
    assert faults.read_text() == "link 3 down\n"


def test_tools_are_where_the_inventory_says(tmp_path: Path) -> None:
    source = one_host(host={"pd_mounts": ["/usr/local/sbin/npu-smi:/usr/local/bin/npu-smi"]})
    root = build(tmp_path, source, "h1", SIMULATORS)
    assert not (root / "usr/local/bin/npu-smi").exists()
    assert "910B4" in call(root, "npu-smi", "info")
    (root / "usr/local/sbin/npu-smi").unlink()
    with pytest.raises(subprocess.CalledProcessError) as failed:
        call(root, "npu-smi", "info")
    assert failed.value.returncode == 127, "no such command"


def test_hosts_of_an_earlier_simulation_get_what_they_miss(tmp_path: Path) -> None:
    root = build(tmp_path, one_host(), "h1")
    for name in ("etc/hccn.conf", "usr/local/Ascend/driver/version.info"):
        (root / name).write_text("")
    (root / "opt/pd_rehearsal/built.json").unlink()
    build(tmp_path, one_host(), "h1")
    assert "address_0=" in (root / "etc/hccn.conf").read_text()
    assert "Version=" in (root / "usr/local/Ascend/driver/version.info").read_text()


def test_what_is_taken_away_stays_away(tmp_path: Path) -> None:
    root = build(tmp_path, one_host(), "h1")
    (root / "dev/davinci3").unlink()
    assert build(tmp_path, one_host(), "h1") == root
    assert not (root / "dev/davinci3").exists()


def test_everything_stays_below_the_state(tmp_path: Path) -> None:
    build(tmp_path, one_host(), "h1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


@pytest.mark.parametrize("variable", ["pd_mounts", "pd_model_path"])
def test_no_path_leads_out_of_the_state(tmp_path: Path, variable: str) -> None:
    out = "/a/../../../../outside"
    value: t.Any = [f"{out}:/x"] if variable == "pd_mounts" else out
    source = one_host(host={variable: value})
    if planned(source).errors:
        return
    build(tmp_path, source, "h1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_upstreams_scripts_are_asked_for_with_the_command_that_fetches_them(tmp_path: Path) -> None:
    with pytest.raises(rehearsal.RehearsalError, match="fetch --now"):
        rehearsal.check_upstream(tmp_path, "fetch --now")
    (tmp_path / "SOURCE.json").write_text("{}")
    rehearsal.check_upstream(tmp_path, "fetch --now")


def test_default_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = rehearsal.default_state("demo", ["inventories/a"])
    assert first.startswith(f"{tmp_path}/pd_serving/rehearsal/demo-")
    assert first == rehearsal.default_state("demo", ["inventories/a"])
    assert first != rehearsal.default_state("demo", ["inventories/b"])
    monkeypatch.delenv("XDG_STATE_HOME")
    assert rehearsal.default_state("demo", []).startswith(str(Path("~/.local/state").expanduser()))


def test_the_folder_of_a_host_lies_in_that_of_the_rehearsal() -> None:
    odd = ["../../x", "..", ".", "a/b", "a_b", "d 1", "d;1", "$(d)", "-d", "x" * 300]
    roots = [Path(rehearsal.host_root("/state", host).root) for host in odd]
    assert {root.parent for root in roots} == {Path("/state/hosts")}
    assert all(re.fullmatch(r"\w[\w.-]*|[\w-]+", root.name) for root in roots)
    assert len(set(roots)) == len(odd)
    assert rehearsal.host_root("/state", "d1.example").root == "/state/hosts/d1.example"
