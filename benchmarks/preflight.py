# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Wall time of the whole of preflight.yml, with tools that take 50 ms per call.

Four rehearsed A3 hosts of 16 chips. Two things to hold it against:

1. The serial floor: hccn_tool must never run twice at once on a host, so the busiest host needs its number of calls times
   50 ms, whatever asks them.
2. The questions about chips and their network by the loops of the tutorial that this product replaces, one shell task per
   loop. These are asked alone, too (--tags hardware,fabric), since loops ask nothing else.
"""

from __future__ import annotations

import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import typing as t

from . import fleet

PROJECT = pathlib.Path(__file__).resolve().parent.parent
HOSTS = 4
CALL_MS = 50  # from its start to its end
ROUNDS = 3
NPU = "opt/pd_rehearsal/npu"
TOOLS = "usr/local/Ascend/driver/tools", "usr/local/bin"
CHIPS = "for i in $(seq 0 15); do"
# The tutorial's verification of one A3 host, loop by loop; {targets} are the vNIC addresses of another host's chips.
LOOPS = {
    "Remote switch ports": f"{CHIPS} hccn_tool -i $i -lldp -g | grep Ifname; done",
    "Link": f"{CHIPS} hccn_tool -i $i -link -g; done",
    "Network health": f"{CHIPS} hccn_tool -i $i -net_health -g; done",
    "Detection address": f"{CHIPS} hccn_tool -i $i -netdetect -g; done",
    "Gateway": f"{CHIPS} hccn_tool -i $i -gateway -g; done",
    "Configuration": "cat {root}/etc/hccn.conf",
    "Virtual addresses": f"{CHIPS} hccn_tool -i $i -vnic -g; done",
    "Super pod": f"{CHIPS} npu-smi info -t spod-info -i $i -c 0; npu-smi info -t spod-info -i $i -c 1; done",
    "TLS": f"{CHIPS} hccn_tool -i $i -tls -g; done | grep switch",
}
PING = "set -- {targets}; for i in $(seq 0 15); do hccn_tool -i $i -hccs_ping -g address $1; shift; done"
# What preflight asks besides, so that both ask the same.
MORE = {
    "RoCE addresses": f"{CHIPS} hccn_tool -i $i -ip -g; done",
    "Chips": "npu-smi info",
    "Chip numbers": "npu-smi info -m",
}
# As in the tutorial nobody looks at exit codes: its loop over 16 cards fails for the eight that an A3 host has not.
NEVER_MIND = {"changed_when": False, "failed_when": False}


class Call(t.NamedTuple):
    """One call of a simulated tool; seconds since boot."""

    start: float
    end: float
    tool: str
    arguments: str


class Phases(t.NamedTuple):
    """Where the wall time of a run went, in seconds."""

    wall: float
    before: float
    asking: float
    between: float
    pinging: float
    after: float


class Rehearsed:
    """Rehearsed hosts whose tools are slow."""

    def __init__(self, folder: pathlib.Path, hosts: int) -> None:
        self.inventory = folder / "hosts.json"
        self.inventory.write_text(json.dumps(fleet.inventory(hosts)), encoding="utf-8")
        self.extra = folder / "extra.json"
        variables = {
            "pd_rehearsal": True,
            "pd_rehearsal_dir": str(folder / "state"),
            "preflight_report_dir": str(folder / "report"),
        }
        self.extra.write_text(json.dumps(variables), encoding="utf-8")
        self.hosts = folder / "state" / "hosts"
        self.names = [name for role in fleet.names(hosts) for name in role]
        # Builds the hosts; what is measured later is a fleet that is there.
        self.preflight("--tags", "hardware")
        # The process that waits is the simulator's own as well.
        self.delay(10)
        self.own_ms = self.call() * 1000 - 10
        self.delay(int(CALL_MS - self.own_ms))  # rounded down: the floor counts no more than CALL_MS
        self.call_ms = self.call() * 1000

    def delay(self, milliseconds: int) -> None:
        """Let each call wait so long."""
        for name in self.names:
            (self.hosts / name / NPU / "faults").write_text(f"delay_ms {milliseconds}\n", encoding="utf-8")

    def call(self) -> float:
        """Seconds that a call takes: its processes are started, the answer is read."""
        tool = str(self.hosts / self.names[0] / TOOLS[0] / "hccn_tool")
        times = []
        for chip in range(16):
            began = time.perf_counter()
            subprocess.run([tool, "-i", str(chip), "-link", "-g"], check=True, capture_output=True)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    def play(self, playbook: str, *words: str) -> tuple[float, float]:
        """When the run began and ended, in seconds since boot."""
        for name in self.names:
            (self.hosts / name / NPU / "calls.log").unlink(missing_ok=True)
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(PROJECT / "ansible.cfg"),
            "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}",
            "LC_ALL": "C.UTF-8",
        }
        command = ["ansible-playbook", playbook, "-i", str(self.inventory), "-e", f"@{self.extra}", *words]
        began = time.clock_gettime(time.CLOCK_BOOTTIME)
        done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
        ended = time.clock_gettime(time.CLOCK_BOOTTIME)
        if done.returncode:
            raise RuntimeError(f"{playbook}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return began, ended

    def preflight(self, *words: str) -> tuple[float, float]:
        return self.play("preflight.yml", *words)

    def calls(self) -> dict[str, list[Call]]:
        """Every call of the last run, by host, in order."""
        found = {}
        for name in self.names:
            lines = (self.hosts / name / NPU / "calls.log").read_text(encoding="utf-8").splitlines()
            rows = [line.split(maxsplit=4) for line in lines]
            found[name] = [Call(float(start), float(end), tool, words) for start, end, _code, tool, words in rows]
        return found


def phases(began: float, ended: float, calls: dict[str, list[Call]]) -> Phases:
    """Split a run at its calls. Pings are what comes after everything has been asked."""
    pings = [call for own in calls.values() for call in own if "ping" in call.arguments]
    others = [call for own in calls.values() for call in own if "ping" not in call.arguments]
    asked, ping_began = max(call.end for call in others), min(call.start for call in pings)
    first, last = min(call.start for call in others), max(call.end for call in pings)
    return Phases(ended - began, first - began, asked - first, ping_began - asked, last - ping_began, ended - last)


def loops(rehearsed: Rehearsed, calls: dict[str, list[Call]], out: pathlib.Path) -> None:
    """A playbook that asks with shell loops what *calls* asked, the same pings among it."""
    everyone: dict[str, t.Any] = {}
    for name in rehearsed.names:
        root = rehearsed.hosts / name
        pings = [call.arguments.split() for call in calls[name] if "ping" in call.arguments]
        targets: dict[str, list[tuple[int, str]]] = {}
        for words in pings:
            address = words[words.index("address") + 1]
            targets.setdefault(address.rsplit(".", 1)[0], []).append((int(words[words.index("-i") + 1]), address))
        commands = {**LOOPS, **MORE}
        for number, net in enumerate(sorted(targets)):
            addresses = [address for _chip, address in sorted(targets[net])]
            commands[f"Ping host {number + 1}"] = PING.replace("{targets}", " ".join(addresses))
        everyone[name] = {label: line.replace("{root}", str(root)) for label, line in commands.items()}
    labels = list(everyone[rehearsed.names[0]])
    tasks = [
        {"name": label, "ansible.builtin.shell": f"{{{{ loops[inventory_hostname][{label!r}] }}}}", **NEVER_MIND}
        for label in labels
    ]
    path = ":".join(f"{rehearsed.hosts}/{{{{ inventory_hostname }}}}/{place}" for place in TOOLS)
    play = {
        "name": "Verify by loops",
        "hosts": "prefill:decode",
        "gather_facts": False,
        "connection": "local",
        "environment": {"PATH": f"{path}:{os.environ['PATH']}"},
        "vars": {"loops": everyone, "ansible_python_interpreter": sys.executable},
        "tasks": tasks,
    }
    out.write_text(json.dumps([play]), encoding="utf-8")


def processor_seconds() -> float:
    """Of everything that has been run so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        rehearsed = Rehearsed(pathlib.Path(folder), HOSTS)
        ours = []
        before = processor_seconds()
        for _round in range(ROUNDS):
            span = rehearsed.preflight()
            calls = rehearsed.calls()
            ours.append(phases(*span, calls))
        processor = (processor_seconds() - before) / ROUNDS
        network = []
        for _round in range(ROUNDS):
            began, ended = rehearsed.preflight("--tags", "hardware,fabric")
            network.append(ended - began)
        by_loops = pathlib.Path(folder) / "loops.yml"
        loops(rehearsed, calls, by_loops)
        theirs = []
        for _round in range(ROUNDS):
            span = rehearsed.play(str(by_loops))
            theirs.append(span[1] - span[0])
        their_calls = rehearsed.calls()
    best = min(ours)
    busiest = max(len(own) for own in calls.values())
    floor = busiest * CALL_MS / 1000
    print(f"the whole of preflight.yml, {HOSTS} rehearsed hosts, 16 chips, {CALL_MS} ms per call, ", end="")
    print(
        f"load of the machine {load:.1f} on {os.cpu_count()} cores: best / floor {best.wall / floor:.2f} (target 1.3)"
    )
    print(f"  a call takes {rehearsed.call_ms:.1f} ms, of which {rehearsed.own_ms:.1f} are the simulator's own")
    print(f"  serial floor of the busiest host: {busiest} calls, {floor:.1f} s")
    print(f"  wall {' '.join(f'{one.wall:.1f}' for one in ours)} s; of the best:")
    print(
        f"    start-up and plan {best.before:.1f} s, asking {best.asking:.1f} s, between {best.between:.1f} s, "
        f"pings {best.pinging:.1f} s, judging and end {best.after:.1f} s"
    )
    print(
        f"    processor time {processor:.1f} s a run, with all hosts and their tools: on a busy machine it counts most"
    )
    print(f"  chips and their network alone: {' '.join(f'{one:.1f}' for one in network)} s; ", end="")
    print(f"best / floor {min(network) / floor:.2f}")
    their_busiest = max(len(own) for own in their_calls.values())
    print(
        f"  shell loops, one task per loop: {their_busiest} calls, {' '.join(f'{one:.1f}' for one in theirs)} s;",
        end="",
    )
    print(f" loops / preflight {min(theirs) / min(network):.2f}")
    one_by_one = sum(call.end - call.start for own in their_calls.values() for call in own)
    print(f"    pasted on one host after the other, without the reading: {one_by_one:.1f} s (sum of the calls)")


if __name__ == "__main__":
    main()
