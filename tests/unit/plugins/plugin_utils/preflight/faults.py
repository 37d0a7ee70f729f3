# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""One entry per kind of fault: what it does to a host's facts, and the one verdict that it must lead to."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import SPENT

from .fleets import MODEL, Case

CHIP = 5
Apply = t.Callable[[Case, str], None]


@dataclasses.dataclass(frozen=True)
class Fault:
    """chip: the one that the verdict names; None for the host. hardware: where the fault can be."""

    name: str
    check: str
    severity: str
    apply: Apply
    chip: int | None = None
    hardware: tuple[str, ...] = ("a2", "a3")
    says: tuple[str, ...] = ()


FAULTS: list[Fault] = []


def fault(check: str, severity: str = "error", **more: t.Any) -> t.Callable[[Apply], Apply]:
    def enter(function: Apply) -> Apply:
        FAULTS.append(Fault(function.__name__, check, severity, function, **more))
        return function

    return enter


def every_chip(case: Case, host: str, query: str, **fields: t.Any) -> None:
    for chip in case.chips():
        case.query(host, chip, query).update(fields)


def unread(case: Case, host: str, query: str, state: str = "failed") -> None:
    case.facts[host]["npu"]["chips"][str(CHIP)][query] = {"state": state, "text": "Command execute failed!"}


# The host as a whole --------------------------------------------------------------------------------------------------


@fault("host-answers")
def unreachable(case: Case, host: str) -> None:
    del case.facts[host]


@fault("host-answers", "unknown", says=("npu",))
def no_npu_facts(case: Case, host: str) -> None:
    case.facts[host]["npu"] = None


@fault("host-answers", "unknown", says=("host_check",))
def host_check_did_not_run(case: Case, host: str) -> None:
    del case.host(host)["findings"]


# Hardware -------------------------------------------------------------------------------------------------------------


@fault("npu-smi", says=("/usr/local/bin", "/usr/local/sbin"))
def npu_smi_missing(case: Case, host: str) -> None:
    """DEV-05: the tool is in neither of both places."""
    case.facts[host]["npu"]["tools"]["npu_smi"] = {"path": None, "state": "tool_missing"}
    case.facts[host]["npu"]["npu_smi"] = {"state": "tool_missing", "chips": {}}
    for chip in case.facts[host]["npu"]["chips"].values():
        if "spod" in chip:
            chip["spod"] = {"state": "tool_missing", "text": "npu-smi is in neither place"}


@fault("npu-smi", says=("-8020", "another container"))
def npu_smi_8020(case: Case, host: str) -> None:
    """DEV-03: a card in another container hides all of them."""
    text = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\ndcmi model initialized failed, because the device is used. ret is -8020"
    case.facts[host]["npu"]["npu_smi"] = {"state": "failed", "text": text, "chips": {}}


@fault("npu-smi", says=("-8005", "reboot"))
def npu_smi_8005(case: Case, host: str) -> None:
    text = "dcmi module initialize failed. ret is -8005"
    case.facts[host]["npu"]["npu_smi"] = {"state": "failed", "text": text, "chips": {}}


@fault("npu-smi", "unknown", says=("gives no answer", "timeout"))
def npu_smi_hangs(case: Case, host: str) -> None:
    case.facts[host]["npu"]["npu_smi"] = {"state": "timeout", "chips": {}}


@fault("npu-smi", "unknown", says=("answers on", "cannot be read", "Welcome to"))
def npu_smi_cannot_be_read(case: Case, host: str) -> None:
    """It did answer: what to look for is another thing than why a tool is silent."""
    case.facts[host]["npu"]["npu_smi"] = {"state": "unknown", "text": "Welcome to the cluster\n+----+", "chips": {}}


@fault("npu-smi", says=("reports a failure", "get card info failed"))
def npu_smi_fails(case: Case, host: str) -> None:
    case.facts[host]["npu"]["npu_smi"] = {"state": "failed", "text": "get card info failed.", "chips": {}}


@fault("generation", hardware=("a3",), says=("another generation", "910B4", "pd_hardware"))
def a2_host_in_an_a3_fleet(case: Case, host: str) -> None:
    """IMG-01: npu-smi shows eight 910B4 on a host that is declared A3."""
    chips = case.facts[host]["npu"]["npu_smi"]["chips"]
    for chip in range(8, 16):
        del chips[str(chip)]
        for query in case.facts[host]["npu"]["chips"][str(chip)]:
            unread_chip = {"state": "no_such_device", "text": "The device is not exist!"}
            case.facts[host]["npu"]["chips"][str(chip)][query] = unread_chip
    for chip in range(8):
        chips[str(chip)].update(name="910B4", card=chip)
        for query in ("vnic", "spod"):
            case.facts[host]["npu"]["chips"][str(chip)][query] = {"state": "unsupported"}


