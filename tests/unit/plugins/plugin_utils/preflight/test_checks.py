# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Every check: one fault leads to exactly its verdict, two lead to both, none to none."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import checks, matrix
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.verdicts import Report, Verdict
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import faults, fleets
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight.faults import FAULTS, Fault

CASES = [pytest.param(one, hardware, id=f"{one.name}-{hardware}") for one in FAULTS for hardware in one.hardware]
HARDWARE = pytest.mark.parametrize("hardware", ["a2", "a3"])
# Where a chip may be named in also because two of one host are at fault together.
SEVERAL = {"address-unique", "sdid-unique"}


def said(report: Report) -> list[tuple[str, str, str, int | None]]:
    return [(one.check, one.severity, one.host, one.chip) for one in report.verdicts]


def only(report: Report) -> Verdict:
    assert len(report.verdicts) == 1, said(report)
    return report.verdicts[0]


@HARDWARE
@pytest.mark.parametrize("hosts", [fleets.HOSTS, ("p1",), ("p1", "d1")], ids=len)
def test_a_fleet_without_faults_has_no_verdict(hardware: str, hosts: tuple[str, ...]) -> None:
    report = fleets.good(hardware, hosts).judge()
    assert said(report) == []
    assert report.not_judged == [] and report.blocked == {}
    assert {chip for row in report.chips.values() for chip in row.values()} == {"ok"}


@pytest.mark.parametrize(("one", "hardware"), CASES)
def test_one_fault_is_one_verdict(one: Fault, hardware: str) -> None:
    case = fleets.good(hardware)
    one.apply(case, "d1")
    verdict = only(case.judge())
    assert (verdict.check, verdict.severity, verdict.host) == (one.check, one.severity, "d1")
    if one.check not in SEVERAL:
        assert verdict.chip == one.chip
    text = f"{verdict.message} {verdict.found} {verdict.fix}"
    assert [word for word in one.says if word not in text] == [], text
    texts_are_whole_in_both_languages(verdict)


@pytest.mark.parametrize(
    "name",
    [
        "chip_loses_what_it_sends",
        "chip_receives_nothing",
        "chip_loses_packets_now_and_then",
        "chip_sends_over_a_wrong_plane",
    ],
)
def test_one_sick_chip_marks_no_other(name: str) -> None:
    case = fleets.good("a3")
    next(one for one in FAULTS if one.name == name).apply(case, "d1")
    report = case.judge()
    verdict = only(report)
    assert verdict.also == ()
    marked = {(host, chip) for host, row in report.chips.items() for chip, sign in row.items() if sign != "ok"}
    assert marked == {("d1", 5)}
    assert {host for host, sign in report.cells[verdict.check].items() if sign != "ok"} == {"d1"}


def test_every_chip_of_a_host_that_loses_what_it_sends_is_one_host() -> None:
    case = fleets.good("a3")
    for one in case.pings_where(lambda one: one["from_host"] == "d1" != one["to_host"]):
        one.update(loss_percent=100.0, received=0, average_us=None)
    verdict = only(case.judge())
    assert (verdict.host, verdict.chip) == ("d1", None) and "every ping from d1" in verdict.message
    assert {place.host for place in verdict.places} == {"d1"}


def test_two_pairs_of_the_same_host_are_told_apart() -> None:
    case = fleets.good("a3")
    pairs = [{("d1", 1), ("p1", 1)}, {("d1", 2), ("p2", 2)}]
    for one in case.pings_where(lambda one: faults.ends(one) in pairs):
        one.update(loss_percent=100.0, received=0, average_us=None)
    report = case.judge()
    text = "\n".join(matrix.verdict_lines(report))
    first, second = report.verdicts
    assert f"the same: {second.host} chip {second.chip} and {second.also[0]}" in text
    assert first.chip != second.chip


def texts_are_whole_in_both_languages(verdict: Verdict) -> None:
    for text in (verdict.message, verdict.fix, verdict.message_zh, verdict.fix_zh):
        assert text.strip() and "{" not in text and "None" not in text
        assert text.count("`") % 2 == 0
    assert "d1" in verdict.message and "d1" in verdict.message_zh
    if verdict.chip is not None:
        assert str(verdict.chip) in verdict.message and str(verdict.chip) in verdict.message_zh
    if verdict.check not in checks.HOST_CHECK:
        assert any("\u4e00" <= letter <= "\u9fff" for letter in verdict.message_zh + verdict.fix_zh)


