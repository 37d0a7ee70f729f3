# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""report.json, the terminal's matrix, exit codes, the view of a plan, and facts that are not what they should be."""

from __future__ import annotations

import copy
import json
import typing as t

import hypothesis
import hypothesis.strategies as st
import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import planner, preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import checks
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.checks import blame
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.verdicts import RANKS, Report
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils import support
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import demo, faults, fleets


@pytest.fixture(scope="module")
def report() -> Report:
    return demo.faulty().judge()


# report.json ----------------------------------------------------------------------------------------------------------


def test_json_holds_what_the_report_holds(report: Report) -> None:
    data = json.loads(json.dumps(preflight.to_json(report)))
    assert data["schema"] == 1 and data["cluster"] == "demo" and data["hardware"] == "a3"
    assert data["made"] == "2026-09-21T14:13:20Z"
    assert data["hosts"] == list(demo.HOSTS) and data["not_asked"] == []
    assert {name: number for name, number in data["counts"].items() if name != "ok"} == {
        "error": 7,
        "warning": 2,
        "unknown": 0,
        "info": 0,
    }
    assert data["counts"]["ok"] == report.ok_cells > 300
    (tls,) = (one for one in data["verdicts"] if one["check"] == "tls-equal")
    assert (tls["host"], tls["chip"], tls["severity"], tls["tag"]) == ("d2", 5, "error", "fabric")
    assert (tls["expected"], tls["found"]) == ("off (0)", "on (1)")
    assert tls["see"] == "docs/preflight.md#tls-equal"
    assert data["chips"]["d2"]["5"] == "error" and data["chips"]["d2"]["6"] == "ok"
    assert set(data["chips"]["p4"].values()) == {"unknown"}
    assert data["blocked"]["tls-equal"] == ["p4"]
    assert data["passed"]["chip-health"] == {"hosts": 7, "chips": 127}
    assert "p4" not in json.dumps(data["passed"])


def test_worst_verdicts_come_first(report: Report) -> None:
    ranks = [RANKS.index(one.severity) for one in report.verdicts]
    assert ranks == sorted(ranks, reverse=True)


def test_nothing_unknown_is_counted_as_passed() -> None:
    """Whatever one fact is taken away, no check passes on more places than before, and none more is good."""
    case = fleets.good("a3")
    before = preflight.to_json(case.judge())["passed"]
    for chip in case.chips():
        for query in case.facts["d1"]["npu"]["chips"][str(chip)]:
            case.facts["d1"]["npu"]["chips"][str(chip)][query] = {"state": "unknown", "text": "link sta"}
    report = case.judge()
    after = preflight.to_json(report)["passed"]
    # Of all queries together this is one verdict per kind of tool, and what was not seen has not passed.
    for check in ("link", "net-health", "netdetect", "gateway", "tls-equal", "chip-address", "super-pod"):
        assert after[check]["hosts"] == before[check]["hosts"] - 1
        assert report.cells[check].get("d1") != "ok"


@pytest.mark.parametrize(
    ("apply", "options", "code"),
    [
        (None, {}, 0),
        (faults.clock_ahead, {}, 0),
        (faults.clock_ahead, {"warnings_fail": True}, 1),
        (faults.clock_not_told, {}, 0),
        (faults.clock_not_told, {"warnings_fail": True}, 0),
        (faults.clock_not_told, {"unknown_fails": True}, 1),
        (faults.other_kernel, {"warnings_fail": True, "unknown_fails": True}, 0),
        (faults.tls_on, {}, 2),
        (faults.tls_on, {"warnings_fail": True}, 2),
    ],
)
def test_exit_codes(apply: faults.Apply | None, options: dict[str, bool], code: int) -> None:
    case = fleets.good("a3")
    if apply:
        apply(case, "d1")
    assert preflight.exit_code(case.judge(), **options) == code


# The terminal ---------------------------------------------------------------------------------------------------------


def test_matrix_of_a_small_fleet_shows_all_hosts(report: Report) -> None:
    text = preflight.render_matrix(report)
    rows = {line.split()[0]: line for line in text.splitlines() if line.split() and line.split()[0] in demo.HOSTS}
    assert set(rows) == set(demo.HOSTS)
    assert rows["d2"].endswith("chips E:5") and rows["p4"].endswith("chips ?:0-15")
    assert "ERROR [tls-equal] d2 chip 5" in text and "Fix: on d2: `hccn_tool -i 5 -tls -s enable 0`" in text
    assert text.splitlines()[-1].startswith("7 errors, 2 warnings; ")


