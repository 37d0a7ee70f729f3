# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Module npu_facts on hosts of all generations, and on such that are ill."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import host_check
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import facts
from ansible_collections.ascend.pd_serving.plugins.modules import npu_facts
from ansible_collections.ascend.pd_serving.tests.unit.plugins.module_utils.npu.samples import DATA
from ansible_collections.ascend.pd_serving.tests.unit.plugins.modules.fake_npu import FakeHost

A3_IDS = range(16)


def sample(name: str) -> str:
    return (DATA / f"{name}.txt").read_text(encoding="utf-8")


def run(host: FakeHost, **args: Any) -> dict[str, Any]:
    before = host.tree()
    result = raw(**{**host.arguments(), **args})
    assert not result.get("failed") and result["changed"] is False, result
    assert host.tree() == before, "something was changed"
    npu: dict[str, Any] = result["npu"]
    return npu


def raw(**args: Any) -> dict[str, Any]:
    out = io.StringIO()
    with patch_module_args(args), contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        npu_facts.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def healthy(host: FakeHost, chips: range, queries: tuple[str, ...]) -> None:
    """Answers of hccn_tool for A2 and A3."""
    host.chips(*chips)
    texts = {
        "lldp": sample("hccn-lldp-a2-ok"),
        "link": "link status: UP\n",
        "net_health": "net health status: Success\n",
        "netdetect": "netdetect address: 192.0.2.1\n",
        "gateway": "default gateway:192.0.2.1, Iface:eth{}\n",
        "ip": "ipaddr:192.0.2.1{:02d}\nnetmask:255.255.255.0\n",
        "vnic": "vnic link status: UP\nvnic ipaddr: 198.51.100.1{:02d}\nvnic netmask: 255.255.255.0\n",
        "tls": "dev_id:{}, tls switch[0](0:disable, 1:enable), tls alarm time threshold[60]days\n",
    }
    for chip in chips:
        for query in queries:
            text = texts[query] if query == "lldp" else texts[query].format(chip)
            host.answer("hccn_tool", f"-i {chip} -{query} -g", text)
    conf = "".join(f"address_{chip}=192.0.2.1{chip:02d}\nnetmask_{chip}=255.255.255.0\n" for chip in chips)
    (host.root / "etc/hccn.conf").write_text(conf)