def pairs(hardware: str) -> t.Iterator[t.Any]:
    """Each fault with the one that follows it in the list, and with one far from it."""
    fitting = [one for one in FAULTS if hardware in one.hardware]
    for place, one in enumerate(fitting):
        for step in (1, len(fitting) // 3):
            other = fitting[(place + step) % len(fitting)]
            if one is not other and one.check != other.check:
                yield pytest.param(one, other, hardware, id=f"{one.name}-{other.name}-{hardware}")


# A host that tells nothing has nobody to be compared with, and its pings stay without a judge.
SHADOWS = {"unreachable", "no_npu_facts"}


@pytest.mark.parametrize(("one", "other", "hardware"), [*pairs("a2"), *pairs("a3")])
def test_two_faults_are_two_verdicts(one: Fault, other: Fault, hardware: str) -> None:
    case = fleets.good(hardware)
    one.apply(case, "p2")
    if other.name in SHADOWS and "host" not in case.facts.get("p2", {"host": 1}):
        pytest.skip("nothing to put a second fault into")
    other.apply(case, "d1")
    report = case.judge()
    found = {(verdict.check, verdict.severity, verdict.host) for verdict in report.verdicts}
    assert found == {(one.check, one.severity, "p2"), (other.check, other.severity, "d1")}


def test_every_check_has_a_fault() -> None:
    """tls-certificate and server-index need more than one host's facts changed: tests below."""
    assert {check.id for check in checks.CHECKS} - {one.check for one in FAULTS} == {"tls-certificate", "server-index"}


# The odd one out, and nobody knows who it is --------------------------------------------------------------------------


@HARDWARE
def test_tls_half_on_half_off_names_both_camps(hardware: str) -> None:
    case = fleets.good(hardware)
    for host in ("p1", "p2"):
        faults.every_chip(case, host, "tls", tls_switch=1)
    verdict = only(case.judge())
    assert verdict.check == "tls-equal"
    assert "off (0): d1, d2" in verdict.found and "on (1): p1, p2" in verdict.found
    assert {place.host for place in verdict.places} == set(fleets.HOSTS)


def test_an_image_that_each_host_derived_for_itself_is_the_same() -> None:
    case = fleets.good("a3")
    for number, host in enumerate(fleets.HOSTS):
        case.host(host)["docker"]["image"].update(digest=f"sha256:{number:064x}", parts="ab" * 32)
    assert case.judge().verdicts == []


@pytest.mark.parametrize(
    "apply", [faults.other_mtu, faults.other_driver, faults.other_image, faults.other_kernel, faults.hugepages_reserved]
)
def test_without_a_majority_all_are_named(apply: faults.Apply) -> None:
    case = fleets.good("a2", ("p1", "d1"))
    apply(case, "d1")
    verdict = only(case.judge())
    assert {place.host for place in verdict.places} == {"p1", "d1"}
    assert "p1" in verdict.found and "d1" in verdict.found


def test_model_differs_within_its_role_only() -> None:
    case = fleets.good("a3", ("p1", "p2", "p3", "d1", "d2", "d3"))
    case.host("d2")["models"][fleets.MODEL].update(index_digest="ff" * 32, bytes=1)
    verdict = only(case.judge())
    assert (verdict.check, verdict.host) == ("model-alike", "d2")
    assert "rsync" in verdict.fix and "d1:" in verdict.fix
    # The other role may have other files: another quantisation, say.
    case = fleets.good("a3")
    for host in ("d1", "d2"):
        case.host(host)["models"][fleets.MODEL].update(config_digest="ee" * 32)
    assert said(case.judge()) == []
    case.host("d1")["models"][fleets.MODEL].update(count=162)
    assert only(case.judge()).check == "model-alike"


def test_a_missing_file_of_a_model_marks_no_other_host() -> None:
    case = fleets.good("a3")
    next(one for one in FAULTS if one.name == "model_file_missing").apply(case, "p2")
    report = case.judge()
    assert said(report) == [("path", "error", "p2", None)]
    assert report.blocked["model-alike"] == ["p2"]
    assert report.cells["model-alike"] == dict.fromkeys(("p1", "d1", "d2"), "ok")
    # What else is wrong with the copy is still said.
    case.host("p2")["models"][fleets.MODEL].update(count=162)
    assert ("model-alike", "error", "p2", None) in said(case.judge())


def test_two_hosts_of_a_role_are_judged_by_the_copies_of_all() -> None:
    case = fleets.good("a3")
    case.host("p2")["models"][fleets.MODEL].update(index_digest="ff" * 32)
    verdict = only(case.judge())
    assert (verdict.host, verdict.also) == ("p2", ()) and "p1:" in verdict.fix
    # Half of all hosts make no majority.
    case.host("d2")["models"][fleets.MODEL].update(index_digest="ff" * 32)
    assert [one.host for one in case.judge().verdicts] == ["p2", "d2"]
    assert "no copy is in the majority" in case.judge().verdicts[0].message


# Super pods (FAB-11) --------------------------------------------------------------------------------------------------


def test_fab_11_another_super_pod_with_the_same_sdids() -> None:
    """FAB-11: 0 is an id, and equal SDIDs hide it."""
    case = fleets.good("a3", ("d1", "d2"))
    for chip in case.chips():
        case.query("d2", chip, "spod").update({**case.query("d1", chip, "spod"), "super_pod_id": 1})
    verdict = only(case.judge())
    assert verdict.check == "super-pod" and verdict.severity == "error"
    assert {place.host for place in verdict.places} == {"d1", "d2"}
    # Pod 0 is a pod, and what makes d2 look like d1 is said.
    assert "0: d1" in verdict.found and "1: d2" in verdict.found and "SDID" in verdict.message


def test_fab_11_one_vnic_address_twice() -> None:
    """FAB-11: a ping would be answered by the wrong chip."""
    case = fleets.good("a3")
    for host in ("p1", "d1"):
        case.query(host, 0, "vnic")["ipaddr"] = "192.0.2.199"
    verdict = only(case.judge())
    assert verdict.check == "address-unique"
    assert "192.0.2.199 is on p1 chip 0 and d1 chip 0" in verdict.message
    assert [str(place) for place in verdict.places] == ["p1 chip 0", "d1 chip 0"]


def test_a_host_with_all_addresses_of_another_is_one_verdict() -> None:
    case = fleets.good("a3")
    for chip in case.chips():
        case.query("d2", chip, "vnic")["ipaddr"] = case.query("d1", chip, "vnic")["ipaddr"]
    verdict = only(case.judge())
    assert verdict.check == "address-unique" and "d1 and d2" in verdict.message
    assert len(verdict.places) == 33


def test_server_index_twice_is_not_also_sixteen_sdids_twice() -> None:
    case = fleets.good("a3")
    for chip in case.chips():
        case.query("d2", chip, "spod").update(case.query("d1", chip, "spod"))
    report = case.judge()
    verdict = only(report)
    assert verdict.check == "server-index" and "d1, d2" in verdict.message
    assert report.blocked["sdid-unique"] == ["d1", "d2"]


# TLS certificates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "severity"),
    [
        (0, None),
        ("normal", None),
        (1, "warning"),
        ("near expiration", "warning"),
        (2, "error"),
        ("has expired", "error"),
    ],
)
def test_certificates(state: object, severity: str | None) -> None:
    case = fleets.good("a2")
    for host in fleets.HOSTS:
        faults.every_chip(case, host, "tls", tls_switch=1, cert_expiration="normal")
    case.query("p2", 3, "tls")["cert_expiration"] = state
    report = case.judge()
    if severity is None:
        assert said(report) == []
    else:
        assert said(report) == [("tls-certificate", severity, "p2", 3)]