@fault("generation", hardware=("a2",), says=("Ascend910",))
def a3_host_in_an_a2_fleet(case: Case, host: str) -> None:
    for chip in case.chips():
        case.smi(host, chip)["name"] = "Ascend910"


@fault("generation", "unknown")
def chips_without_a_name(case: Case, host: str) -> None:
    for chip in case.chips():
        case.smi(host, chip)["name"] = ""


@fault("chip-present", chip=CHIP, says=("pd_chips_per_node",))
def chip_missing(case: Case, host: str) -> None:
    del case.facts[host]["npu"]["npu_smi"]["chips"][str(CHIP)]
    for query in case.facts[host]["npu"]["chips"][str(CHIP)]:
        case.facts[host]["npu"]["chips"][str(CHIP)][query] = {"state": "no_such_device"}


@fault("chip-present", chip=CHIP)
def chip_unknown_to_hccn_tool(case: Case, host: str) -> None:
    for query in case.facts[host]["npu"]["chips"][str(CHIP)]:
        case.facts[host]["npu"]["chips"][str(CHIP)][query] = {"state": "no_such_device"}


@fault("chip-health", chip=CHIP, says=("Alarm",))
def chip_in_alarm(case: Case, host: str) -> None:
    case.smi(host, CHIP)["health"] = "Alarm"


@fault("chip-health", "warning", chip=CHIP)
def chip_with_warning(case: Case, host: str) -> None:
    case.smi(host, CHIP)["health"] = "Warning"


@fault("chip-health", "unknown", chip=CHIP)
def chip_without_health(case: Case, host: str) -> None:
    case.smi(host, CHIP)["health"] = ""


@fault("chip-health")
def all_chips_critical(case: Case, host: str) -> None:
    for chip in case.chips():
        case.smi(host, chip)["health"] = "Critical"


@fault("chip-free", chip=CHIP, says=("472206", "python3.9"))
def foreign_process(case: Case, host: str) -> None:
    """DEV-09"""
    case.smi(host, CHIP).update(processes=[{"pid": 472206, "name": "python3.9", "memory_mb": 113}])


@fault("chip-free", chip=CHIP, says=("1504884", "no name"))
def foreign_process_without_a_name(case: Case, host: str) -> None:
    """DEV-09: of another container."""
    processes = [{"pid": 1504884, "name": "", "memory_mb": 35358}]
    case.smi(host, CHIP).update(processes=processes, hbm_used_mb=38000)


@fault("hbm-free", chip=CHIP, says=("60000",))
def memory_used_by_nobody(case: Case, host: str) -> None:
    """DEV-09: left-overs that no process accounts for."""
    case.smi(host, CHIP)["hbm_used_mb"] = 60000


@fault("hbm-free", "unknown", chip=CHIP)
def memory_not_told(case: Case, host: str) -> None:
    case.smi(host, CHIP)["hbm_used_mb"] = None


@fault("driver-equal", "warning", says=("24.1.rc3", "25.2.0"))
def other_driver(case: Case, host: str) -> None:
    case.facts[host]["npu"]["driver"]["driver"] = "24.1.rc3"
    case.facts[host]["npu"]["npu_smi"]["version"] = "24.1.rc3"


@fault("driver-equal", "warning", says=("26.0.rc1", "25.2.0", "reboot"))
def driver_not_loaded(case: Case, host: str) -> None:
    case.facts[host]["npu"]["driver"]["driver"] = "26.0.rc1"


@fault("firmware-fits", "warning", says=("[8.0.0,8.9.9]", "7.7.0.6.236"))
def firmware_older_than_its_driver_wants(case: Case, host: str) -> None:
    case.facts[host]["npu"]["driver"]["compatible_firmware"] = "[8.0.0,8.9.9]"


@fault("driver-equal", "unknown")
def firmware_not_told(case: Case, host: str) -> None:
    case.facts[host]["npu"]["driver"]["firmware"] = None


# Fabric ---------------------------------------------------------------------------------------------------------------


@fault("hccn-tool", says=("/usr/local/Ascend/driver/tools",))
def hccn_tool_missing(case: Case, host: str) -> None:
    """FAB-01: the transfer has no address without it."""
    case.facts[host]["npu"]["tools"]["hccn_tool"] = {"path": None, "state": "tool_missing"}
    for chip in case.chips():
        for query in case.facts[host]["npu"]["chips"][str(chip)]:
            if query != "spod":
                case.facts[host]["npu"]["chips"][str(chip)][query] = {"state": "tool_missing"}


