# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A fleet with nothing wrong, as the modules would report it, for tests to put faults into."""

from __future__ import annotations

import dataclasses
import typing as t

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.verdicts import Report

HOSTS = ("p1", "p2", "d1", "d2")
NOW = 1_790_000_000.0
ROLES = {"p": "prefill", "d": "decode"}
PLANES = {"a2": "roce", "a3": "hccs", "a5": "ub"}
NAMES = {"a2": "910B4", "a3": "Ascend910", "a5": "Ascend950PR"}
IMAGE = "quay.io/ascend/vllm-ascend:v0.23.0"
MODEL = "/models/demo"


def chips_of(hardware: str) -> int:
    return 16 if hardware == "a3" else 8


def node_ip(number: int) -> str:
    return f"192.0.{2 + number // 200}.{number % 200 + 1}"


def vnic_ip(number: int, chip: int) -> str:
    return f"10.{number // 256}.{number % 256}.{chip + 1}"


def roce_ip(number: int, chip: int) -> str:
    return f"11.0.{number // 8}.{(number % 8) * 16 + chip + 1}"


def view(hardware: str, hosts: t.Sequence[str]) -> dict[str, t.Any]:
    chips = list(range(chips_of(hardware)))
    return {
        "name": "demo",
        "hardware": hardware,
        "plane": PLANES[hardware],
        "topology": "switched",
        "runtime": "docker",
        "image": IMAGE,
        "versions": {"vllm_ascend": "v0.23.0", "cann": "9.1.0", "mooncake": "0.3.11.post1"},
        "rehearsal": False,
        "pool": None,
        "hosts": {
            host: {
                "node_ip": node_ip(number),
                "nic": "eth0",
                "chips": chips,
                "chips_per_node": len(chips),
                "instances": [f"i-{host}"],
                "roles": [ROLES.get(host[0], "decode")],
                "proxy": number == 0,
                "model_path": MODEL,
                "workers": len(chips),
                "memory_utilization": 0.9,
                "pool_mb": 0,
                "pool_arithmetic": "",
                "pinned_mb": 0,
            }
            for number, host in enumerate(hosts)
        },
    }


def queries(hardware: str, number: int, chip: int) -> dict[str, t.Any]:
    gateway = "11.0.255.254"
    found: dict[str, t.Any] = {
        "link": {"state": "ok", "link": "UP"},
        "net_health": {"state": "ok", "net_health": "Success"},
        "netdetect": {"state": "ok", "netdetect": gateway},
        "gateway": {"state": "ok", "gateway": gateway, "iface": "eth0"},
        "ip": {"state": "ok", "ipaddr": roce_ip(number, chip), "netmask": "255.255.0.0"},
        "lldp": {"state": "ok", "ifname": f"400GE1/{number}/{chip}"},
        "tls": {"state": "ok", "tls_switch": 0},
    }
    if hardware == "a5":
        found = {"dev_info": {"state": "ok", "ports": [], "eids": {}}, "link": found["link"], "tls": found["tls"]}
    if hardware == "a3":
        found["vnic"] = {"state": "ok", "link": "UP", "ipaddr": vnic_ip(number, chip), "netmask": "255.255.0.0"}
        found["spod"] = {
            "state": "ok",
            "super_pod_id": 0,
            "super_pod_size": 384,
            "server_index": number,
            "sdid": number * 1024 + chip,
        }
    return found


def npu(hardware: str, number: int) -> dict[str, t.Any]:
    chips = range(chips_of(hardware))
    dies = 2 if hardware == "a3" else 1
    return {
        "tools": {
            "hccn_tool": {"path": "/usr/local/Ascend/driver/tools/hccn_tool", "state": "ok"},
            "npu_smi": {"path": "/usr/local/bin/npu-smi", "state": "ok"},
        },
        "calls": {"count": 100, "seconds": 5.0, "busy_retries": 0},
        "hccn_conf": {
            "state": "ok",
            "chips": {str(chip): {"address": roce_ip(number, chip), "netmask": "255.255.0.0"} for chip in chips},
            "lines_not_understood": [],
        },
        "npu_smi": {
            "state": "ok",
            "version": "25.2.0",
            "chips": {
                str(chip): {
                    "card": chip // dies,
                    "chip": chip % dies,
                    "name": NAMES[hardware],
                    "health": "OK",
                    "bus_id": f"0000:{chip:02X}:00.0",
                    "temperature_c": 37,
                    "hbm_used_mb": 3400,
                    "hbm_total_mb": 65536,
                    "processes": [],
                }
                for chip in chips
            },
        },
        "driver": {"driver": "25.2.0", "firmware": "7.7.0.6.236", "install": {}},
        "chips": {str(chip): queries(hardware, number, chip) for chip in chips},
    }