def test_an_old_certificate_is_nothing_while_tls_is_off() -> None:
    case = fleets.good("a2")
    case.query("p2", 3, "tls")["cert_expiration"] = 2
    assert said(case.judge()) == []


# Links on A3 ----------------------------------------------------------------------------------------------------------


def test_a3_without_optics_has_one_warning_per_host_and_kind() -> None:
    """FAB-07: HCCS decides, not the RoCE ports."""
    case = fleets.good("a3")
    for host in fleets.HOSTS:
        faults.every_chip(case, host, "link", link="DOWN")
        faults.every_chip(case, host, "net_health", net_health="Init")
        case.facts[host]["npu"]["hccn_conf"] = {"state": "empty", "chips": {}}
        for chip in case.chips():
            own = case.facts[host]["npu"]["chips"][str(chip)]
            own.update({query: {"state": "not_configured"} for query in ("ip", "gateway", "netdetect", "lldp")})
    report = case.judge()
    assert said(report) == [("link", "warning", host, None) for host in fleets.HOSTS]
    assert all("chips 0-15" in verdict.message or "chip 0-15" in verdict.message for verdict in report.verdicts)


def test_a3_link_down_is_an_error_when_a_ping_fails_too() -> None:
    case = fleets.good("a3")
    case.query("d1", 5, "link")["link"] = "DOWN"
    faults.fail_pings(case, lambda one: ("d1", 5) in faults.ends(one))
    assert sorted(said(case.judge())) == [("link", "error", "d1", 5), ("ping", "error", "d1", 5)]