@fault("npu-smi", says=("become",))
def npu_smi_denied(case: Case, host: str) -> None:
    text = "permission denied: pls check this cmd run permission."
    case.facts[host]["npu"]["tools"]["npu_smi"] = {"path": "/usr/local/bin/npu-smi", "state": "denied", "text": text}
    case.facts[host]["npu"]["npu_smi"] = {"state": "denied", "chips": {}}
    for number, chip in case.facts[host]["npu"]["chips"].items():
        if "spod" in chip:
            chip["spod"] = {"state": "denied", "text": f"card and chip of physical id {number} are not known: {text}"}


@fault("hccn-tool", says=("become",))
def hccn_tool_denied(case: Case, host: str) -> None:
    text = "permission denied: pls check this cmd run permission."
    for chip in case.chips():
        for query in case.facts[host]["npu"]["chips"][str(chip)]:
            if query != "spod":
                case.facts[host]["npu"]["chips"][str(chip)][query] = {"state": "denied", "text": text}


@fault("chip-answers", "unknown", says=("hccn_tool is busy", "chip 2", "monitoring agent"))
def tool_is_held(case: Case, host: str) -> None:
    for query in case.facts[host]["npu"]["chips"]["2"]:
        if query != "spod":
            case.facts[host]["npu"]["chips"]["2"][query] = {"state": "busy", "text": "please try again."}


@fault("chip-answers", "unknown", says=("was not asked", "20 seconds", "preflight_tool_budget"))
def no_time_left(case: Case, host: str) -> None:
    for chip in case.chips():
        for query in case.facts[host]["npu"]["chips"][str(chip)]:
            if chip > 1:
                text = f"not asked: the 20 {SPENT}"
                case.facts[host]["npu"]["chips"][str(chip)][query] = {"state": "timeout", "text": text}


@fault("chip-answers", "unknown", chip=CHIP)
def chip_hangs(case: Case, host: str) -> None:
    for query in case.facts[host]["npu"]["chips"][str(CHIP)]:
        if query != "spod":
            case.facts[host]["npu"]["chips"][str(CHIP)][query] = {"state": "timeout"}


@fault("hccn-conf", says=("/etc/hccn.conf",))
def conf_missing(case: Case, host: str) -> None:
    """FAB-01: without the file the first token is wrong and then one repeats."""
    case.facts[host]["npu"]["hccn_conf"] = {"state": "missing", "chips": {}}
    case.host(host)["findings"].append(
        {
            "check": "path",
            "severity": "error",
            "variable": "pd_mounts",
            "value": "/etc/hccn.conf",
            "message": "does not exist",
            "fix": "put it there",
        }
    )


@fault("hccn-conf", says=("folder", "rmdir"))
def conf_is_a_folder(case: Case, host: str) -> None:
    """FAB-01: what docker makes of a file that was to be mounted."""
    case.facts[host]["npu"]["hccn_conf"] = {"state": "is_directory", "chips": {}}
    for chip in case.chips():
        case.facts[host]["npu"]["chips"][str(chip)]["ip"] = {"state": "conf_unreadable"}


@fault("hccn-conf", says=("Windows line ends", "sed -i"))
def conf_of_windows(case: Case, host: str) -> None:
    wrong = ["address_0=192.0.2.1\r", "netmask_0=255.255.0.0\r"]
    case.facts[host]["npu"]["hccn_conf"] = {"state": "malformed", "chips": {}, "lines_not_understood": wrong}


@fault("hccn-conf", says=("holds no address",))
def conf_is_empty(case: Case, host: str) -> None:
    case.facts[host]["npu"]["hccn_conf"] = {"state": "empty", "chips": {}}


@fault("hccn-conf", says=("addres_0",))
def conf_malformed(case: Case, host: str) -> None:
    case.facts[host]["npu"]["hccn_conf"].update(state="malformed", lines_not_understood=["addres_0 192.0.2.1"])


@fault("hccn-conf", hardware=("a2",))
def conf_empty(case: Case, host: str) -> None:
    case.facts[host]["npu"]["hccn_conf"] = {"state": "empty", "chips": {}}


@fault("hccn-conf", says=("become",))
def conf_not_readable_by_the_tool(case: Case, host: str) -> None:
    """Whatever is asked: one verdict, not one per question."""
    for chip in case.chips():
        for query in ("ip", "gateway", "netdetect"):
            case.facts[host]["npu"]["chips"][str(chip)][query] = {"state": "conf_unreadable"}


@fault("hccn-conf", "warning", chip=CHIP, hardware=("a3",))
def address_only_in_conf(case: Case, host: str) -> None:
    case.facts[host]["npu"]["chips"][str(CHIP)]["ip"] = {"state": "not_configured"}


@fault("hccn-conf", "unknown", chip=CHIP, hardware=("a3",))
def roce_address_not_read(case: Case, host: str) -> None:
    unread(case, host, "ip")


