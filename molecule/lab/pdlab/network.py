# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Namespaces, cables between them, and what ssh needs to know.

The controller's namespace holds a bridge, each host's namespace one end of a cable to it. None has a route to anywhere else:
the hosts' default route ends at the controller, which answers "unreachable" at once, so that a hidden download fails fast.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from pdlab.place import LAB, NAME, STATE, run, write

# RFC 2544's addresses for tests between networks: no site routes them.
NET = "198.18.0"
NAMESPACES = Path("/run/netns")
KEY = STATE / "id_ed25519"
SSH_CONFIG = STATE / "ssh_config"


def namespace(host: str) -> str:
    return f"{NAME}-{host}"


def ip(in_namespace: str, *arguments: str, check: bool = True) -> str:
    return run("ip", "-n", in_namespace, *arguments, check=check)


def exists(name: str) -> bool:
    path = NAMESPACES / name
    if path.exists() and path.stat().st_dev == path.parent.stat().st_dev:
        path.unlink()  # a plain file, left over from before a reboot of the machine
    return path.exists()


def inside_controller() -> bool:
    """Whether this very process runs in the controller's namespace."""
    return exists(NAME) and os.stat("/proc/self/ns/net").st_ino == os.stat(NAMESPACES / NAME).st_ino


def is_whole(name: str) -> bool:
    """Whether the namespace was set up to its end, which is its default route."""
    return exists(name) and "default" in ip(name, "route", "show", "default")


def ensure_controller() -> None:
    if is_whole(NAME):
        return
    remove_controller()  # what an interruption left
    run("ip", "netns", "add", NAME)
    ip(NAME, "link", "set", "lo", "up")
    ip(NAME, "link", "add", "br0", "type", "bridge")
    ip(NAME, "link", "set", "br0", "up")
    ip(NAME, "addr", "add", f"{NET}.1/24", "dev", "br0")
    # Without forwarding the hosts would get no answer at all.
    run("ip", "netns", "exec", NAME, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
    ip(NAME, "route", "add", "unreachable", "default")


def ensure_host(host: str, index: int) -> None:
    """For a host that is off: a namespace that is not whole is made anew."""
    name = namespace(host)
    if is_whole(name):
        return
    remove_host(host, index)
    run("ip", "netns", "add", name)
    ip(name, "link", "set", "lo", "up")
    ip(NAME, "link", "add", f"h{index}", "type", "veth", "peer", "name", "eth0", "netns", name)
    ip(NAME, "link", "set", f"h{index}", "master", "br0", "up")
    ip(name, "addr", "add", f"{NET}.{index}/24", "dev", "eth0")
    ip(name, "link", "set", "eth0", "up")
    ip(name, "route", "add", "default", "via", f"{NET}.1")


def plug(index: int, up: bool) -> None:
    """The host's cable at the switch."""
    ip(NAME, "link", "set", f"h{index}", "up" if up else "down")


def remove_host(host: str, index: int) -> None:
    run("ip", "netns", "del", namespace(host), check=False)
    ip(NAME, "link", "del", f"h{index}", check=False)


def remove_controller() -> None:
    run("ip", "netns", "del", NAME, check=False)


def ensure_key() -> None:
    if not KEY.exists():
        KEY.parent.mkdir(parents=True, exist_ok=True)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", NAME, "-f", KEY)


def write_ssh_files(hosts: Mapping[str, tuple[str, Path]]) -> None:
    """For each host its address and public key. Host keys are really checked, and every connection, to whatever address,
    goes through the controller's namespace: no packet leaves by the machine's own interfaces."""
    known, config = "", ""
    for host, (address, public_key) in hosts.items():
        kind, blob = public_key.read_text(encoding="ascii").split()[:2]
        known += f"{host},{address} {kind} {blob}\n"
        config += f"Host {host}\n  HostName {address}\n"
    relay = shlex.join([sys.executable, "-I", "-S", str(LAB / "relay.py")]).replace("%", "%%")
    config += (
        "Host *\n"
        f"  ProxyCommand nsenter --net={NAMESPACES / NAME} -- {relay} %h %p\n"
        f'  IdentityFile "{KEY}"\n  IdentitiesOnly yes\n'
        f'  UserKnownHostsFile "{STATE}/known_hosts"\n  StrictHostKeyChecking yes\n'
        "  ConnectTimeout 5\n  ServerAliveInterval 5\n  ServerAliveCountMax 2\n  LogLevel ERROR\n"
    )
    write(STATE / "known_hosts", known)
    write(SSH_CONFIG, config)


def ansible_environment() -> dict[str, str]:
    """What makes Ansible use the lab's keys, cables and a place of its own for connections that persist."""
    return {
        "ANSIBLE_SSH_ARGS": f"-F {SSH_CONFIG} -o ControlMaster=auto -o ControlPersist=60s",
        "ANSIBLE_SSH_CONTROL_PATH_DIR": f"{STATE}/cp",
    }