def test_a_host_that_cannot_be_reached_makes_no_other_link_worse() -> None:
    case = fleets.good("a3")
    for host in fleets.HOSTS:
        faults.every_chip(case, host, "link", link="DOWN")
    faults.host_cannot_be_reached(case, "d2")
    assert sorted(said(case.judge())) == [
        ("link", "error", "d2", None),
        *(("link", "warning", host, None) for host in ("d1", "p1", "p2")),
        ("ping", "error", "d2", None),
    ]


def test_a3_link_down_without_any_ping_is_unknown() -> None:
    case = fleets.good("a3", ("d1",))
    case.query("d1", 5, "link")["link"] = "DOWN"
    assert said(case.judge()) == [("link", "unknown", "d1", 5)]


# Gateways -------------------------------------------------------------------------------------------------------------


def test_different_subnets_without_a_gateway_are_an_error() -> None:
    case = fleets.good("a2")
    for chip in case.chips():
        own = case.facts["d2"]["npu"]["chips"][str(chip)]
        own["gateway"] = {"state": "not_configured"}
        own["ip"]["ipaddr"] = case.facts["d2"]["npu"]["hccn_conf"]["chips"][str(chip)]["address"] = f"12.0.0.{chip + 1}"
    verdict = only(case.judge())
    assert (verdict.check, verdict.severity, verdict.host) == ("gateway", "error", "d2")
    assert "11.0.0.0/16" in verdict.message and "12.0.0.0/16" in verdict.message


def test_a_stale_address_that_is_another_chips_is_told_once() -> None:
    case = fleets.good("a3")
    case.query("d2", 5, "ip")["ipaddr"] = case.query("p1", 0, "ip")["ipaddr"]
    assert said(case.judge()) == [("hccn-conf", "error", "d2", 5)]
    # Where the files have it twice as well, neither is the wrong one.
    case.facts["d2"]["npu"]["hccn_conf"]["chips"]["5"]["address"] = case.query("p1", 0, "ip")["ipaddr"]
    assert said(case.judge()) == [("address-unique", "error", "p1", 0)]


def test_an_address_that_was_moved_out_of_its_gateways_subnet_is_told_once() -> None:
    case = fleets.good("a3")
    case.query("d1", 5, "ip")["ipaddr"] = "12.0.0.5"
    chip = case.facts["d1"]["npu"]["chips"]["5"]
    chip["gateway"] = {"state": "ok", "gateway": "11.0.0.1", "iface": "eth5"}
    report = case.judge()
    assert said(report) == [("hccn-conf", "error", "d1", 5)]
    assert "d1" in report.blocked["gateway"]
    # A gateway that neither fits is a fault of its own.
    chip["gateway"]["gateway"] = "13.0.0.1"
    assert said(case.judge()) == [("hccn-conf", "error", "d1", 5), ("gateway", "warning", "d1", 5)]


