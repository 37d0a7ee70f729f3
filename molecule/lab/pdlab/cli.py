# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The command ``labctl``."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator

from pdlab import command, hosts, image, network, rootfs
from pdlab.place import DIR, NAME, LabError

DEFAULT_HOSTS = ["p1", "p2", "d1", "d2", "spare1"]
EPILOG = """\
A host is NAME[:CHIPS[:bare]]. 16 chips (the default) make it an A3, 8 an A2, 0 leave it without NPU. "bare": without
python3-requests, which community.docker needs. Hosts answer at 198.18.0.11 and up, in the order of their creation, to root,
ops (sudo without a password) and opspw (sudo with the password "lab"). Engine images are in /srv/images of each host.

environment: LAB_DIR (caches and hosts, /var/tmp/pd_serving_lab), LAB_NAME (several labs at once, pdlab)
"""
Act = Callable[[argparse.Namespace], "int | None"]

# Command and the Debian package that brings it.
NEEDED = {
    "podman": "podman",
    "runc": "runc",
    "mmdebstrap": "mmdebstrap",
    "ip": "iproute2",
    "ssh-keygen": "openssh-client",
    "mount": "mount",
    "nsenter": "util-linux",
}


def main(argv: list[str]) -> int:
    arguments = parser().parse_args(argv)
    try:
        check_machine()
        with locked() if arguments.changes else contextlib.nullcontext():
            code: int | None = arguments.act(arguments)
    except LabError as exc:
        print(f"labctl: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("labctl: interrupted; the same verb finishes it, `labctl down` undoes it", file=sys.stderr)
        return 130
    return code or 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="labctl",
        description="Hosts with systemd, sshd and Docker of their own on this machine, in a network without a way out.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = top.add_subparsers(required=True, metavar="VERB")

    def verb(name: str, act: Act, text: str, operands: str = "", changes: bool = False) -> None:
        added = verbs.add_parser(name, help=text, description=text)
        if operands == "COMMAND":
            if name == "run":
                added.add_argument("--alone", action="store_true", help="refuse to share the lab with another command")
            added.add_argument("operands", nargs=argparse.REMAINDER, metavar=operands)
        elif operands:
            added.add_argument("operands", nargs=operands[-1], metavar="HOST")
        added.set_defaults(act=act, changes=changes)

    verb("image", make_image, "make the root file system and the engine images, where not up to date", changes=True)
    verb("up", up, f"create hosts and switch on all (without any: {' '.join(DEFAULT_HOSTS)})", "HOST*", changes=True)
    verb("down", down, "remove hosts (default: all, and the network with them)", "HOST*", changes=True)
    verb("status", status, "show the hosts")
    verb("off", off, "cut the power", "HOST+", changes=True)
    verb("on", on, "switch on again", "HOST+", changes=True)
    verb("pause", pause, "freeze: connections stay, nothing answers", "HOST+", changes=True)
    verb("resume", resume, "go on after pause", "HOST+", changes=True)
    verb("cut", cut, "pull a host's cable, or drop what two hosts send each other", "HOST+", changes=True)
    verb("mend", mend, "undo cut", "HOST+", changes=True)
    verb("run", run_command, "run a command in the controller's namespace, set up for Ansible", "COMMAND")
    verb("exec", execute, "run a command on a host, without ssh: exec HOST COMMAND ...", "COMMAND")
    verb("ssh-config", ssh_config, "print where the ssh configuration is: ssh -F $(labctl ssh-config) ops@p1")
    return top


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One change at a time, of whatever lab: they share caches."""
    DIR.mkdir(parents=True, exist_ok=True)
    with open(DIR / "lock", "w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_machine() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab needs root: it makes network namespaces, mounts and device nodes")
    missing = [package for command, package in NEEDED.items() if shutil.which(command) is None]
    if missing:
        raise LabError(f"missing: apt-get install --no-install-recommends {' '.join(missing)}")


def make_image(_: argparse.Namespace) -> None:
    for archive in image.archives(rootfs.base()):
        print(archive)


def up(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    there = hosts.up(arguments.operands or ([] if hosts.load() else DEFAULT_HOSTS))
    print(f"{len(there)} hosts up after {time.monotonic() - began:.1f} s: {', '.join(host.name for host in there)}")


def down(arguments: argparse.Namespace) -> None:
    hosts.remove(hosts.named(arguments.operands or hosts.load()))


def status(_: argparse.Namespace) -> None:
    for host in hosts.load().values():
        print(f"{host.name:<10} {host.address:<14} {host.chips:>2} chips  {hosts.state(host)}")


def off(arguments: argparse.Namespace) -> None:
    hosts.power_off(hosts.named(arguments.operands))


def on(arguments: argparse.Namespace) -> None:
    hosts.power_on(hosts.named(arguments.operands))


def pause(arguments: argparse.Namespace) -> None:
    for host in hosts.require(hosts.named(arguments.operands), "running", "paused")["running"]:
        hosts.podman("pause", host.container)


def resume(arguments: argparse.Namespace) -> None:
    for host in hosts.require(hosts.named(arguments.operands), "running", "paused")["paused"]:
        hosts.podman("unpause", host.container)


def cut(arguments: argparse.Namespace) -> None:
    _cable(arguments.operands, connected=False)


def mend(arguments: argparse.Namespace) -> None:
    _cable(arguments.operands, connected=True)


def _cable(names: list[str], connected: bool) -> None:
    if len(names) > 2 or len(set(names)) < len(names):
        raise LabError("cut and mend take one host, or two: the ends of a path")
    ends = hosts.named(names)
    if len(ends) == 1:
        hosts.require(ends, "running", "paused")
        network.plug(ends[0].index, up=connected)
        return
    hosts.require(ends, "running")  # iptables runs on the hosts
    for here, there in (ends, reversed(ends)):
        rule = ("INPUT", "--source", there.address, "--jump", "DROP")
        iptables = ("exec", here.container, "iptables", "--wait")
        # "-A INPUT -s 198.18.0.12/32 -j DROP"
        dropped = f" -s {there.address}/32 -j DROP" in hosts.podman(*iptables, "--list-rules", "INPUT")
        if dropped == connected:
            hosts.podman(*iptables, "--delete" if connected else "--append", *rule)


def run_command(arguments: argparse.Namespace) -> int:
    """An interrupted command takes the hosts with it that it has made. Hosts from before it stay."""
    words = arguments.operands[1:] if arguments.operands[:1] == ["--"] else arguments.operands
    if not words:
        raise LabError("run takes a command")
    inside = ["nsenter", f"--net={network.NAMESPACES / NAME}", "--", *words]
    environment = {**os.environ, **network.ansible_environment()}
    if network.inside_controller():  # a command of a command: the outer one answers for both
        os.execvpe(inside[0], inside, environment)
    # Where there are no hosts yet, two commands would make, use and remove the same ones.
    with command.claimed(words, alone=arguments.alone or not hosts.load()) as claim:
        with locked():
            network.ensure_controller()
            before = hosts.load()
        with command.supervised(inside, environment) as (code, interruption):
            if interruption:
                print(f"labctl: {interruption.name}: the command has ended", file=sys.stderr)
                with locked():
                    hosts.remove([host for name, host in hosts.load().items() if name not in before])
            elif not hosts.load() and command.claim(claim, alone=True):
                network.remove_controller()
    return 128 + interruption if interruption else code


def execute(arguments: argparse.Namespace) -> None:
    if len(arguments.operands) < 2:
        raise LabError("exec takes a host and a command")
    (host,) = hosts.named(arguments.operands[:1])
    os.execvp("podman", [*hosts.podman_command(), "exec", host.container, *arguments.operands[1:]])


def ssh_config(_: argparse.Namespace) -> None:
    if not network.SSH_CONFIG.exists():
        raise LabError(f"no hosts in {DIR}: labctl up")
    print(network.SSH_CONFIG)