@fault("hccn-conf", "unknown")
def conf_unknown(case: Case, host: str) -> None:
    del case.facts[host]["npu"]["hccn_conf"]


@fault("hccn-conf", chip=CHIP, says=("address", "11.99.99.99"))
def stale_address_in_conf(case: Case, host: str) -> None:
    """FAB-01: the container would read an address that the chip does not have."""
    case.facts[host]["npu"]["hccn_conf"]["chips"][str(CHIP)]["address"] = "11.99.99.99"


@fault("hccn-conf", says=("gives other addresses", "0-", "172.16.0."))
def every_address_in_conf_is_stale(case: Case, host: str) -> None:
    """One file of other times is one verdict, not one per chip."""
    for chip in case.chips():
        case.facts[host]["npu"]["hccn_conf"]["chips"][str(chip)]["address"] = f"172.16.0.{chip + 1}"


@fault("hccn-conf", says=("those of d2", "copied"))
def conf_of_another_host(case: Case, host: str) -> None:
    case.facts[host]["npu"]["hccn_conf"] = {**case.facts["d2"]["npu"]["hccn_conf"]}


@fault("hccn-conf", chip=CHIP, says=("netmask",))
def other_netmask_in_conf(case: Case, host: str) -> None:
    case.facts[host]["npu"]["hccn_conf"]["chips"][str(CHIP)]["netmask"] = "255.255.255.0"


@fault("hccn-conf", chip=CHIP, says=("after a reboot",))
def address_not_in_conf(case: Case, host: str) -> None:
    del case.facts[host]["npu"]["hccn_conf"]["chips"][str(CHIP)]


@fault("chip-address", chip=CHIP, hardware=("a2",))
def no_roce_address(case: Case, host: str) -> None:
    """FAB-03"""
    case.facts[host]["npu"]["chips"][str(CHIP)]["ip"] = {"state": "not_configured"}


@fault("chip-address", chip=CHIP, hardware=("a2",), says=("-.-.-.-",))
def placeholder_for_an_address(case: Case, host: str) -> None:
    """FAB-03"""
    case.query(host, CHIP, "ip")["ipaddr"] = "-.-.-.-"


@fault("chip-address", chip=CHIP, hardware=("a3",), says=("vNIC",))
def no_vnic_address(case: Case, host: str) -> None:
    """FAB-03: a3's plane."""
    case.facts[host]["npu"]["chips"][str(CHIP)]["vnic"] = {"state": "not_configured"}


@fault("chip-address", chip=CHIP, hardware=("a3",), says=("cannot be read",))
def vnic_address_not_read(case: Case, host: str) -> None:
    """FAB-03: the tool was asked and has told none, so the chip was not pinged either."""
    unread(case, host, "vnic")


@fault("chip-address", chip=CHIP, hardware=("a2",), says=("cannot be read",))
def roce_address_garbled(case: Case, host: str) -> None:
    """FAB-03"""
    unread(case, host, "ip", "unknown")


@fault("chip-address", "unknown", chip=CHIP, hardware=("a3",))
def vnic_address_not_asked(case: Case, host: str) -> None:
    unread(case, host, "vnic", "busy")


@fault("chip-address", chip=CHIP, hardware=("a3",), says=("127.0.0.1", "none that a chip can have"))
def loopback_vnic_address(case: Case, host: str) -> None:
    """FAB-03"""
    case.query(host, CHIP, "vnic")["ipaddr"] = "127.0.0.1"


@fault("chip-address", chip=CHIP, hardware=("a2",), says=("10.86.1.255", "none that a chip can have"))
def broadcast_roce_address(case: Case, host: str) -> None:
    """FAB-03: as the parser hands it over."""
    answer = {"state": "unknown", "text": "ipaddr:10.86.1.255", "ipaddr": "10.86.1.255", "netmask": "255.255.255.0"}
    case.facts[host]["npu"]["chips"][str(CHIP)]["ip"] = answer


@fault("address-unique", hardware=("a3",), says=("10.0.77.7",))
def copied_vnic_address(case: Case, host: str) -> None:
    """FAB-11: two chips of the fleet show one address (which two, the test of FAB-11 tells)."""
    for chip in (CHIP, CHIP + 2):
        case.query(host, chip, "vnic")["ipaddr"] = "10.0.77.7"


@fault("vnic-link", chip=CHIP, hardware=("a3",))
def vnic_down(case: Case, host: str) -> None:
    """With all that follows from it."""
    case.query(host, CHIP, "vnic")["link"] = "DOWN"
    fail_pings(case, lambda one: (host, CHIP) in ends(one))