def test_back_to_back_needs_neither_gateway_nor_switch() -> None:
    """FAB-09: no chip sees a switch."""
    case = fleets.good("a2")
    case.view["topology"] = "back_to_back"
    for host in fleets.HOSTS:
        for chip in case.chips():
            case.facts[host]["npu"]["chips"][str(chip)].update(
                gateway={"state": "not_configured"}, lldp={"state": "ok"}
            )
    assert said(case.judge()) == []
    # The same with a switch: no chip sees it, which is a hint (FAB-09) and one verdict, not one per chip.
    case.view["topology"] = "switched"
    checks_said = [check for check, _severity, _host, _chip in said(case.judge())]
    assert checks_said.count("lldp") == 1


# Pings ----------------------------------------------------------------------------------------------------------------


def test_two_chips_that_do_not_reach_each_other() -> None:
    case = fleets.good("a3")
    wanted = {("p1", 3), ("d1", 3)}
    faults.fail_pings(case, lambda one: faults.ends(one) == wanted)
    verdict = only(case.judge())
    assert verdict.check == "ping" and "<->" in verdict.message
    assert {(place.host, place.chip) for place in verdict.places} == wanted


def test_one_direction_only() -> None:
    case = fleets.good("a3")
    faults.fail_pings(case, lambda one: (one["from_host"], one["from_chip"], one["to_host"]) == ("p1", 3, "d1"))
    verdict = only(case.judge())
    assert "p1 chip 3 -> d1 chip 3" in verdict.message


def test_two_hosts_that_do_not_reach_each_other() -> None:
    case = fleets.good("a3")
    faults.fail_pings(case, lambda one: {one["from_host"], one["to_host"]} == {"p1", "d1"})
    verdict = only(case.judge())
    assert verdict.check == "ping" and "between" in verdict.message
    assert {place.host for place in verdict.places} == {"p1", "d1"}


@pytest.mark.parametrize("hosts", [("p1", "d1"), fleets.HOSTS], ids=len)
def test_no_ping_passes_at_all(hosts: tuple[str, ...]) -> None:
    case = fleets.good("a3", hosts)
    faults.fail_pings(case, lambda one: True)
    verdict = only(case.judge())
    assert verdict.check == "ping" and {place.host for place in verdict.places} == set(hosts)


def test_a_ping_that_nobody_tells_of_is_unknown() -> None:
    case = fleets.good("a3")
    assert case.pings is not None
    case.pings["results"][0] = {**case.pings["results"][0], "state": "unknown", "loss_percent": None}
    assert [(check, severity) for check, severity, _host, _chip in said(case.judge())] == [("ping", "unknown")]


# What a run that is not about all hosts can say -----------------------------------------------------------------------


def test_outside_of_the_limit_is_not_judged_by_name() -> None:
    case = fleets.good("a3")
    case.asked = ["p1", "p2"]
    case.facts = {host: case.facts[host] for host in case.asked}
    case.pings = fleets.run_pings(case.view, case.facts)
    report = case.judge()
    assert said(report) == []
    across = {check.id for check in checks.CHECKS if check.across}
    assert set(report.not_judged) == across and report.not_asked == ["d1", "d2"]
    assert across & set(report.passed) == set()
    # What differs among those that were asked is told all the same.
    case.query("p1", 3, "tls")["tls_switch"] = 1
    assert said(case.judge()) == [("tls-equal", "error", "p1", 3)]


def test_hosts_that_connect_to_none_of_the_asked_ones_are_not_judged_by_that() -> None:
    """Two prefill hosts never connect to each other: --limit leaves them nothing to try."""
    case = fleets.good("a3")
    case.asked = ["p1", "p2"]
    case.facts = {host: case.facts[host] for host in case.asked}
    for facts in case.facts.values():
        about = facts["host"]
        assert about is not None
        about.pop("probes", None)
    case.pings = fleets.run_pings(case.view, case.facts)
    report = case.judge()
    assert said(report) == [] and "firewall" in report.not_judged


def test_nobody_connects_to_a_host_with_only_the_proxy() -> None:
    case = fleets.good("a3")
    case.view["hosts"]["p1"]["instances"] = []
    for host in case.hosts:
        about = case.host(host)
        about["probes"] = [one for one in about["probes"] if one["to"] != "p1"]
    report = case.judge(tags=["ports"])
    assert said(report) == [] and "firewall" not in report.not_judged


