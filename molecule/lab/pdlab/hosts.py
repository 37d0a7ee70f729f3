# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The hosts' disks and power.

A host's disk is an overlay over the shared root file system, kept in a folder of the lab. Its power is a container over that
folder: a new container on the old disk is what a power cycle is.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from pdlab import driver, image, network, rootfs
from pdlab.place import DIR, LAB, STATE, LabError, npus, run, write

FIRST_INDEX, LAST_INDEX = 11, 249
INVENTORY = STATE / "hosts.json"
# Several systemds on one kernel need more than the usual 128.
INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
INOTIFY_INSTANCES = 1024
# Each host's chips as its simulated tools see them. All hosts see all of it: a ping looks at its target.
NPUS, NPUS_THERE = STATE / "npu", "opt/pd_rehearsal/npu_fleet"


@dataclasses.dataclass(frozen=True)
class Host:
    name: str
    index: int  # last byte of its address
    chips: int
    bare: bool  # without python3-requests
    layers: str  # overlay's lower folders

    @property
    def address(self) -> str:
        return f"{network.NET}.{self.index}"

    @property
    def folder(self) -> Path:
        return STATE / "hosts" / self.name

    @property
    def container(self) -> str:
        return network.namespace(self.name)


def podman(*arguments: str | Path, check: bool = True) -> str:
    return run(*podman_command(), *arguments, check=check)


def podman_command() -> list[str]:
    """An engine of the lab's own. runc: crun refuses the mixed cgroup layout of machines whose first process is not systemd."""
    storage = ("--root", f"{STATE}/podman/root", "--runroot", f"{STATE}/podman/run", "--events-backend", "none")
    return ["podman", *storage, "--runtime", str(LAB / "host/oci_clamp.py"), "--cgroup-manager", "cgroupfs"]


# What there is -------------------------------------------------------------------------------------------------------


def load() -> dict[str, Host]:
    if not INVENTORY.exists():
        return {}
    return {row["name"]: Host(**row) for row in json.loads(INVENTORY.read_text(encoding="utf-8"))}


def save(hosts: dict[str, Host]) -> None:
    write(INVENTORY, json.dumps([dataclasses.asdict(host) for host in hosts.values()], indent=1) + "\n")


def named(names: Iterable[str]) -> list[Host]:
    hosts = load()
    unknown = [name for name in names if name not in hosts]
    if unknown:
        raise LabError(f"no such host: {', '.join(unknown)} (there are: {', '.join(hosts) or 'none'})")
    return [hosts[name] for name in dict.fromkeys(names)]


def require(hosts: Iterable[Host], *states: str) -> dict[str, list[Host]]:
    """The hosts by their states. Raises LabError where a host is in none of these."""
    found: dict[str, list[Host]] = {name: [] for name in states}
    problems = []
    for host in hosts:
        now = state(host)
        if now in found:
            found[now].append(host)
        else:
            remedy = "on" if now == "off" else "resume"
            problems.append(f"{host.name} is {now}; first: labctl {remedy} {host.name}")
    if problems:
        raise LabError("\n".join(problems))
    return found


def parse(spec: str) -> tuple[str, int, bool]:
    """``NAME[:CHIPS[:bare]]``."""
    name, *rest = spec.split(":")
    chips, options = (rest or ["16"])[0], rest[1:]
    if not name.isalnum() or not chips.isdigit() or options not in ([], ["bare"]):
        raise LabError(f"{spec!r} is no host: NAME[:CHIPS[:bare]], such as p1, h1:8 or d1:16:bare")
    return name, int(chips), bool(options)


def state(host: Host) -> str:
    """``running``, ``paused`` or ``off``. What podman noted is not enough: it misses what was killed with its monitor."""
    noted = podman("inspect", "--format", "{{.State.Status}} {{.State.Pid}}", host.container, check=False)
    match = re.fullmatch(r"(running|paused) (\d+)", noted.strip())
    return match[1] if match and _lives(match[2]) else "off"