def test_headings_stand_above_their_columns(report: Report) -> None:
    lines = preflight.render_matrix(report).splitlines()
    heading = next(line for line in lines if line.endswith(" tls-equal"))
    column = heading.index("tls-equal")
    row = next(line for line in lines if line.startswith("d2 "))
    assert row[column] == "E"


def test_matrix_of_a_large_fleet_shows_what_is_wrong() -> None:
    case = fleets.good("a2", [f"host-{number:03}" for number in range(256)])
    faults.tls_on(case, "host-200")
    faults.link_not_read(case, "host-100")
    lines = preflight.render_matrix(case.judge()).splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 150
    assert [line.split()[0] for line in lines if line.startswith("host-")] == ["host-100", "host-200"]
    assert "254 of 256 hosts have nothing to report." in lines


def test_what_is_wrong_alike_is_said_once() -> None:
    case = fleets.good("a3", [f"host-{number:03}" for number in range(64)])
    for host in case.hosts:
        faults.every_chip(case, host, "link", link="DOWN")
    faults.tls_on(case, "host-007")
    text = preflight.render_matrix(case.judge())
    assert text.count("WARNING [link]") == 1 and text.count("ERROR [tls-equal]") == 1
    assert "the same: host-001 chips 0-15, host-002 chips 0-15" in text and "and 44 more" in text
    assert "1 error, 64 warnings" in text


def test_matrix_of_a_good_fleet_is_short() -> None:
    text = preflight.render_matrix(fleets.good("a3").judge())
    assert "Good everywhere" in text and "ERROR" not in text
    assert text.splitlines()[-1].startswith("0 errors; ")


def test_matrix_names_what_was_not_judged_and_why() -> None:
    case = fleets.good("a3")
    case.asked = ["p1", "p2"]
    case.facts = {host: case.facts[host] for host in case.asked}
    case.pings = None
    text = preflight.render_matrix(case.judge())
    assert "Not judged, they need d1, d2 too:" in text and "tls-equal" in text


def test_matrix_names_the_pings_that_were_left_out() -> None:
    case = fleets.good("a3", [f"p{number}" for number in range(12)])
    text = preflight.render_matrix(case.judge())
    assert "18 pairs of hosts were not pinged" in text


# Facts that are not what they should be -------------------------------------------------------------------------------

JUNK = st.sampled_from([None, "", "x", -1, 0, 3.5, True, [], {}, ["x"], {"state": "ok"}, {"x": None}, "0" * 400])


def paths(value: t.Any, here: tuple[t.Any, ...] = ()) -> t.Iterator[tuple[t.Any, ...]]:
    if here:
        yield here
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from paths(child, (*here, key))


SOUND = fleets.good("a3", ("p1", "d1"))
for _chip in range(2, 16):
    # Fewer chips, so that each path is drawn more often.
    for _host in SOUND.hosts:
        del SOUND.facts[_host]["npu"]["chips"][str(_chip)], SOUND.facts[_host]["npu"]["npu_smi"]["chips"][str(_chip)]
for _host in SOUND.hosts:
    SOUND.view["hosts"][_host]["chips"] = [0, 1]
    SOUND.host(_host)["findings"] = [faults.finding("port", 7100, "pd_api_port")]
    SOUND.smi(_host, 1)["processes"] = [{"pid": 1, "name": "x", "memory_mb": 1}]
PATHS = list(paths(SOUND.facts))


def changed(facts: dict[str, t.Any], path: tuple[t.Any, ...], value: t.Any) -> None:
    """Put a value at a path, where an earlier change has left that path."""
    inner: t.Any = facts
    try:
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = copy.deepcopy(value)
    except (IndexError, KeyError, TypeError):
        return


def judged(facts: dict[str, t.Any]) -> Report:
    case = fleets.Case("a3", SOUND.hosts, SOUND.view, facts, None, list(SOUND.hosts))
    case.pings = fleets.run_pings(case.view, facts)
    return case.judge()


@hypothesis.given(st.lists(st.tuples(st.sampled_from(PATHS), JUNK), min_size=1, max_size=4))
@hypothesis.settings(max_examples=300)
def test_junk_in_facts_breaks_nothing(changes: list[tuple[tuple[t.Any, ...], t.Any]]) -> None:
    facts = copy.deepcopy(SOUND.facts)
    for path, junk in changes:
        changed(facts, path, junk)
    report = judged(facts)
    json.dumps(preflight.to_json(report))
    preflight.render_matrix(report)
    preflight.render_html(report)