def test_a_host_without_chips_is_not_missed_where_chips_are_compared() -> None:
    case = fleets.good("a3")
    case.view["hosts"]["p1"].update(instances=[], chips=[])
    case.asked = ["p2", "d1", "d2"]
    del case.facts["p1"]
    case.pings = fleets.run_pings(case.view, case.facts)
    not_judged = case.judge().not_judged
    assert not {"tls-equal", "driver-equal", "address-unique", "ping"} & set(not_judged)
    assert "kernel-equal" in not_judged


def test_what_only_another_tag_would_tell_is_not_passed_over() -> None:
    case = fleets.good("a3")
    case.host("d1")["findings"].append({**faults.finding("docker", None, None), "message": "does not answer"})
    case.host("d1")["docker"] = None
    (verdict,) = [one for one in case.judge(tags=["image"]).verdicts if one.severity != "info"]
    assert (verdict.check, verdict.severity, verdict.host) == ("host-answers", "unknown", "d1")
    assert "image-present" in verdict.message and "host" in verdict.fix
    assert ("docker", "error", "d1", None) in said(case.judge(tags=["image", "host"]))
    assert not [one for one in said(case.judge()) if one[0] == "host-answers"]


def test_a_component_version_beside_the_package_of_npu_smi_is_no_fault() -> None:
    case = fleets.good("a3")
    for host in case.hosts:
        driver = case.facts[host]["npu"]["driver"]
        driver.update(driver="7.35.23", driver_package=case.facts[host]["npu"]["npu_smi"]["version"])
    assert said(case.judge(tags=["hardware"])) == []


def test_a_chip_that_hangs_is_one_finding() -> None:
    """After two calls that hung it is not asked again, by npu-smi neither."""
    case = fleets.good("a3")
    for answer in case.facts["d1"]["npu"]["chips"]["4"].values():
        answer.update(state="timeout", text="not asked: 2 calls about chip 4 hung before")
    case.pings = fleets.run_pings(case.view, case.facts)
    assert said(case.judge()) == [("chip-answers", "unknown", "d1", 4)]


def test_a_host_that_did_not_answer_leaves_comparisons_open() -> None:
    case = fleets.good("a3")
    del case.facts["d2"]
    report = case.judge()
    assert said(report) == [("host-answers", "error", "d2", None)]
    assert "tls-equal" in report.not_judged and report.silent == ["d2"]


def test_without_pings_the_ping_checks_are_not_judged() -> None:
    case = fleets.good("a3")
    case.pings = None
    report = case.judge()
    assert said(report) == [] and report.not_judged == ["ping", "ping-plane", "ping-latency"]


@pytest.mark.parametrize("tag", ["hardware", "fabric", "host", "ports", "image"])
def test_tags_choose_checks_and_the_facts_they_need(tag: str) -> None:
    case = fleets.good("a3")
    half = "host" if tag in ("hardware", "fabric") else "npu"
    for facts in case.facts.values():
        facts[half] = None
    report = case.judge(tags=[tag])
    assert said(report) == []
    assert {check.tag for check in report.checks if check.id != "host-answers"} == {tag}


# A cluster that runs --------------------------------------------------------------------------------------------------


def test_a_running_cluster_passes() -> None:
    """DEV-09: its own processes are none in the way."""
    case = fleets.good("a3")
    for host in fleets.HOSTS:
        case.host(host).update(own_pids=list(range(1000, 1016)), memory_available_mb=10_000)
        for chip in case.chips():
            processes = [{"pid": 1000 + chip, "name": "", "memory_mb": 58000}]
            case.smi(host, chip).update(processes=processes, hbm_used_mb=60000)
    assert said(case.judge()) == []
    case.smi("d1", 7)["processes"].append({"pid": 4711, "name": "python3", "memory_mb": 100})
    assert said(case.judge()) == [("chip-free", "error", "d1", 7)]


def test_whose_processes_they_are_is_unknown_without_the_hosts_facts() -> None:
    case = fleets.good("a3")
    case.smi("d1", 7)["processes"] = [{"pid": 4711, "name": "python3", "memory_mb": 100}]
    for facts in case.facts.values():
        facts["host"] = None
    assert said(case.judge(tags=["hardware"])) == [("chip-free", "unknown", "d1", 7)]