def mounts(below: Path) -> list[Path]:
    """Mount points in a folder, in the order of mounting."""
    lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    # Blanks and the like are octal there.
    points = (re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), line.split()[1]) for line in lines)
    return [Path(point) for point in points if Path(point).is_relative_to(below)]


def _lives(pid: str) -> bool:
    try:
        return Path("/proc", pid, "cmdline").read_bytes() != b""  # empty: ended, and nobody has asked for its exit code
    except OSError:
        return False


# Coming and going ----------------------------------------------------------------------------------------------------


def up(specs: list[str]) -> list[Host]:
    """Create the hosts that are missing and switch on whatever is off."""
    if int(INOTIFY.read_text(encoding="ascii")) < INOTIFY_INSTANCES:
        INOTIFY.write_text(str(INOTIFY_INSTANCES), encoding="ascii")
    root = rootfs.base()
    image.archives(root)
    layers = f"{driver.layer()}:{root}"
    hosts = load()
    for name, chips, bare in map(parse, specs):
        if name not in hosts:
            taken = {host.index for host in hosts.values()}
            index = next(i for i in range(FIRST_INDEX, LAST_INDEX) if i not in taken)
            hosts[name] = Host(name, index, chips, bare, layers)
    save(hosts)
    network.ensure_key()
    network.ensure_controller()
    everyone = list(hosts.values())
    power_on(everyone)
    keys = {host.name: (host.address, host.folder / "upper/etc/ssh/ssh_host_ed25519_key.pub") for host in everyone}
    network.write_ssh_files(keys)
    return everyone


def power_on(hosts: list[Host]) -> None:
    """Boot and wait for systemd, four at a time."""
    names = "".join(f"{host.address} {host.name}\n" for host in load().values())
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        problems = [problem for problem in pool.map(lambda host: _boot(host, names), hosts) if problem]
    if problems:
        raise LabError("\n".join(problems))


def power_off(hosts: list[Host]) -> None:
    """As when the plug is pulled: nobody is told, and nobody answers."""
    for host in hosts:
        network.plug(host.index, up=False)
        podman("kill", "--signal", "KILL", host.container, check=False)


def remove(hosts: list[Host]) -> None:
    rest = load()
    for host in hosts:
        _discard(host)
        if (host.folder / "root").is_mount():
            run("umount", host.folder / "root")
        shutil.rmtree(host.folder, ignore_errors=True)
        npus.forget(NPUS / host.name, NPUS, host.index)
        network.remove_host(host.name, host.index)
        del rest[host.name]
    save(rest)
    if rest:
        return
    if not network.inside_controller():
        network.remove_controller()
    for point in reversed(mounts(STATE)):  # podman has some of its own, and forgets them when killed
        run("umount", point, check=False)
    shutil.rmtree(STATE, ignore_errors=True)


def _boot(host: Host, names: str) -> str | None:
    now = state(host)
    if now == "paused":
        return f"{host.name} is paused; first: labctl resume {host.name}"
    is_off = now == "off"
    if is_off:  # else its cable may be out for a purpose
        network.ensure_host(host.name, host.index)
        network.plug(host.index, up=True)
    root = _mount(host)
    write(root / "etc/hosts", f"127.0.0.1 localhost\n{names}")
    if is_off:
        _discard(host)
        podman(
            *("run", "--detach", "--name", host.container, "--hostname", host.name, "--privileged", "--pids-limit=-1"),
            # Without podman's own help for systemd: on mixed cgroups it binds the machine's hierarchy into every host.
            *("--systemd=false", "--cgroupns=private", "--env=container=podman"),
            *("--tmpfs=/run:rw,mode=755,size=256m", "--tmpfs=/run/lock:rw,size=5m", "--tmpfs=/tmp:rw,mode=1777"),
            *("--network", f"ns:{network.NAMESPACES / host.container}", "--no-hosts", "--dns=none", "--shm-size=1g"),
            # A host that reboots ends its first process.
            *("--restart=always", "--log-driver=none", "--volume", f"{DIR / 'images'}:/srv/images:ro"),
            *("--volume", f"{NPUS}:/{NPUS_THERE}"),
            # On an overlay of its own Docker falls back to copying whole images.
            *("--volume", f"{host.folder}/docker:/var/lib/docker", "--rootfs", root, "/sbin/init"),
        )
    # To wait, systemctl needs the bus as well, which comes up a moment after systemd itself.
    sockets = "[ -S /run/systemd/private ] && [ -S /run/dbus/system_bus_socket ]"
    booted = f"until {sockets}; do sleep 0.1; done; systemctl is-system-running --wait"
    answer = podman("exec", host.container, "timeout", "60", "sh", "-c", booted, check=False).strip()
    return None if answer == "running" else f"{host.name}: systemd says {answer!r}: labctl exec {host.name} systemctl"


