# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The root file system that all hosts share, read-only: the machine's own Debian or Ubuntu release."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

from pdlab.place import DIR, LabError, key, run, write

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "procps", "iproute2", "iputils-ping"),
    *("docker.io", "iptables", "ca-certificates", "python3", "python3-apt"),
    "python3-requests",  # community.docker's modules need it on the host; hosts without it: `up NAME:CHIPS:bare`
    "libjemalloc2",  # for the engine image
)
# Where `apt-get install python3-requests` finds it on a bare host.
MIRROR = "srv/debian"

# They make no sense in a container, or touch the machine underneath.
MASKED_UNITS = (
    *("console-getty.service", "getty.target", "systemd-udevd.service", "systemd-modules-load.service"),
    *("dev-hugepages.mount", "proc-sys-fs-binfmt_misc.automount", "sys-fs-fuse-connections.mount"),
    *("sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount"),
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
)
SSHD = """\
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
UsePAM no
MaxStartups 100:30:200
"""
# Name, sudo rule. The password of both is "lab"; they log in with the lab's key.
USERS = (("ops", "NOPASSWD: ALL"), ("opspw", "ALL"))


def base() -> Path:
    """Made once per machine and content of this file, in about a minute."""
    release = platform.freedesktop_os_release()
    suite = release["VERSION_CODENAME"]
    target = DIR / f"rootfs-{key(Path(__file__), suite, platform.machine())}"
    if not target.exists():
        part = target.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.parent.mkdir(parents=True, exist_ok=True)
        print(f"labctl: making the hosts' root file system ({release['ID']} {suite}), about a minute", flush=True)
        _bootstrap(suite, part)
        _adapt(part)
        part.rename(target)
    return target


def _bootstrap(suite: str, target: Path) -> None:
    """The distribution, from the very package sources that this machine uses."""
    folder = Path("/etc/apt")
    candidates = [folder / "sources.list.d" / f"{name}.sources" for name in ("debian", "ubuntu")]
    source = next((path for path in [*candidates, folder / "sources.list"] if path.exists()), None)
    if source is None:
        raise LabError("no package sources in /etc/apt: the lab needs a Debian or Ubuntu machine")
    excluded = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "info", "locale", "man")]
    keep_package = (
        f'mkdir -p "$1/{MIRROR}" && cd "$1/{MIRROR}" && '
        'APT_CONFIG="$MMDEBSTRAP_APT_CONFIG" apt-get -o APT::Sandbox::User=root download -qq python3-requests'
    )
    run(
        *("mmdebstrap", "--quiet", "--mode=root", "--variant=apt", f"--include={','.join(PACKAGES)}"),
        *('--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"'),
        *("--dpkgopt=force-unsafe-io", *excluded, f"--customize-hook={keep_package}"),
        *(suite, target, source),
    )


def _adapt(root: Path) -> None:
    for leftover in (*root.glob("etc/ssh/ssh_host_*"), *root.glob("etc/apt/sources.list.d/*")):
        leftover.unlink()
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)
    write(root / "etc/machine-id", "")
    for vendor in root.glob("usr/lib/sysctl.d/*.conf"):  # kernel-wide values; what a role sets must still be applied
        vendor.unlink()
    for unit in MASKED_UNITS:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    write(root / "etc/ssh/sshd_config.d/lab.conf", SSHD)
    for name, rule in USERS:
        run("chroot", root, "useradd", "--create-home", "--shell", "/bin/bash", name)
        run("sh", "-c", f'echo {name}:lab | chroot "$1" chpasswd', "sh", root)
        write(root / f"etc/sudoers.d/{name}", f"{name} ALL=(ALL) {rule}\n", 0o440)
    (root / "usr/sbin/runc").rename(root / "usr/sbin/runc.real")  # a shim goes in its place
    (package,) = (root / MIRROR).glob("*.deb")
    index = run("dpkg-deb", "--field", package)
    size, digest = package.stat().st_size, run("sha256sum", package).split()[0]
    write(root / MIRROR / "Packages", f"{index.strip()}\nFilename: ./{package.name}\nSize: {size}\nSHA256: {digest}\n")
    write(root / "etc/apt/sources.list", f"deb [trusted=yes] file:/{MIRROR} ./\n")
    run("chroot", root, "apt-get", "update", "-qq")