# What no check reads, and what one can do without: a card follows from the chip, the driver's version is npu-smi's too,
# without processes nobody asks whose they are, a model may have no index.
UNUSED = {
    "average_us", "bus_id", "calls", "temperature_c", "iface", "super_pod_size", "hugepages_free", "install", "path", "version",
    "lines_not_understood", "netmask", "card", "chip", "name", "lo", "eth-mgmt", "own_pids", "address", "config_digest",
    "index_digest",
}  # fmt: skip
UNUSED_PATHS = {("npu", "driver", "driver")}


def test_no_fact_can_be_taken_away_without_being_missed() -> None:
    """Each fact of one host in turn becomes null: something is said or left open. Never is all as good as before."""
    sound = copy.deepcopy(SOUND.facts)
    for host in SOUND.hosts:
        sound[host]["host"]["findings"] = []
        sound[host]["npu"]["npu_smi"]["chips"]["1"]["processes"] = []
    assert judged(sound).verdicts == []
    unnoticed = []
    for path in paths(sound):
        if path[0] != "d1" or set(path) & UNUSED:
            continue
        facts = copy.deepcopy(sound)
        changed(facts, path, None)
        report = judged(facts)
        # Chips that the plan does not use are not looked at.
        other_chip = any(key not in ("0", "1") for key in path if str(key).isdigit() and "chips" in path)
        if not report.verdicts and not other_chip and path[1:] not in UNUSED_PATHS:
            unnoticed.append(path[1:])
    assert unnoticed == [], "\n".join(map(str, unnoticed))


# Who is to blame ------------------------------------------------------------------------------------------------------


def full_mesh(names: str) -> list[tuple[str, str]]:
    return [(a, b) for a in names for b in names if a != b]


def test_one_place_explains_all_of_its_connections() -> None:
    tested = full_mesh("abcde")
    bad = [edge for edge in tested if "c" in edge]
    (only,) = blame.blame(tested, bad)
    assert only.node == "c" and set(only.edges) == set(bad)


def test_two_places_are_two_explanations() -> None:
    tested = full_mesh("abcdef")
    bad = [edge for edge in tested if set(edge) & {"c", "e"}]
    found = blame.blame(tested, bad)
    assert {one.node for one in found} == {"c", "e"}
    assert sorted(edge for one in found for edge in one.edges) == sorted(bad)


@pytest.mark.parametrize("end", [0, 1])
def test_one_direction_of_a_place_and_what_is_bad_in_the_other(end: int) -> None:
    tested = full_mesh("abcde")
    bad = [edge for edge in tested if edge[end] == "c"]
    bad.append(("a", "c") if end == 0 else ("c", "a"))
    (only,) = blame.blame(tested, bad)
    assert only.node == "c" and set(only.edges) == set(bad)


def test_a_single_pair_blames_nobody() -> None:
    tested = full_mesh("abcd")
    (only,) = blame.blame(tested, [("a", "b")])
    assert only.node is None and only.edges == (("a", "b"),)


@hypothesis.given(st.sets(st.sampled_from(full_mesh("abcdef"))), st.data())
def test_every_bad_connection_is_explained_once(tested: set[tuple[str, str]], data: st.DataObject) -> None:
    ordered = sorted(tested)
    bad = data.draw(st.lists(st.sampled_from(ordered), unique=True)) if ordered else []
    found = blame.blame(ordered, bad)
    assert sorted(edge for one in found for edge in one.edges) == sorted(bad)
    for one in found:
        assert one.edges and all(one.node is None or one.node in edge for edge in one.edges)


# The plan's view ------------------------------------------------------------------------------------------------------


def source(**more: t.Any) -> t.Any:
    cluster = {"pd_hardware": "a3", "pd_model_path": "/models/m", "pd_served_model_name": "m", **more}
    hosts = {"p1": {"pd_dp_size": 2, "pd_tp_size": 8}, "d1": {"pd_dp_size": 16, "pd_tp_size": 1}}
    return {
        "groups": {
            "prefill": {"hosts": ["p1"], "children": {}},
            "decode": {"hosts": ["d1"], "children": {}},
            "proxy": {"hosts": ["door"], "children": {}},
        },
        "hosts": {
            "p1": {"ansible_host": "192.0.2.1", "pd_nic": "enp1", **cluster, **hosts["p1"]},
            "d1": {"ansible_host": "192.0.2.2", **cluster, **hosts["d1"]},
            "door": {"ansible_host": "192.0.2.3", **cluster},
        },
    }