@pytest.fixture
def a3(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    healthy(host, A3_IDS, facts.QUERIES["a3"][:-1])
    host.answer("npu-smi", "info", sample("npusmi-a3-24.1.rc3.7-idle"))
    host.answer("npu-smi", "info -m", sample("npusmi-m-a3"))
    for chip in A3_IDS:
        text = sample("npusmi-spod-a3-ok").replace("16777216", str(16777216 + chip))
        host.answer("npu-smi", f"info -t spod-info -i {chip // 2} -c {chip % 2}", text)
    return host


@pytest.fixture
def a2(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    healthy(host, range(8), facts.QUERIES["a2"])
    host.answer("npu-smi", "info", sample("npusmi-a2-25.2.0-one-process"))
    host.answer("npu-smi", "info -m", sample("npusmi-m-a2"))
    return host


def test_an_a3_host(a3: FakeHost) -> None:
    npu = run(a3, hardware="a3")
    assert npu["found"] == list(A3_IDS)
    assert list(npu["chips"]) == [str(chip) for chip in A3_IDS]
    assert {answer["state"] for chip in npu["chips"].values() for answer in chip.values()} == {"ok"}
    eleven = npu["chips"]["11"]
    assert list(eleven) == list(facts.QUERIES["a3"])
    assert eleven["vnic"] == {"state": "ok", "link": "UP", "ipaddr": "198.51.100.111", "netmask": "255.255.255.0"}
    assert eleven["gateway"] == {"state": "ok", "gateway": "192.0.2.1", "iface": "eth11"}
    assert eleven["spod"]["sdid"] == 16777227 and eleven["spod"]["super_pod_id"] == 0
    table = npu["npu_smi"]
    assert (table["state"], table["version"], table["text"], table["error"]) == ("ok", "24.1.rc3.7", "", None)
    assert table["chips"]["11"]["card"] == 5 and table["chips"]["11"]["chip"] == 1
    assert table["chips"]["11"]["power_w"] is None and table["chips"]["11"]["processes"] == []
    assert npu["hccn_conf"]["chips"]["15"]["address"] == "192.0.2.115"
    assert npu["tools"]["hccn_tool"] == {"path": str(a3.bin / "hccn_tool"), "state": "ok"}


def test_each_query_is_made_once_and_no_other(a3: FakeHost) -> None:
    npu = run(a3, hardware="a3", _ansible_check_mode=True)
    calls = Counter(a3.calls)
    assert set(calls.values()) == {1}
    wanted = {f"hccn_tool -i {chip} -{query} -g" for chip in A3_IDS for query in facts.QUERIES["a3"][:-1]}
    # 16 pairs of card and chip that exist, not 32 of which every second one fails.
    wanted |= {f"npu-smi info -t spod-info -i {card} -c {chip}" for card in range(8) for chip in (0, 1)}
    assert set(calls) == wanted | {"npu-smi info", "npu-smi info -m"}
    assert npu["calls"]["count"] == len(wanted) + 2 and npu["calls"]["busy_retries"] == 0


def test_an_a2_host_with_a_process(a2: FakeHost) -> None:
    npu = run(a2, hardware="a2")
    assert list(npu["chips"]["7"]) == list(facts.QUERIES["a2"])
    process = {"pid": 472206, "name": "python3.9", "memory_mb": 113, "pid_in_container": None, "own": None}
    assert npu["npu_smi"]["chips"]["0"]["processes"] == [process]
    assert list(npu["npu_smi"]["chips"]) == [str(chip) for chip in range(8)]


def test_a_process_of_the_cluster_is_known(a2: FakeHost) -> None:
    pids = {"of the cluster": os.getpid(), "of somebody else": os.getppid()}
    table = sample("npusmi-a2-25.2.0-one-process")
    line = next(line for line in table.splitlines() if "472206" in line)
    rows = "\n".join(line.replace("472206", f"{pid:<6}") for pid in pids.values())
    a2.answer("npu-smi", "info", table.replace(line, rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_check, "unit_of", lambda pid, *_rest: "d" if pid == os.getpid() else None)
        npu = run(a2, hardware="a2", queries=[], cluster="demo")
    assert [one["own"] for one in npu["npu_smi"]["chips"]["0"]["processes"]] == [True, False]
    assert run(a2, hardware="a2", queries=[], cluster="demo")["npu_smi"]["chips"]["0"]["processes"][0]["own"] is False


def test_chips_are_exactly_the_given_ones(a2: FakeHost) -> None:
    npu = run(a2, hardware="a2", chips=[7, 4, 9, 4], queries=["link", "tls", "link"])
    assert list(npu["chips"]) == ["7", "4", "9"]
    assert list(npu["chips"]["4"]) == ["link", "tls"]
    assert npu["chips"]["9"]["link"]["state"] == "failed"
    assert npu["found"] == list(range(8))


def test_a_host_in_which_four_chips_are_visible(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.chips(0, 3, 4, 7)
    host.answer("npu-smi", "info", sample("npusmi-a2-24.1.rc3-subset-0347"))
    host.answer("hccn_tool", "default", "link status: UP\n")
    npu = run(host, hardware="a2", queries=["link"])
    assert list(npu["npu_smi"]["chips"]) == list(npu["chips"]) == ["0", "3", "4", "7"]
    assert [call for call in host.calls if call.startswith("hccn")] == [
        f"hccn_tool -i {chip} -link -g" for chip in (0, 3, 4, 7)
    ]


def test_what_is_wrong_with_one_chip_is_said_of_that_chip_alone(a3: FakeHost) -> None:
    a3.answer("hccn_tool", "-i 2 -ip -g", sample("hccn-ip-not-set"), 13)
    a3.answer("hccn_tool", "-i 3 -link -g", sample("hccn-link-down"))
    a3.answer("hccn_tool", "-i 4 -vnic -g", sample("hccn-hccsping-unsupported"), 1)
    a3.answer("hccn_tool", "-i 5 -tls -g", "dev_id:6, tls switch[0](0:disable, 1:enable)\n")
    a3.answer("hccn_tool", "-i 6 -gateway -g", sample("hccn-err-conf-access"), 1)
    a3.answer("hccn_tool", "-i 7 -lldp -g", "")
    a3.answer("npu-smi", "info -t spod-info -i 4 -c 1", sample("npusmi-spod-unsupported"), 1)
    chips = run(a3, hardware="a3")["chips"]
    states = {
        (chip, query): answer["state"]
        for chip, answers in chips.items()
        for query, answer in answers.items()
        if answer["state"] != "ok"
    }
    assert states == {
        ("2", "ip"): "not_configured",
        ("4", "vnic"): "unsupported",
        ("5", "tls"): "unknown",  # another chip's answer
        ("6", "gateway"): "conf_unreadable",
        ("7", "lldp"): "not_configured",
        ("9", "spod"): "unsupported",
    }
    assert chips["3"]["link"]["link"] == "DOWN"
    assert chips["2"]["ip"] == {
        "state": "not_configured",
        "ipaddr": None,
        "text": "Get ipconf failed, because no ip was preset there!",
        "exit_code": 13,
    }


@pytest.mark.parametrize(
    ("name", "state", "error", "code"),
    [
        ("npusmi-fail-8005", "failed", "dcmi_init", -8005),
        ("npusmi-fail-8020", "failed", "device_used", -8020),
        ("npusmi-a5-no-process-table", "unknown", None, None),
    ],
)
def test_without_a_table_no_super_pod_is_guessed(a3: FakeHost, name: str, state: str, error: Any, code: Any) -> None:
    a3.answer("npu-smi", "info", sample(name), 1)
    a3.answer("npu-smi", "info -m", sample(name), 1)
    npu = run(a3, hardware="a3", queries=["spod"])
    assert (npu["npu_smi"]["state"], npu["npu_smi"]["error"], npu["npu_smi"]["code"]) == (state, error, code)
    assert npu["npu_smi"]["chips"] == {} and npu["npu_smi"]["text"]
    assert {chip["spod"]["state"] for chip in npu["chips"].values()} == {state}
    assert a3.calls == ["npu-smi info", "npu-smi info -m"]


def test_the_mapping_is_enough_for_the_super_pod(a3: FakeHost) -> None:
    a3.answer("npu-smi", "info", sample("npusmi-fail-8020"), 1)
    npu = run(a3, hardware="a3", queries=["spod"], chips=[11, 99])
    assert npu["chips"]["11"]["spod"]["sdid"] == 16777227
    assert npu["chips"]["99"]["spod"]["state"] == "no_such_device"


def test_a_host_with_nothing(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    npu = run(host, hardware="a3", chips=[0], environment={"PATH": "/nowhere"})
    assert {answer["state"] for answer in npu["chips"]["0"].values()} == {"tool_missing"}
    assert npu["npu_smi"]["state"] == npu["tools"]["npu_smi"]["state"] == "tool_missing"
    assert npu["hccn_conf"]["state"] == "missing" and npu["driver"]["files"]["driver"] == "missing"
    assert run(host, hardware="a3")["chips"] == {}


def test_a_chip_that_hangs_costs_little_and_the_others_are_read(a2: FakeHost) -> None:
    for query in facts.QUERIES["a2"]:
        a2.script("hccn_tool", f"-i 3 -{query} -g", "sleep 60")
    npu = run(a2, hardware="a2", timeout=0.4)
    assert {answer["state"] for answer in npu["chips"]["3"].values()} == {"timeout"}
    assert {answer["state"] for answer in npu["chips"]["4"].values()} == {"ok"}
    assert npu["calls"]["elapsed"] < 20
    assert sum(" -i 3 " in call for call in a2.calls) == 2


def test_the_budget_is_kept(a2: FakeHost) -> None:
    a2.script("hccn_tool", "-i 0 -lldp -g", "sleep 60")
    npu = run(a2, hardware="a2", budget=1)
    assert npu["calls"]["elapsed"] < 3
    assert npu["chips"]["7"]["tls"]["state"] == "timeout" and "were spent" in npu["chips"]["7"]["tls"]["text"]


def test_an_a5_host(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.chips(4, 5)
    host.answer("npu-smi", "info", sample("npusmi-a5-25.7.rc1-alarm"))
    host.answer("npu-smi", "info -m", sample("npusmi-m-a5"))
    for card in (0, 1):
        host.answer("npu-smi", f"info -t spod-info -i {card} -c 0", sample("npusmi-spod-a5"))
        host.answer("hccn_tool", f"-g -dev_info -i {card}", sample("hccn-devinfo-a5"))
        host.answer(
            "hccn_tool",
            f"-g -tls -i {card}",
            sample("hccn-tls-a5-expired").replace("device 0", f"dev_id:{card}").replace("dev_id:0", f"dev_id:{card}"),
        )
        host.answer("hccn_tool", f"-g -link -i {card} -u 0 -p 4", "link status : UP\nport 4 : UP\n")
        host.answer("hccn_tool", f"-g -link -i {card} -u 1 -p 9", "link status : UP\n")
    host.answer("hccn_tool", "-g -link -i 1 -u 1 -p 9", "link status : DOWN\n")
    (host.root / "etc/hixlep").mkdir()
    (host.root / "lib").mkdir()
    (host.root / "lib/route.conf").symlink_to("nothing")
    npu = run(host, hardware="a5")
    # The tool takes the NPU ID of npu-smi, the result names the physical id.
    four, five = npu["chips"]["4"], npu["chips"]["5"]
    ports = [{"udie": 0, "port": 4, "link": "UP"}, {"udie": 1, "port": 9, "link": "UP"}]
    assert four["link"] == {"state": "ok", "link": "UP", "ports": ports}
    assert five["link"]["link"] == "PARTIAL LINK" and five["link"]["ports"][1]["link"] == "DOWN"
    assert four["tls"]["tls_switch"] == five["tls"]["tls_switch"] == 1
    assert five["spod"]["super_pod_id"] == 2 and five["spod"]["sdid"] is None
    assert npu["npu_smi"]["chips"]["4"]["health"] == "Alarm"
    assert npu["npu_smi"]["chips"]["4"]["processes"][0]["pid"] == 4321
    assert npu["files"] == {
        "/lib/route.conf": "dangling",
        "/etc/hccl_rootinfo.json": "missing",
        "/etc/hixlep": "directory",
    }
    assert set(Counter(host.calls).values()) == {1}
    assert not [call for call in host.calls if call.startswith("hccn_tool") and not call.startswith("hccn_tool -g ")]


def test_an_a5_port_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    host = FakeHost(tmp_path)
    host.chips(0)
    host.answer("hccn_tool", "-g -dev_info -i 0", sample("hccn-devinfo-a5"))
    host.answer("hccn_tool", "-g -link -i 0 -u 0 -p 4", "link status : UP\n")
    host.answer("hccn_tool", "-g -link -i 0 -u 1 -p 9", "link status : U")
    link = run(host, hardware="a5", queries=["link"])["chips"]["0"]["link"]
    assert link == {"state": "unknown", "text": "link status : U", "udie": 1, "port": 9}
    host.answer("hccn_tool", "-g -dev_info -i 0", "Get device info failed.\n", 1)
    link = run(host, hardware="a5", queries=["link"])["chips"]["0"]["link"]
    assert link["state"] == "failed" and "ports are not known" in link["text"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"hardware": "a2", "queries": ["vnic", "spod"]}, "queries: spod, vnic cannot be asked of a2"),
        ({"hardware": "a3", "chips": [-1]}, "chips must be physical ids from 0 on, not -1"),
        ({"hardware": "a3", "timeout": 0}, "timeout and budget must be more than 0 seconds"),
        ({"hardware": "a3", "cluster": "../x"}, "cluster must be made of letters"),
        ({"hardware": "a4"}, "value of hardware must be one of"),
    ],
)
def test_wrong_options_are_told(tmp_path: Path, args: dict[str, Any], message: str) -> None:
    result = raw(root=str(tmp_path), environment={"PATH": ""}, **args)
    assert result["failed"] and message in result["msg"]
