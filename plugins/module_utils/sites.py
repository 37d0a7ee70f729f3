# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Where a cluster's units live on a host, for modules that need no more of them.

Units, which know what runs there, bring the launcher along. A host gets and compiles all that a module imports, in every
call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import typing as t

SPEC_FILE = "launch.json"
"""The launcher's, which stands alone."""

_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.-]+\Z")


class UnitError(Exception):
    """Something about a unit that the user has to know; the message is one that can be read alone."""


@dataclasses.dataclass(frozen=True)
class Site:
    """The folders of one cluster on this host; *root* is put before every path of the host."""

    cluster: str
    root: str = ""
    base_dir: str = "/opt/pd_serving"
    log_dir: str = "/var/log/pd_serving"

    def __post_init__(self) -> None:
        check_name(self.cluster, "cluster")

    @property
    def folder(self) -> str:
        """The folder of the cluster, with one folder per unit in it."""
        return os.path.join(under(self.root, self.base_dir), self.cluster)

    def unit_dir(self, unit: str) -> str:
        """The folder of one unit."""
        return os.path.join(self.folder, check_name(unit, "unit"))

    def unit_logs(self, unit: str) -> str:
        """The folder with one log per process of a unit."""
        return os.path.join(under(self.root, self.log_dir), self.cluster, check_name(unit, "unit"))

    def found(self) -> list[str]:
        """Names of the units that are on this host, in order."""
        try:
            entries = os.listdir(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted(
            entry
            for entry in entries
            if _NAME.match(entry) and os.path.isfile(os.path.join(self.folder, entry, SPEC_FILE))
        )


SITE_OPTIONS = {
    "cluster": {"type": "str", "required": True},
    "root": {"type": "str", "default": ""},
    "base_dir": {"type": "str", "default": Site.base_dir},
}
"""Options of every module that looks at a cluster's units (documentation fragment ascend.pd_serving.site)."""

LOG_OPTIONS = {"log_dir": {"type": "str", "default": Site.log_dir}}
"""Options of those that look at logs as well (documentation fragment ascend.pd_serving.site.logs)."""


def site_of(params: t.Mapping[str, t.Any]) -> Site:
    """The cluster that a module's parameters are about."""
    return Site(**{name: params[name] for name in (*SITE_OPTIONS, *LOG_OPTIONS) if name in params})


def under(root: str, path: str) -> str:
    """A path of the host as it is reached from here."""
    return root.rstrip("/") + path if root else path


NPU_SMI = "/usr/local/bin/npu-smi"
NPU_SMI_ELSEWHERE = "/usr/local/sbin/npu-smi"


def source_on(root: str, path: str) -> str:
    """What a container mounts where the plan says *path*: drivers put npu-smi into one of two folders.

    In the other there may be a folder of that name, which docker has made for an earlier mount.
    """
    if path == NPU_SMI and not os.path.isfile(under(root, path)) and os.path.isfile(under(root, NPU_SMI_ELSEWHERE)):
        return NPU_SMI_ELSEWHERE
    return path


def check_name(name: str, what: str) -> str:
    """Names become folders, so one that leads elsewhere is refused."""
    if not _NAME.match(name):
        raise UnitError(f"{what} must be made of letters, digits, '_', '.' and '-', not {json.dumps(name)}")
    return name


def make_private_folder(path: str, shared: str) -> None:
    """Make a folder that only its owner may enter; what lies above *shared* is ordinary."""
    os.makedirs(shared, mode=0o755, exist_ok=True)
    place = shared
    for part in os.path.relpath(path, shared).split(os.sep):
        place = os.path.join(place, part)
        with contextlib.suppress(FileExistsError):
            os.mkdir(place, 0o700)


def write_atomically(path: str, data: bytes) -> None:
    """Readers see the old content or the new one, never a half."""
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as stream:
            os.fchmod(stream.fileno(), 0o600)
            stream.write(data)
        os.rename(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def launch_environment(extra: t.Mapping[str, t.Any]) -> dict[str, str]:
    """What a launcher is started with."""
    return {**os.environ, **{name: str(value) for name, value in extra.items()}}