def host_facts(number: int, hosts: t.Sequence[str], own: str) -> dict[str, t.Any]:
    # Each host tries the three that follow it.
    others = [(n, host) for n, host in enumerate(hosts) if host != own]
    near = (others[number:] + others[:number])[:3]
    return {
        "clock": {"host": NOW + 0.05, "before": NOW, "after": NOW + 0.2},
        "kernel": "5.10.0-216.0.0.115.oe2203sp4.aarch64",
        "memory_total_mb": 1_500_000,
        "memory_available_mb": 1_400_000,
        "hugepages_total": 0,
        "hugepages_free": 0,
        "hugepage_kb": 2048,
        "disks": {"/": 500_000, "/var/lib/docker": 900_000},
        "nics": {
            "lo": {"addresses": ["127.0.0.1/8"], "mtu": 65536, "state": "unknown"},
            "eth0": {"addresses": [f"{node_ip(number)}/24"], "mtu": 1500, "state": "up"},
            "eth-mgmt": {"addresses": [f"198.51.100.{number % 250 + 1}/24"], "mtu": 1500, "state": "up"},
        },
        "findings": [],
        "docker": {"version": "28.2.2", "image": {"present": True, "digest": "sha256:" + "ab" * 32}},
        "models": {
            MODEL: {
                "state": "ok",
                "config_digest": "c0" * 32,
                "index_digest": "1d" * 32,
                "count": 163,
                "bytes": 689_000_000_000,
            }
        },
        "probes": [{"to": host, "address": node_ip(n), "port": 7100, "state": "open"} for n, host in near],
        "own_pids": [],
    }


@dataclasses.dataclass
class Case:
    """Everything that judge takes. Tests change it in place."""

    hardware: str
    hosts: tuple[str, ...]
    view: dict[str, t.Any]
    facts: dict[str, dict[str, t.Any]]
    pings: dict[str, t.Any] | None
    asked: list[str]

    def judge(self, **options: t.Any) -> Report:
        return preflight.judge(
            t.cast(t.Any, self.view),
            t.cast(t.Any, self.facts),
            t.cast(t.Any, self.pings),
            self.asked,
            list(self.hosts),
            NOW,
            **options,
        )

    def query(self, host: str, chip: int, name: str) -> dict[str, t.Any]:
        found: dict[str, t.Any] = self.facts[host]["npu"]["chips"][str(chip)][name]
        return found

    def smi(self, host: str, chip: int) -> dict[str, t.Any]:
        found: dict[str, t.Any] = self.facts[host]["npu"]["npu_smi"]["chips"][str(chip)]
        return found

    def host(self, host: str) -> dict[str, t.Any]:
        found: dict[str, t.Any] = self.facts[host]["host"]
        return found

    def chips(self) -> range:
        return range(chips_of(self.hardware))

    def pings_where(self, wanted: t.Callable[[dict[str, t.Any]], bool]) -> list[dict[str, t.Any]]:
        assert self.pings is not None
        return [one for one in self.pings["results"] if wanted(one)]


def run_pings(view_: dict[str, t.Any], facts: dict[str, t.Any], mode: str = "rail") -> dict[str, t.Any]:
    """What a fleet without faults answers to the planned pings."""
    plan = preflight.plan_pings(t.cast(t.Any, view_), t.cast(t.Any, facts), mode=mode)
    answers = {
        host: {
            "pings": [
                {
                    "chip": one["chip"],
                    "target": one["target"],
                    "state": "ok",
                    "sent": 3,
                    "received": 3,
                    "loss_percent": 0.0,
                    "l1_plane": [0, 0, 0] if one["mode"] == "hccs" else [],
                    "average_us": 12.0 + one["chip"] % 3,
                    "max_us": 20.0,
                }
                for one in preflight.module_options(plan, host)
            ]
        }
        for host in plan.by_host
    }
    return t.cast("dict[str, t.Any]", preflight.ping_run(plan, answers))


def good(hardware: str = "a3", hosts: t.Sequence[str] = HOSTS, mode: str = "rail") -> Case:
    """A fleet in which nothing is wrong."""
    view_ = view(hardware, hosts)
    facts = {
        host: {"npu": npu(hardware, number), "host": host_facts(number, hosts, host)}
        for number, host in enumerate(hosts)
    }
    return Case(hardware, tuple(hosts), view_, facts, run_pings(view_, facts, mode), list(hosts))