def test_view_of_a_plan_is_plain_data() -> None:
    view = preflight.plan_view(planner.plan(source()))
    assert json.loads(json.dumps(view)) == view
    assert (view["hardware"], view["plane"], view["runtime"]) == ("a3", "hccs", "docker")
    assert list(view["hosts"]) == ["p1", "d1", "door"]
    assert view["hosts"]["p1"] == {
        "node_ip": "192.0.2.1",
        "nic": "enp1",
        "chips": list(range(16)),
        "chips_per_node": 16,
        "instances": ["prefill-p1"],
        "roles": ["prefill"],
        "proxy": False,
        "model_path": "/models/m",
        "workers": 16,
        "memory_utilization": 0.9,
        "pool_mb": 0,
        "pool_arithmetic": "",
        "pinned_mb": 0,
    }
    assert view["hosts"]["door"]["nic"] is None and view["hosts"]["door"]["chips"] == []


def test_dev_01_the_chips_that_are_asked_are_those_in_use() -> None:
    """DEV-01: by their physical numbers; a chip that the container only sees may have no address or be out of order."""
    given = source()
    given["hosts"]["p1"] |= {"pd_mapped_chips": [0, 3, 4, 7], "pd_chips": [4, 7], "pd_tp_size": 2, "pd_dp_size": 1}
    plan = planner.plan(given)
    assert not plan.errors, plan.findings
    assert preflight.plan_view(plan)["hosts"]["p1"]["chips"] == [4, 7]


def test_view_tells_what_the_engine_wants() -> None:
    pool = {"backend": "mooncake", "config": {"global_segment_size": "64GB"}}
    more = {"pd_engine_args_common": {"gpu-memory-utilization": 0.8}, "pd_kv_pool": pool}
    view = preflight.plan_view(planner.plan(source(**more)))
    assert view["hosts"]["p1"]["memory_utilization"] == 0.8
    assert view["hosts"]["p1"]["pool_mb"] == 16 * 65 * 1024
    said = "16 workers x (64 GB global_segment_size + 1 GB local_buffer_size) = 1040 GB"
    assert view["hosts"]["p1"]["pool_arithmetic"] == said


def test_view_tells_what_decode_pins() -> None:
    view = preflight.plan_view(planner.plan(support.d2rh()))
    assert (view["hosts"]["p1"]["pinned_mb"], view["hosts"]["d1"]["pinned_mb"]) == (0, 4 * 50 * 1024)
    unknown = preflight.plan_view(planner.plan(support.d2rh(all={"pd_kv_cache_gib": None})))
    assert unknown["hosts"]["d1"]["pinned_mb"] == 0


def test_a_host_with_only_the_proxy_is_asked_for_nothing_of_chips() -> None:
    view = preflight.plan_view(planner.plan(source()))
    facts = {
        host: {"npu": fleets.npu("a3", number), "host": fleets.host_facts(number, ["p1", "d1", "door"], host)}
        for number, host in enumerate(view["hosts"])
    }
    facts["door"]["npu"] = t.cast(t.Any, None)
    for host, card in (("p1", "enp1"), ("d1", "eth0")):
        nics = facts[host]["host"]["nics"]
        nics[card] = nics.pop("eth0")
        facts[host]["host"]["models"] = {"/models/m": facts[host]["host"]["models"][fleets.MODEL]}
    run = fleets.run_pings(t.cast(t.Any, view), facts)
    report = preflight.judge(
        view, t.cast(t.Any, facts), t.cast(t.Any, run), list(facts), list(view["hosts"]), fleets.NOW
    )
    assert [(one.check, one.host) for one in report.verdicts] == []
    assert "door" in report.cells["node-ip"] and "door" not in report.cells["tls-equal"]


# The catalog ----------------------------------------------------------------------------------------------------------


def test_every_check_has_a_function_and_two_titles() -> None:
    assert len({check.id for check in checks.CHECKS}) == len(checks.CHECKS)
    for check in checks.CHECKS:
        assert callable(checks.function(check.id))
        assert check.title and any("\u4e00" <= letter <= "\u9fff" for letter in check.title_zh)