@fault("super-pod", hardware=("a3",), says=("super pod 7",))
def other_super_pod(case: Case, host: str) -> None:
    """FAB-11: HCCS does not reach there, so no ping passes either."""
    every_chip(case, host, "spod", super_pod_id=7)
    fail_pings(case, lambda one: host in (one["from_host"], one["to_host"]))


@fault("super-pod", chip=CHIP, hardware=("a3",))
def one_chip_in_another_pod(case: Case, host: str) -> None:
    case.query(host, CHIP, "spod")["super_pod_id"] = 7


@fault("super-pod", "unknown", chip=CHIP, hardware=("a3",))
def super_pod_not_read(case: Case, host: str) -> None:
    unread(case, host, "spod")


@fault("sdid-unique", hardware=("a3",))
def copied_sdid(case: Case, host: str) -> None:
    case.query(host, CHIP, "spod")["sdid"] = case.query(host, CHIP + 1, "spod")["sdid"]


@fault("link", chip=CHIP, hardware=("a2",), says=("DOWN",))
def link_down(case: Case, host: str) -> None:
    """FAB-05: With all that follows from it on real hardware."""
    case.query(host, CHIP, "link")["link"] = "DOWN"
    case.query(host, CHIP, "net_health")["net_health"] = "Fault"
    case.facts[host]["npu"]["chips"][str(CHIP)]["lldp"] = {"state": "ok"}
    fail_pings(case, lambda one: (host, CHIP) in ends(one))


@fault("link", "warning", chip=CHIP, hardware=("a3",), says=("hccs_ping",))
def link_down_that_nobody_uses(case: Case, host: str) -> None:
    case.query(host, CHIP, "link")["link"] = "DOWN"


@fault("link", "unknown", chip=CHIP)
def link_not_read(case: Case, host: str) -> None:
    unread(case, host, "link", "busy")


@fault("link", "unknown")
def links_not_read(case: Case, host: str) -> None:
    for chip in case.chips():
        case.facts[host]["npu"]["chips"][str(chip)]["link"] = {"state": "unknown", "text": "link sta"}


@fault("net-health", chip=CHIP, hardware=("a2",), says=("Receive timeout",))
def network_sick(case: Case, host: str) -> None:
    case.query(host, CHIP, "net_health")["net_health"] = "Receive timeout"


@fault("net-health", "warning", chip=CHIP, hardware=("a3",))
def network_sick_that_nobody_uses(case: Case, host: str) -> None:
    case.query(host, CHIP, "net_health")["net_health"] = "Fault"


@fault("net-health", chip=CHIP, hardware=("a2",), says=("-netdetect -s",))
def detect_address_only_just_set(case: Case, host: str) -> None:
    case.query(host, CHIP, "net_health")["net_health"] = "Detect ip set"


@fault("net-health", chip=CHIP, hardware=("a2",))
def no_detect_address_and_so_no_health(case: Case, host: str) -> None:
    case.query(host, CHIP, "net_health")["net_health"] = "Init"
    case.facts[host]["npu"]["chips"][str(CHIP)]["netdetect"] = {"state": "not_configured"}


@fault("netdetect", "warning", chip=CHIP, says=("10.99.0.1", "unlike those of other chips"))
def detects_elsewhere(case: Case, host: str) -> None:
    case.query(host, CHIP, "netdetect")["netdetect"] = "10.99.0.1"


@fault("netdetect", "warning", chip=CHIP)
def no_detect_address(case: Case, host: str) -> None:
    case.facts[host]["npu"]["chips"][str(CHIP)]["netdetect"] = {"state": "not_configured"}


@fault("netdetect", "warning", chip=CHIP)
def detects_itself(case: Case, host: str) -> None:
    case.query(host, CHIP, "netdetect")["netdetect"] = case.query(host, CHIP, "ip")["ipaddr"]


@fault("gateway", "warning", says=("no gateway",))
def no_gateway_in_a_flat_network(case: Case, host: str) -> None:
    for chip in case.chips():
        case.facts[host]["npu"]["chips"][str(chip)]["gateway"] = {"state": "not_configured"}


@fault("gateway", chip=CHIP, hardware=("a2",), says=("not in",))
def gateway_outside_of_the_subnet(case: Case, host: str) -> None:
    case.query(host, CHIP, "gateway")["gateway"] = "12.0.0.1"


@fault("gateway", "unknown", chip=CHIP)
def gateway_not_read(case: Case, host: str) -> None:
    unread(case, host, "gateway")


@fault("lldp", "warning", chip=CHIP)
def sees_no_switch(case: Case, host: str) -> None:
    case.facts[host]["npu"]["chips"][str(CHIP)]["lldp"] = {"state": "ok"}


@fault("tls-equal", chip=CHIP, says=("on (1)", "off (0)", "-tls -s enable 0"))
def tls_on(case: Case, host: str) -> None:
    case.query(host, CHIP, "tls")["tls_switch"] = 1


