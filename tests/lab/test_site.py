# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Containers are what the plan says, and a run does only what it must."""

from __future__ import annotations

import re
import typing as t

from ..integration.conftest import wait_for
from .conftest import Deployed, Lab

UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
SECONDS = {"s": 1, "m": 60, "h": 3600}
RESERVED = "/proc/sys/net/ipv4/ip_local_reserved_ports"


def nanoseconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]] * 10**9


def as_docker_says(wanted: dict[str, t.Any], image_env: list[str]) -> dict[str, t.Any]:
    """A container block of the plan in the words of docker inspect. A key that is not known here fails the test."""
    rest = dict(wanted)
    health = rest.pop("healthcheck")
    size, memory = rest.pop("shm_size"), rest.pop("memory")
    mounts = [mount if mount.endswith((":ro", ":rw")) else f"{mount}:rw" for mount in rest.pop("mounts")]
    limits = [re.fullmatch(r"(\w+)=(-?\d+)(?::(-?\d+))?", limit) for limit in rest.pop("ulimits")]
    said = {
        "Name": "/" + rest.pop("name"),
        "Config.Image": rest.pop("image"),
        "Config.Cmd": rest.pop("command"),
        "Config.Env": sorted([*image_env, *(f"{name}={value}" for name, value in rest.pop("env").items())]),
        "Config.Labels": rest.pop("labels"),
        "Config.Healthcheck": {
            "Test": health["test"],
            "Retries": health["retries"],
            "Interval": nanoseconds(health["interval"]),
            "Timeout": nanoseconds(health["timeout"]),
            "StartPeriod": nanoseconds(health["start_period"]),
        },
        "HostConfig.NetworkMode": rest.pop("network"),
        "HostConfig.Privileged": rest.pop("privileged"),
        "HostConfig.ShmSize": int(size[:-1]) * UNITS[size[-1]],
        "HostConfig.Memory": int(memory[:-1]) * UNITS[memory[-1]] if memory else 0,
        "HostConfig.Binds": sorted(mounts),
        "HostConfig.CapAdd": sorted(rest.pop("capabilities")),
        "HostConfig.RestartPolicy": {"Name": rest.pop("restart_policy"), "MaximumRetryCount": 0},
        "HostConfig.Devices": sorted((device, device, "rwm") for device in rest.pop("devices")),
        "HostConfig.Ulimits": sorted(
            (limit[1], int(limit[2]), int(limit[3] or limit[2])) for limit in limits if limit is not None
        ),
    }
    assert rest == {}
    return said


def picked(inspected: dict[str, t.Any]) -> dict[str, t.Any]:
    """The same keys out of docker inspect."""
    config, host = inspected["Config"], inspected["HostConfig"]
    devices = [(row["PathOnHost"], row["PathInContainer"], row["CgroupPermissions"]) for row in host["Devices"] or []]
    return {
        "Name": inspected["Name"],
        "Config.Image": config["Image"],
        "Config.Cmd": config["Cmd"],
        "Config.Env": sorted(config["Env"]),
        "Config.Labels": config["Labels"],
        "Config.Healthcheck": config["Healthcheck"],
        "HostConfig.NetworkMode": host["NetworkMode"],
        "HostConfig.Privileged": host["Privileged"],
        "HostConfig.ShmSize": host["ShmSize"],
        "HostConfig.Memory": host["Memory"],
        "HostConfig.Binds": sorted(host["Binds"]),
        "HostConfig.CapAdd": sorted(host["CapAdd"] or []),
        "HostConfig.RestartPolicy": host["RestartPolicy"],
        "HostConfig.Devices": sorted(devices),
        "HostConfig.Ulimits": sorted((row["Name"], row["Soft"], row["Hard"]) for row in host["Ulimits"] or []),
    }


def assert_as_planned(lab: Lab, plan: dict[str, t.Any]) -> None:
    rows = [(row["host"], row["container"]) for row in (*plan["placements"], plan["proxy"])]
    for host, wanted in rows:
        image_env = lab.sh(host, f"docker image inspect -f '{{{{join .Config.Env \"\\n\"}}}}' {wanted['image']}")
        found = lab.containers(host)[wanted["name"]]
        assert found["State"]["Running"]
        assert picked(found) == as_docker_says(wanted, image_env.splitlines()), f"{wanted['name']} on {host}"
    for host in {host for host, _wanted in rows}:
        planned = {wanted["name"] for place, wanted in rows if place == host}
        assert set(lab.containers(host)) == planned, f"nothing else runs on {host}"


def test_containers_are_as_planned(lab: Lab, deployed: Deployed) -> None:
    plan = deployed.cluster.plan()
    policies = {row["role"]: row["container"]["restart_policy"] for row in plan["placements"]}
    assert policies == {"prefill": "unless-stopped", "decode": "no"}
    assert_as_planned(lab, plan)
    assert lab.complete(deployed.url)


def test_a_second_run_changes_nothing_with_few_tasks(lab: Lab, deployed: Deployed) -> None:
    before = lab.ids("p1", "d1", "d2")
    assert set(deployed.first.changed()) == {"p1", "d1", "d2"}
    again = deployed.cluster.site()
    assert again.changed() == {}
    done = again.on_hosts()
    assert set(done) == {"p1", "d1", "d2"}
    assert {host: tasks for host, tasks in done.items() if len(tasks) > 12} == {}
    assert lab.ids("p1", "d1", "d2") == before


def test_the_images_mooncake_is_looked_at_once(lab: Lab, deployed: Deployed) -> None:
    """Where engines run; the tables expect it. Another image of the same content is another image."""
    said = "Mooncake 0.3.11.post1 (bundled, Python 3"
    assert said in deployed.first.stdout
    assert said not in deployed.cluster.site().stdout
    expected = deployed.cluster.site(pd_mooncake_version="0.3.9")
    assert said not in expected.stdout, "the image has been looked at"
    lab.sh("d1", "rm -r /opt/pd_mooncake")
    warned = deployed.cluster.site(pd_mooncake_version="0.3.9")
    assert "but 0.3.9 was expected (pd_mooncake_version)" in warned.stdout
    assert [host for host, tasks in warned.on_hosts().items() if "See to Mooncake" in tasks] == ["d1"]
    assert deployed.cluster.site().changed() == {}


def ports(text: str) -> set[int]:
    spans = [part.split("-") for part in text.strip().split(",") if part]
    return {port for span in spans for port in range(int(span[0]), int(span[-1]) + 1)}


def test_reserved_ports_are_merged_and_outlast_a_reboot(lab: Lab, deployed: Deployed) -> None:
    planned = {row["host"]: ports(row["ip_local_reserved_ports"]) for row in deployed.cluster.plan()["hosts"]}
    others = {8080, *range(9000, 9006)}
    reserved = ports(lab.sh("p1", f"cat {RESERVED}"))
    assert reserved >= planned["p1"] | others
    assert ports(lab.sh("d1", f"cat {RESERVED}")) >= planned["d1"]
    assert lab.sh("p1", "cat /etc/sysctl.d/50-site.conf").split()[-1] == "8080,9000-9005", "their file is left alone"
    lab.ctl("off", "p1")
    # The lab keeps a host's network while it is off; with a real one the kernel's values go.
    lab.forget_reserved_ports("p1")
    lab.ctl("on", "p1")
    assert ports(lab.sh("p1", f"cat {RESERVED}")) == reserved
    # Prefill and the proxy come back by themselves.
    assert wait_for(lambda: lab.completes(deployed.url), 60)