@pytest.mark.parametrize(
    ("hardware", "total", "used", "share", "good"),
    [
        # What idle chips show, with what recipes ask for.
        ("a2", 32768, 2894, 0.9, True),
        ("a2", 32768, 3440, 0.95, True),
        ("a3", 65536, 3443, 0.95, True),
        ("a3", 65536, 3443, 0.97, True),
        ("a5", 131072, 5239, 0.97, True),
        # What nobody's idle chip shows.
        ("a2", 32768, 4200, 0.9, False),
        ("a3", 65536, 4200, 0.95, False),
        ("a3", 65536, 7000, 0.9, False),
        ("a5", 131072, 6700, 0.97, False),
    ],
)
def test_dev_09_memory_of_an_idle_chip(hardware: str, total: int, used: int, share: float, good: bool) -> None:
    """DEV-09: left-overs are found, and a driver's own use is none, however much the engine asks for."""
    case = fleets.good(hardware)
    case.view["hosts"]["d1"]["memory_utilization"] = share
    for chip in case.chips():
        case.smi("d1", chip).update(hbm_total_mb=total, hbm_used_mb=1000)
    case.smi("d1", 5)["hbm_used_mb"] = used
    assert said(case.judge()) == ([] if good else [("hbm-free", "error", "d1", 5)])


def test_the_second_die_of_a_card_may_show_no_health() -> None:
    case = fleets.good("a3")
    for chip in range(1, 16, 2):
        case.smi("d1", chip)["health"] = "-"
    assert said(case.judge()) == []
    case.smi("d1", 4)["health"] = "Alarm"
    assert sorted(said(case.judge())) == [("chip-health", "error", "d1", 4), ("chip-health", "error", "d1", 5)]


def test_a_rehearsal_needs_no_memory_for_engines() -> None:
    case = fleets.good("a3")
    for host in fleets.HOSTS:
        case.host(host).update(memory_available_mb=3000, disks={"/": 5000})
        case.view["hosts"][host]["pool_mb"] = 10**6
    assert {check for check, _severity, _host, _chip in said(case.judge())} == {"memory", "disk"}
    case.view["rehearsal"] = True
    assert said(case.judge()) == []


def test_loopback_addresses_of_a_rehearsal_are_on_their_card() -> None:
    case = fleets.good("a3")
    for number, host in enumerate(fleets.HOSTS):
        case.view["hosts"][host].update(node_ip=f"127.88.0.{number + 1}", nic="lo")
    assert said(case.judge()) == []


def test_net_01_message_names_address_card_and_what_it_has() -> None:
    """NET-01: the address is not on the card."""
    case = fleets.good("a3")
    case.view["hosts"]["p1"]["node_ip"] = "192.0.2.99"
    verdict = only(case.judge())
    assert "192.0.2.99 is not on eth0 of p1 (it has 192.0.2.1/24)" in verdict.message


def test_a2_host_declared_with_sixteen_chips_is_one_verdict() -> None:
    """IMG-01: an a2 host in an inventory of a3."""
    case = fleets.good("a2")
    case.view["hosts"]["p1"].update(chips=list(range(16)), chips_per_node=16)
    for chip in range(8, 16):
        case.facts["p1"]["npu"]["chips"][str(chip)] = {
            "link": {"state": "no_such_device"},
            "tls": {"state": "no_such_device"},
        }
    verdict = only(case.judge())
    assert verdict.check == "chip-present" and "chip 8-15" in verdict.message and "chips 0-7" in verdict.message


def test_fab_07_an_a3_host_whose_tool_knows_no_hccs_ping() -> None:
    """FAB-07: never skipped."""
    case = fleets.good("a3")
    for one in case.pings_where(lambda one: one["from_host"] == "d2"):
        one.update(state="unsupported", loss_percent=None, text="The command is not supported on this product.")
    verdict = only(case.judge())
    assert verdict.check == "generation" and verdict.host == "d2" and "another generation" in verdict.message


def test_a_five_has_no_addresses_and_no_pings() -> None:
    case = fleets.good("a5")
    assert case.pings is not None and case.pings["results"] == []
    assert [one["why"] for one in case.pings["left_out"]] == ["no_ping"]
    case.facts["d1"]["npu"]["hccn_conf"] = {"state": "missing", "chips": {}}
    assert said(case.judge()) == []