@fault("tls-equal", says=("on (1)", "for i in 0 1"))
def tls_on_everywhere_on_a_host(case: Case, host: str) -> None:
    every_chip(case, host, "tls", tls_switch=1)


@fault("tls-equal", "unknown", chip=CHIP)
def tls_not_read(case: Case, host: str) -> None:
    unread(case, host, "tls")


def ends(one: dict[str, t.Any]) -> set[tuple[str, int]]:
    return {(one["from_host"], one["from_chip"]), (one["to_host"], one["to_chip"])}


def fail_pings(case: Case, wanted: t.Callable[[dict[str, t.Any]], bool], **fields: t.Any) -> None:
    for one in case.pings_where(wanted):
        one.update(fields or {"loss_percent": 100.0, "received": 0, "average_us": None})


@fault("ping", chip=CHIP, says=("nothing comes back", "-g address"))
def chip_cannot_be_reached(case: Case, host: str) -> None:
    fail_pings(case, lambda one: (host, CHIP) in ends(one))


@fault("ping", chip=CHIP, says=("Message too long", "one MTU"))
def packets_are_too_long(case: Case, host: str) -> None:
    fields = {"loss_percent": 100.0, "received": 0, "average_us": None, "problems": ["Message too long"]}
    fail_pings(case, lambda one: (host, CHIP) in ends(one), **fields)


@fault("ping")
def host_cannot_be_reached(case: Case, host: str) -> None:
    fail_pings(case, lambda one: host in (one["from_host"], one["to_host"]), state="failed", loss_percent=None)


@fault("ping", "warning", chip=CHIP, says=("33.33 %",))
def chip_loses_packets(case: Case, host: str) -> None:
    fail_pings(case, lambda one: (host, CHIP) in ends(one), loss_percent=33.33, received=2)


@fault("ping", "warning", chip=CHIP, hardware=("a3",), says=("every ping from chip 5", "33.33 %"))
def chip_loses_what_it_sends(case: Case, host: str) -> None:
    """Seen where a chip's sending half is sick: what others send to it arrives."""
    fail_pings(case, lambda one: (one["from_host"], one["from_chip"]) == (host, CHIP), loss_percent=33.33, received=2)


@fault("ping", chip=CHIP, hardware=("a3",), says=("every ping to chip 5",))
def chip_receives_nothing(case: Case, host: str) -> None:
    fail_pings(case, lambda one: (one["to_host"], one["to_chip"]) == (host, CHIP))


@fault("ping", "warning", chip=CHIP, hardware=("a3",), says=("5 of 6 pings from and to chip 5",))
def chip_loses_packets_now_and_then(case: Case, host: str) -> None:
    of_chip = [one for one in (case.pings or {})["results"] if (host, CHIP) in ends(one)]
    fail_pings(case, lambda one: one in of_chip[1:], loss_percent=33.33, received=2)


@fault("ping-plane", chip=CHIP, hardware=("a3",), says=("every ping from chip 5", "0x1"))
def chip_sends_over_a_wrong_plane(case: Case, host: str) -> None:
    fail_pings(
        case, lambda one: (one["from_host"], one["from_chip"]) == (host, CHIP), l1_plane=[0, 1, 0], average_us=10.0
    )


@fault("ping", "unknown")
def ping_not_read(case: Case, host: str) -> None:
    fail_pings(case, lambda one: (one["from_host"], one["from_chip"]) == (host, CHIP), state="busy")


@fault("ping-plane", chip=CHIP, hardware=("a3",), says=("0x1",))
def wrong_plane(case: Case, host: str) -> None:
    fail_pings(case, lambda one: (host, CHIP) in ends(one), l1_plane=[0, 1, 0])


@fault("ping-latency", "warning", chip=CHIP, says=("900 us",))
def slow_chip(case: Case, host: str) -> None:
    fail_pings(case, lambda one: (host, CHIP) in ends(one), average_us=900.0)


# Host -----------------------------------------------------------------------------------------------------------------


@fault("nic", says=("eth0", "eth-data1"))
def card_missing(case: Case, host: str) -> None:
    nics = case.host(host)["nics"]
    nics["eth-data1"] = nics.pop("eth0")


@fault("nic")
def card_down(case: Case, host: str) -> None:
    case.host(host)["nics"]["eth0"]["state"] = "down"


@fault("nic", "unknown")
def cards_not_told(case: Case, host: str) -> None:
    del case.host(host)["nics"]


