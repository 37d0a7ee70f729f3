# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Hosts of the lab and a cluster on them, driven as an operator does it: the root playbooks over SSH.

Runs in the controller's namespace only:

    LAB_NAME=hosts molecule/lab/labctl run --alone .venv/bin/python -m pytest tests/lab

It makes hosts of its own and removes them. Where hosts are up under the same LAB_NAME it refuses: they are somebody's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import typing as t
import warnings

import ansible_runner
import pytest
import yaml

from ..integration.conftest import Result, complete

PROJECT = pathlib.Path(__file__).resolve().parents[2]
LABCTL = PROJECT / "molecule" / "lab" / "labctl"
IMAGE = "quay.io/ascend/vllm-ascend:v0.23.0-a3"
ARCHIVE = "/srv/images/vllm-ascend-v0.23.0-a3.tar"
# b1 is in no cluster until a test puts it into one: a jump host, and a host that lacks what docker's modules need.
HOSTS = ("p1", "d1", "d2", "b1:8:bare")
# labctl run sets this one and nobody else does; outside of it no host can be reached.
IN_LAB = os.environ.get("ANSIBLE_SSH_CONTROL_PATH_DIR", "").endswith("/cp")

if not IN_LAB:
    collect_ignore_glob = ["test_*.py"]
    warnings.warn("tests/lab is not collected: it runs by `make test-hosts`, in the lab (docs/lab.md)", stacklevel=1)