@pytest.mark.parametrize(("link", "severity"), [("NA", None), ("PARTIAL LINK", "warning"), ("DOWN", "error")])
def test_ub_links_of_a_five(link: str, severity: str | None) -> None:
    case = fleets.good("a5")
    case.query("d1", 3, "link")["link"] = link
    assert said(case.judge()) == ([("link", severity, "d1", 3)] if severity else [])
    case.facts["d1"]["npu"]["chips"]["3"]["link"] = {"state": "timeout"}
    assert said(case.judge()) == [("link", "unknown", "d1", 3)]


def test_processes_that_npu_facts_has_marked() -> None:
    case = fleets.good("a3")
    for facts in case.facts.values():
        facts["host"] = None
    own = {"pid": 1, "name": "", "memory_mb": 58000, "own": True}
    case.smi("d1", 7).update(processes=[own], hbm_used_mb=60000)
    assert said(case.judge(tags=["hardware"])) == []
    case.smi("d1", 7)["processes"].append({"pid": 2, "name": "x", "memory_mb": 1, "own": False})
    assert said(case.judge(tags=["hardware"])) == [("chip-free", "error", "d1", 7)]


def test_a_master_outside_the_limit_must_be_up() -> None:
    case = fleets.good("a3")
    case.view["pool"] = {"host": "p1", "address": "192.0.2.1", "port": 50088}
    assert said(case.judge(tags=["ports"])) == [], "with its host in the run, firewall tells"
    case.asked = ["p2", "d1", "d2"]
    del case.facts["p1"]
    for host, state in (("p2", "open"), ("d1", "timeout"), ("d2", "unknown")):
        # Of other kinds nothing to a host outside is tried.
        others = [one for one in case.host(host)["probes"] if one["to"] != "p1"]
        case.host(host)["probes"] = [*others, {"to": "p1", "address": "192.0.2.1", "port": 50088, "state": state}]
    report = case.judge(tags=["ports"])
    assert said(report) == [("pool-master", "error", "d1", None), ("pool-master", "unknown", "d2", None)]
    message = report.verdicts[0].message + report.verdicts[0].fix
    for words in ("d1", "192.0.2.1:50088", "p1", "timeout", "--limit"):
        assert words in message
    assert report.cells["pool-master"]["p2"] == "ok"
    case.view["hosts"]["d1"]["instances"] = []
    assert said(case.judge(tags=["ports"])) == [("pool-master", "unknown", "d2", None)]


def test_an_error_of_npu_smi_is_known_by_its_number_alone() -> None:
    """DEV-03: the words differ between versions."""
    case = fleets.good("a3")
    case.facts["d1"]["npu"]["npu_smi"] = {"state": "failed", "text": "", "code": -8020, "chips": {}}
    assert "another container" in only(case.judge()).message


@pytest.mark.parametrize(
    ("named", "firmware", "fits"),
    [
        ("[7.0.0,8.9.9]", "7.7.0.6.236", True),
        ("[7.0.0,8.9.9]", "8.9.9.1", True),
        ("[7.0.0,8.9.9]", "9.0.0", False),
        ("[1.0,2.0],[7.7.0.6,7.7.0.6]", "7.7.0.6.236", True),
        ("[1.0,2.0], [7.8,7.9]", "7.7.0.6.236", False),
        # What is not understood is not judged.
        ("[V100R001C19]", "7.7.0.6.236", None),
        ("[1.0,2.0.]", "7.7.0.6.236", None),
        ("[1.0,2.0]", "7.7.RC1", None),
        (None, "7.7.0.6.236", None),
    ],
)
def test_firmware_that_the_driver_names(named: str | None, firmware: str, fits: bool | None) -> None:
    case = fleets.good("a3", ("d1",))
    case.facts["d1"]["npu"]["driver"].update(compatible_firmware=named, firmware=firmware)
    report = case.judge()
    assert report.cells["firmware-fits"].get("d1") == {True: "ok", False: "warning", None: None}[fits]


def test_a_switch_without_a_port_name_is_a_switch() -> None:
    case = fleets.good("a2")
    case.query("d1", 3, "lldp").update(ifname=None, system_name="leaf-3")
    assert said(case.judge()) == []