@fault("node-ip", says=("192.0.9.9", "eth0"))
def address_not_on_card(case: Case, host: str) -> None:
    """NET-01. Nothing could listen there, so nobody tried."""
    case.host(host)["nics"]["eth0"]["addresses"] = ["192.0.9.9/24"]
    for facts in case.facts.values():
        about = facts.get("host") or {}
        about["probes"] = [one for one in about.get("probes") or [] if one["to"] != host]


@fault("mtu-equal", says=("9000", "ip link set eth0 mtu 1500"))
def other_mtu(case: Case, host: str) -> None:
    case.host(host)["nics"]["eth0"]["mtu"] = 9000


@fault("mtu-equal", "unknown")
def mtu_not_told(case: Case, host: str) -> None:
    del case.host(host)["nics"]["eth0"]["mtu"]


@fault("clock", says=("behind",))
def clock_far_behind(case: Case, host: str) -> None:
    case.host(host)["clock"]["host"] -= 3600


@fault("clock", "warning", says=("ahead of",))
def clock_ahead(case: Case, host: str) -> None:
    case.host(host)["clock"]["host"] += 10


@fault("clock", "unknown")
def clock_not_told(case: Case, host: str) -> None:
    del case.host(host)["clock"]


@fault("clock", "unknown")
def clock_read_too_vaguely(case: Case, host: str) -> None:
    case.host(host)["clock"].update(before=1_790_000_000.0 - 200, after=1_790_000_000.0 + 200)


@fault("memory", "warning")
def little_memory(case: Case, host: str) -> None:
    case.host(host)["memory_available_mb"] = 20_000


@fault("memory", "warning", says=("dmidecode",))
def memory_module_lost(case: Case, host: str) -> None:
    case.host(host).update(memory_total_mb=1_000_000, memory_available_mb=900_000)


@fault("memory", says=("1048576", "global_segment_size"))
def pool_larger_than_memory(case: Case, host: str) -> None:
    """POOL-01: 16 processes with 64 GB each, 800 GB free."""
    arithmetic = "16 workers x (64 GB global_segment_size) = 1024 GB"
    case.view["hosts"][host].update(pool_mb=16 * 65536, pool_arithmetic=arithmetic)
    case.host(host)["memory_available_mb"] = 800 * 1024


@fault("memory", says=("229376", "pd_kv_cache_gib"))
def staging_larger_than_memory(case: Case, host: str) -> None:
    """D2RH: four decode workers with 56 GiB of KV cache each, 192 GiB free."""
    case.view["hosts"][host]["pinned_mb"] = 4 * 56 * 1024
    case.host(host)["memory_available_mb"] = 192 * 1024


@fault("memory", says=("1277952", "global_segment_size) = 1024 GB", "pd_kv_cache_gib"))
def pool_and_staging_larger_than_memory(case: Case, host: str) -> None:
    """D2RH beside a pool: either of them would fit."""
    pool_larger_than_memory(case, host)
    staging_larger_than_memory(case, host)
    case.host(host)["memory_available_mb"] = 1100 * 1024
    case.host(host)["memory_total_mb"] = 1200 * 1024


@fault("memory", "unknown")
def memory_not_known(case: Case, host: str) -> None:
    del case.host(host)["memory_available_mb"]


@fault("hugepages-equal", "warning")
def hugepages_reserved(case: Case, host: str) -> None:
    case.host(host)["hugepages_total"] = 4096


@fault("hugepages-equal", "unknown")
def hugepages_not_told(case: Case, host: str) -> None:
    del case.host(host)["hugepages_total"]


@fault("disk", says=("/var/lib/docker",))
def disk_full(case: Case, host: str) -> None:
    case.host(host)["disks"]["/var/lib/docker"] = 12


@fault("disk", "warning")
def disk_nearly_full(case: Case, host: str) -> None:
    case.host(host)["disks"]["/"] = 5000


@fault("disk", "unknown")
def disks_not_told(case: Case, host: str) -> None:
    case.host(host)["disks"] = {}


@fault("kernel-equal", "info")
def other_kernel(case: Case, host: str) -> None:
    case.host(host)["kernel"] = "6.6.0"


@fault("kernel-equal", "unknown")
def kernel_not_told(case: Case, host: str) -> None:
    del case.host(host)["kernel"]


@fault("model-alike", "unknown")
def model_not_looked_at(case: Case, host: str) -> None:
    case.host(host)["models"] = {}


@fault("model-alike", says=(MODEL,))
def model_missing(case: Case, host: str) -> None:
    case.host(host)["models"][MODEL] = {"state": "missing"}


def finding(check: str, value: t.Any, variable: str = "", severity: str = "error") -> dict[str, t.Any]:
    return {
        "check": check,
        "severity": severity,
        "variable": variable,
        "value": value,
        "message": f"what is wrong with {value or check}",
        "fix": "put it right",
    }