class Lab:
    """The lab's own command, and what is on its hosts."""

    def __init__(self) -> None:
        self.address: dict[str, str] = {}

    def ctl(self, *words: str) -> str:
        done = subprocess.run([str(LABCTL), *words], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"labctl {' '.join(words)}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self) -> None:
        """Refuses where hosts are up already, since down() would remove what is not its own."""
        there = self.ctl("status")
        if there:
            pytest.exit(f"hosts of another purpose are up; take them down or set another LAB_NAME:\n{there}", 2)
        try:
            self.ctl("up", *HOSTS)
        except BaseException:
            self.ctl("down")  # all are ours: there were none
            raise
        self._look()

    def add(self, *specs: str) -> None:
        """Boot further hosts."""
        self.ctl("up", *specs)
        self._look()

    def remove(self, *hosts: str) -> None:
        self.ctl("down", *hosts)
        for host in hosts:
            del self.address[host]

    def _look(self) -> None:
        for row in self.ctl("status").splitlines():
            name, address = row.split()[:2]
            self.address[name] = address

    def down(self) -> None:
        self.forget_connections()
        self.ctl("down", *self.address)

    def sh(self, host: str, script: str) -> str:
        """A script on the host, as root and without ssh."""
        return self.ctl("exec", host, "sh", "-ec", script)

    def containers(self, host: str) -> dict[str, dict[str, t.Any]]:
        """What docker says of every container of the host, running or not, by name."""
        found = json.loads(self.sh(host, "docker ps -aq | xargs -r docker inspect") or "[]")
        return {entry["Name"].lstrip("/"): entry for entry in found}

    def ids(self, *hosts: str) -> dict[str, tuple[str, str]]:
        """host/name -> id of the container and when it was started."""
        return {
            f"{host}/{name}": (entry["Id"], entry["State"]["StartedAt"])
            for host in hosts
            for name, entry in self.containers(host).items()
        }

    @property
    def controller(self) -> str:
        """The address that hosts see the controller at."""
        return self.address["p1"].rsplit(".", 1)[0] + ".1"

    def ssh(self, user: str, host: str, command: str) -> str:
        """What ssh prints, on a connection of its own."""
        words = ["ssh", "-F", self._ssh_config, f"{user}@{host}", command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def put(self, path: pathlib.Path, host: str, to: str) -> None:
        """Copy a file to a host, as user ops."""
        self._scp(str(path), f"ops@{host}:{to}")

    def get(self, host: str, path: str, to: pathlib.Path) -> None:
        """Copy a file from a host, as user ops."""
        self._scp(f"ops@{host}:{path}", str(to))

    def _scp(self, *words: str) -> None:
        subprocess.run(["scp", "-q", "-F", self._ssh_config, *words], check=True, timeout=60)

    @property
    def _ssh_config(self) -> str:
        return f"{pathlib.Path(os.environ['ANSIBLE_SSH_CONTROL_PATH_DIR']).parent}/ssh_config"

    def forget_connections(self) -> None:
        """End the ssh connections that persist between runs."""
        for path in pathlib.Path(os.environ["ANSIBLE_SSH_CONTROL_PATH_DIR"]).glob("*"):
            subprocess.run(["ssh", "-o", f"ControlPath={path}", "-O", "exit", "any"], capture_output=True, check=False)

    def forget_reserved_ports(self, host: str) -> None:
        """In the network of a host that is off."""
        name = f"{os.environ.get('LAB_NAME') or 'pdlab'}-{host}"
        command = ["ip", "netns", "exec", name, "sh", "-c", "echo >/proc/sys/net/ipv4/ip_local_reserved_ports"]
        subprocess.run(command, check=True)

    def completes(self, url: str) -> bool:
        with contextlib.suppress(OSError, KeyError, ValueError):
            return bool(self.complete(url))
        return False

    def complete(self, url: str, model: str = "lab") -> str:
        """The text of a completion, asked for from the controller."""
        text: str = complete(url, model)["choices"][0]["text"]
        return text


def task_started(event: dict[str, t.Any], task: str, *plays: str) -> bool:
    """Whether the event is the begin of this task, in one of these plays."""
    data = event.get("event_data", {})
    return (
        event["event"] == "playbook_on_task_start"
        and data["task"].rpartition(" : ")[2] == task
        and data["play"] in plays
    )


@dataclasses.dataclass
class Run(Result):
    """What a run did over SSH."""

    def failures(self) -> dict[str, str]:
        """Host -> what its failed and unreachable tasks said. A host that only stopped with the others is not in it."""
        said: dict[str, list[str]] = {}
        for event in self.events:
            data = event.get("event_data", {})
            if event["event"] in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
                res = data["res"]
                items = [item for item in res.get("results", ()) if item.get("failed") or item.get("unreachable")]
                said.setdefault(data["host"], []).extend(str(one.get("msg", one)) for one in items or [res])
        return {host: "\n".join(messages) for host, messages in said.items()}

    def refusals(self) -> dict[str, str]:
        """Host -> what preflight, which speaks once about all hosts, has against it. Else what a host's tasks said."""
        found: dict[str, str] = {}
        for host, said in self.failures().items():
            if not said.startswith("Preflight: "):
                found[host] = said
                continue
            for verdict in re.split(r"^(?=ERROR \[)", said, flags=re.MULTILINE)[1:]:
                first, _, others = verdict.partition("the same: ")
                places = [first.splitlines()[0].split("] ", 1)[1], *others.split(",")]
                for name in (place.split()[0] for place in places if place.strip()):
                    found[name] = found.get(name, "") + verdict
        return found

    def warnings(self) -> str:
        return "\n".join(
            str(line)
            for event in self.events
            for line in event.get("event_data", {}).get("res", {}).get("warnings", [])
        )


class Cluster:
    """One inventory, and runs of playbooks against it."""

    def __init__(self, lab: Lab, folder: pathlib.Path, inventory: dict[str, t.Any], *before: pathlib.Path) -> None:
        self.lab, self.folder, self.before = lab, folder, before
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "hosts.yml"
        self.write(inventory)
        self.runs = 0

    def write(self, inventory: dict[str, t.Any]) -> None:
        self.path.write_text(yaml.safe_dump(inventory, sort_keys=False), encoding="utf-8")

    def run(
        self,
        playbook: str,
        *,
        limit: str | None = None,
        watch: t.Callable[[dict[str, t.Any]], None] | None = None,
        **extra: t.Any,
    ) -> Run:
        """watch gets every event as it comes."""
        self.runs += 1
        private = self.folder / f"run{self.runs}"
        private.mkdir()

        def handle(event: dict[str, t.Any]) -> bool:
            if watch:
                watch(event)
            return True

        began = time.monotonic()
        runner = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(PROJECT),
            playbook=playbook,
            inventory=[*map(str, self.before), str(self.path)],
            extravars=extra,
            envvars={
                "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
                "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
                "LC_ALL": "C.UTF-8",
            },
            event_handler=handle,
            quiet=True,
            limit=limit,
        )
        run = Run(
            status=runner.status,
            rc=runner.rc,
            events=list(runner.events),
            stdout=runner.stdout.read(),
            seconds=time.monotonic() - began,
            stats=runner.stats or {},
        )
        assert "Traceback" not in run.stdout, run.stdout
        return run

    def site(self, **more: t.Any) -> Run:
        """A run of site.yml that must succeed."""
        run = self.run("site.yml", **more)
        assert run.rc == 0, run.stdout
        return run

    def plan(self, **extra: t.Any) -> dict[str, t.Any]:
        out = self.folder / "plan.json"
        run = self.run("plan.yml", plan_out=str(out), **extra)
        assert run.rc == 0, run.stdout
        loaded: dict[str, t.Any] = json.loads(out.read_text(encoding="utf-8"))
        return loaded


# Clusters -----------------------------------------------------------------------------------------------------------

ACCESS: dict[str, t.Any] = {
    "ansible_user": "ops",
    "ansible_become": True,
    "ansible_python_interpreter": "/usr/bin/python3",
}
COMMON: dict[str, t.Any] = {
    "pd_hardware": "a3",
    "pd_model_path": "/models/m",
    "pd_served_model_name": "lab",
    "pd_engine_args_common": {"max-model-len": 4096, "enable-expert-parallel": True},
    "image_archive": ARCHIVE,
    "engine_poll_seconds": 1,
}


def inventory(
    lab: Lab, *, chips: t.Sequence[int] = (4, 7), hosts: t.Sequence[str] = ("p1", "d1", "d2"), **more: t.Any
) -> dict[str, t.Any]:
    """Prefill and the proxy on the first host, one decode instance over the others: a rank each."""
    values = {**ACCESS, **COMMON, **more}
    first, *others = hosts
    return {
        "all": {
            "vars": values,
            "children": {
                "prefill": {
                    "hosts": {first: {"ansible_host": lab.address[first]}},
                    "vars": {"pd_dp_size": 1, "pd_tp_size": 2, "pd_chips": list(chips)},
                },
                "decode": {
                    "hosts": {name: {"ansible_host": lab.address[name]} for name in others},
                    "vars": {"pd_dp_size": len(others), "pd_tp_size": 1, "pd_chips": list(chips[:1])},
                },
                "proxy": {"hosts": {first: {}}},
            },
        }
    }


@pytest.fixture(scope="session")
def lab() -> t.Iterator[Lab]:
    lab = Lab()
    lab.up()
    yield lab
    lab.down()


@dataclasses.dataclass
class Deployed:
    """The cluster that most tests share, and the run that made it. Each test leaves it whole."""

    cluster: Cluster
    first: Run

    @property
    def url(self) -> str:
        return f"http://{self.cluster.lab.address['p1']}:1999"


@pytest.fixture(scope="session")
def deployed(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    # Somebody else's reservation, from before us.
    lab.sh(
        "p1",
        "echo net.ipv4.ip_local_reserved_ports = 8080,9000-9005 > /etc/sysctl.d/50-site.conf; sysctl -qp /etc/sysctl.d/50-site.conf",
    )
    cluster = Cluster(lab, tmp_path_factory.mktemp("pd"), inventory(lab))
    return Deployed(cluster, cluster.site())