def _discard(host: Host) -> None:
    words = ("rm", "--force", "--ignore", "--time", "0", host.container)
    try:
        podman(*words)
    except LabError:
        podman(*words)  # killed with its monitor: podman has noticed only now


def _mount(host: Host) -> Path:
    """Where the host's disk is mounted. A disk that is not finished has another name, and is made anew."""
    upper, root = host.folder / "upper", host.folder / "root"
    if not upper.exists():
        part = host.folder / "upper.part"
        if root.is_mount():
            run("umount", root)
        shutil.rmtree(host.folder, ignore_errors=True)
        for folder in (root, host.folder / "work", host.folder / "docker"):
            folder.mkdir(parents=True, exist_ok=True)
        _personalise(host, part)
        if host.bare:
            _overlay(host, part)
            run("chroot", root, "dpkg", "--remove", "python3-requests")
            run("umount", root)
        part.rename(upper)
    if not root.is_mount():
        _overlay(host, upper)
    return root


def _overlay(host: Host, upper: Path) -> None:
    options = f"lowerdir={host.layers},upperdir={upper},workdir={host.folder / 'work'}"
    run("mount", "-t", "overlay", host.container, "-o", options, host.folder / "root")


def _personalise(host: Host, upper: Path) -> None:
    """What a host has of its own: name, keys, chips and their addresses."""
    (upper / "etc/ssh").mkdir(parents=True)
    run(*("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", host.name, "-f", upper / "etc/ssh/ssh_host_ed25519_key"))
    write(upper / "etc/hostname", f"{host.name}\n")
    write(upper / "etc/machine-id", f"{uuid.uuid4().hex}\n", 0o444)
    write(upper / "etc/lab/chips", f"{host.chips}\n")
    generation = "a3" if host.chips > 8 else "a2"
    write(upper / "etc/hccn.conf", npus.hccn_conf(host.index, generation, host.chips))
    npus.build(NPUS / host.name, NPUS, host.index, generation, host.chips)
    own_npus(host.name, upper)
    for number, home in enumerate(("root", *(f"home/{name}" for name, _ in rootfs.USERS))):
        user = 999 + number if number else 0  # Debian's first users are 1000 and on
        write(upper / home / ".ssh/authorized_keys", network.KEY.with_suffix(".pub").read_text(encoding="ascii"), 0o600)
        for path in (upper / home, upper / home / ".ssh"):
            path.chmod(0o700)
        for path in (upper / home, upper / home / ".ssh", upper / home / ".ssh/authorized_keys"):
            os.chown(path, user, user)


def own_npus(name: str, upper: Path) -> None:
    """Where the host's tools look for its state: in the folder of all hosts' states, which is mounted when it boots."""
    (upper / NPUS_THERE).mkdir(parents=True, exist_ok=True)
    (upper / npus.DIRECTORY).symlink_to(f"{Path(NPUS_THERE).name}/{name}")