@fault("chip", chip=CHIP)
def davinci_node_missing(case: Case, host: str) -> None:
    """With what follows from it: the tools do not show the chip either."""
    chip_missing(case, host)
    case.host(host)["findings"].append(finding("chip", CHIP, "pd_chips"))


@fault("chip", says=("other",))
def chips_in_another_container(case: Case, host: str) -> None:
    """DEV-03"""
    found = finding("chip", [4, 5, 6, 7], "pd_chips")
    case.host(host)["findings"].append({**found, "message": "chips 4, 5, 6, 7 are held by container other"})


@fault("chip", chip=CHIP, says=("other",))
def chip_in_another_container(case: Case, host: str) -> None:
    found = finding("chip", [CHIP], "pd_chips")
    case.host(host)["findings"].append({**found, "message": f"chip {CHIP} is held by container other"})


@fault("device", says=("hisi_hdc",))
def device_node_missing(case: Case, host: str) -> None:
    """DEV-07"""
    case.host(host)["findings"].append(finding("device", "hisi_hdc", "pd_hardware"))


@fault("path")
def path_missing(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("path", "/usr/local/dcmi", "pd_mounts"))


@fault("path")
def model_folder_missing(case: Case, host: str) -> None:
    """One verdict, not one more for the model's files."""
    case.host(host)["findings"].append(finding("path", MODEL, "pd_model_path"))
    case.host(host)["models"][MODEL] = {"state": "missing"}


@fault("path")
def model_file_missing(case: Case, host: str) -> None:
    """One verdict, and the other host of the role, whose copy is whole, has none."""
    case.host(host)["findings"].append(finding("path", f"{MODEL}/config.json", "pd_model_path"))
    case.host(host)["models"][MODEL]["config_digest"] = None


@fault("executable")
def command_missing(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("executable", "vllm", "pd_runtime"))


@fault("docker")
def no_docker(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("docker", "docker", "pd_runtime"))
    case.host(host)["docker"] = None


@fault("requests")
def no_requests(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("requests", None, "host_requests_package"))


@fault("container")
def name_taken(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("container", "pd-demo-decode", "pd_cluster_name"))


@fault("runtime")
def other_runtime(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("runtime", "docker", "pd_runtime"))


@fault("port", says=("7100",))
def port_taken(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("port", 7100, "pd_api_port"))


@fault("port", "warning")
def port_of_a_leftover(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("port", 7100, "pd_api_port", "warning"))


@fault("firewall", says=("7100", "no host reaches"))
def port_shut(case: Case, host: str) -> None:
    for facts in case.facts.values():
        for probe in ((facts.get("host") or {}).get("probes")) or []:
            if probe["to"] == host:
                probe["state"] = "timeout"


@fault("firewall", says=("reaches no other host",))
def nothing_gets_out(case: Case, host: str) -> None:
    for probe in case.host(host)["probes"]:
        probe["state"] = "unreachable"


@fault("firewall", "unknown")
def ports_not_tried(case: Case, host: str) -> None:
    del case.host(host)["probes"]


@fault("pool-master", says=("192.0.2.250:50088", "pd_kv_pool.master", "refused"))
def master_of_somebody_else_is_down(case: Case, host: str) -> None:
    case.view["pool"] = {"host": None, "address": "192.0.2.250", "port": 50088}
    for name in [name for name, facts in case.facts.items() if facts.get("host")]:
        state = "refused" if name == host else "open"
        probe = {"to": "192.0.2.250:50088", "address": "192.0.2.250", "port": 50088, "state": state}
        if "probes" in case.host(name):
            case.host(name)["probes"].append(probe)


@fault("image")
def image_archive_broken(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("image", "/srv/image.tar", "image_archive"))
    case.host(host)["docker"]["image"] = {"present": False, "digest": None}


@fault("space")
def no_room_for_the_image(case: Case, host: str) -> None:
    case.host(host)["findings"].append(finding("space", "/srv/image.tar", "image_archive"))
    case.host(host)["docker"]["image"] = {"present": False, "digest": None}


@fault("image-present", "info", says=("docker pull",))
def image_not_there_yet(case: Case, host: str) -> None:
    case.host(host)["docker"]["image"] = {"present": False, "digest": None}


@fault("image-present", "unknown")
def image_not_told(case: Case, host: str) -> None:
    case.host(host)["docker"] = None


@fault("image-equal", says=("abababababab", "cdcdcdcdcdcd"))
def other_image(case: Case, host: str) -> None:
    case.host(host)["docker"]["image"]["digest"] = "sha256:" + "cd" * 32


@fault("image-equal", says=("ababababab", "cdcdcdcdcdcd"))
def image_derived_from_another(case: Case, host: str) -> None:
    case.host(host)["docker"]["image"]["parts"] = "cd" * 32
