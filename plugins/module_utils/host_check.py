# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What a host must have before anything is started on it: devices, paths, commands, free ports.

Every check returns all that is wrong, never only the first thing, and none changes anything.
"""

from __future__ import annotations

import bisect
import dataclasses
import os
import stat
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import launcher, port_probe, procfs, sites, units

if t.TYPE_CHECKING:
    # Its HTTP client is a tenth of the start of modules that need it for no more than a name, such as npu_facts.
    from ansible_collections.ascend.pd_serving.plugins.module_utils.docker_socket import Container

CLUSTER_LABEL = "pd_serving.cluster"
"""Label of every container that this product made, with the cluster's name. What lacks it is somebody else's."""

Finding = t.Dict[str, t.Any]


def finding(check: str, variable: str, value: t.Any, message: str, fix: str) -> Finding:
    """One thing that is wrong on this host, in the words of the plan's findings."""
    return {
        "check": check,
        "severity": "error",
        "variable": variable,
        "value": value,
        "message": message,
        "fix": fix,
    }


# ---------------------------------------------------------------------------------------------------------------------
# Devices, paths, commands
# ---------------------------------------------------------------------------------------------------------------------


def check_devices(root: str, chips: t.Iterable[int], nodes: t.Iterable[str]) -> list[Finding]:
    """Device nodes. Which ones there must be depends on the hardware: a list of another generation breaks (DEV-07)."""
    found = []
    for chip in chips:
        path = units.under(root, f"/dev/davinci{chip}")
        trouble = _device_trouble(path)
        if trouble:
            message = f"chip {chip} cannot be used: {path} {trouble}"
            fix = "see npu-smi info -m for the chips of this host; leave this one out of pd_chips, or repair it"
            found.append(finding("chip", "pd_chips", chip, message, fix))
    for node in nodes:
        path = units.under(root, f"/dev/{node}")
        trouble = _device_trouble(path)
        if trouble:
            fix = "install or repair the Ascend driver, and see that pd_hardware names the generation of this host"
            found.append(finding("device", "pd_hardware", node, f"{path} {trouble}", fix))
    return found


def _device_trouble(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return "does not exist"
    # A rehearsal has plain files here. A folder is what docker leaves behind where a node was missing.
    return "is a folder, not a device node" if stat.S_ISDIR(mode) else None


def check_paths(root: str, wanted: t.Iterable[t.Mapping[str, t.Any]]) -> list[Finding]:
    """Files and folders that will be mounted or read."""
    found = []
    for entry in wanted:
        trouble = _path_trouble(units.under(root, sites.source_on(root, entry["path"])), entry["type"])
        if trouble:
            other = f", and {sites.NPU_SMI_ELSEWHERE} neither" if entry["path"] == sites.NPU_SMI else ""
            message = f"{entry['path']} {trouble}{other}" + (f"; needed for {entry['why']}" if entry["why"] else "")
            fix = f"put it there, or set {entry['variable']}" if entry["variable"] else "put it there"
            found.append(finding("path", entry["variable"], entry["path"], message, fix))
    return found


def _path_trouble(path: str, kind: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except PermissionError:
        return "cannot be looked at by this user"
    except OSError:
        return "is a link to nothing" if os.path.islink(path) else "does not exist"
    if kind == "file" and stat.S_ISDIR(mode):
        hint = "" if _entries(path) else " (an empty one: docker makes such a folder where a mounted file was missing)"
        return f"is a folder, not a file{hint}"
    if kind == "directory" and not stat.S_ISDIR(mode):
        return "is no folder"
    return None


def _entries(path: str) -> list[str]:
    try:
        return os.listdir(path)
    except OSError:
        return ["?"]


def check_executables(
    root: str, wanted: t.Iterable[t.Mapping[str, t.Any]], environ: t.Mapping[str, str]
) -> list[Finding]:
    """Commands, sought as the processes will be: a name in PATH, a path as it is."""
    found = []
    path = environ.get("PATH")
    for entry in wanted:
        name = entry["name"]
        command = units.under(root, name) if name.startswith("/") else name
        if launcher.find_command(command, path, "/") is None:
            where = "" if "/" in name else f" in PATH={path}"
            message = f"{name} is no command{where}" + (f"; needed for {entry['why']}" if entry["why"] else "")
            fix = f"install it, or correct {entry['variable']}" if entry["variable"] else "install it"
            found.append(finding("executable", entry["variable"], name, message, fix))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Ports
# ---------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PortRange:
    """Ports that one owner takes, on one address or ("", "0.0.0.0", "::") on all."""

    first: int
    last: int
    owner: str
    variable: str
    address: str

    @property
    def everywhere(self) -> bool:
        """Whether every address is taken."""
        return self.address in ("", "0.0.0.0", "::")

    def clashes(self, listener: procfs.Listener) -> bool:
        """Whether this range and a listening socket cannot be on one host together."""
        if not self.first <= listener.port <= self.last:
            return False
        return self.everywhere or listener.wildcard or listener.address == self.address


def build_range(raw: t.Mapping[str, t.Any]) -> PortRange:
    """One entry of the option ports."""
    address = procfs.plain_address(raw["address"] or "")
    return PortRange(raw["first"], raw["last"], raw["owner"] or "", raw["variable"] or "", address)


class PortIndex:
    """Finds the ranges that hold a port. Ranges are many and large, listeners are few: one pass over these."""

    def __init__(self, ranges: t.Iterable[PortRange]) -> None:
        self._ranges = sorted(ranges, key=lambda each: each.first)
        self._firsts = [each.first for each in self._ranges]
        # The furthest port that any range up to here reaches: where it ends before a port, none further left has it.
        self._reach: list[int] = []
        for each in self._ranges:
            self._reach.append(max(each.last, self._reach[-1] if self._reach else 0))

    def holding(self, listener: procfs.Listener) -> list[PortRange]:
        """The ranges that clash with this listener."""
        found = []
        position = bisect.bisect_right(self._firsts, listener.port) - 1
        while position >= 0 and self._reach[position] >= listener.port:
            if self._ranges[position].clashes(listener):
                found.append(self._ranges[position])
            position -= 1
        return found[::-1]


def taken_ports(
    ranges: t.Iterable[PortRange], listeners: t.Iterable[procfs.Listener]
) -> list[tuple[PortRange, procfs.Listener]]:
    """Every clash of a wanted range with a socket that listens now."""
    index = PortIndex(ranges)
    return [(wanted, listener) for listener in listeners for wanted in index.holding(listener)]


def unit_of(
    pid: int,
    stats: t.Mapping[int, launcher.Stat],
    ours: t.Mapping[tuple[int, int], str],
    inner_pid: t.Callable[[int], int],
) -> str | None:
    """The unit that a process belongs to, or descends from: by the pid it sees itself and its start time.

    That pair holds in a container too, where the launcher has written down other pids than the host's.
    """
    seen: set[int] = set()
    while pid in stats and pid not in seen:
        seen.add(pid)
        stat_ = stats[pid]
        unit = ours.get((inner_pid(pid), stat_.start))
        if unit is None:
            unit = ours.get((inner_pid(stat_.session), _start(stats, stat_.session)))
        if unit is not None:
            return unit
        pid = stat_.parent
    return None


def _start(stats: t.Mapping[int, launcher.Stat], pid: int) -> int:
    return stats[pid].start if pid in stats else -1


def is_own(container: Container, cluster: str) -> bool:
    """Whether a container was made for this cluster."""
    return container.labels.get(CLUSTER_LABEL) == cluster


def container_of(pid: int, containers: t.Iterable[Container]) -> Container | None:
    """The container that a process is in, if it is one of these. Its control groups carry the container's id.

    This holds for processes that somebody started in the container by hand, too, which descend from none of its own.
    """
    ids = procfs.container_ids(pid)
    return next((one for one in containers if one.id in ids), None)


def own_processes(site: units.Site) -> dict[tuple[int, int], str]:
    """(pid, start time) of every launcher of this cluster that lives on this host, and of what it supervises: its unit.

    That a launcher lives is told by its lock. A boot id is not asked for: a container may be shown another one.
    """
    found: dict[tuple[int, int], str] = {}
    for name in site.found():
        observed = units.observe(site, name)
        if observed.held and observed.state is not None:
            for process in (observed.state, *observed.state["processes"]):
                found[process["pid"], process["start_ticks"]] = name
    return found


def check_runtime(site: units.Site, engine: str) -> list[Finding]:
    """Units that run in containers while none are planned, or outside of one: no verb ends the one as if it were the other."""
    running = [one for one in map(lambda name: units.observe(site, name), site.found()) if one.held and one.state]
    contained = [one.name for one in running if units.runs_elsewhere(one)]
    others = [one.name for one in running if one.name not in contained]
    if engine == "docker":
        wrong, found, planned, was = others, "as processes of the host", "docker", "process"
    else:
        wrong, found, planned, was = contained, "in containers", "process", "docker"
    if not wrong:
        return []
    message = f"{', '.join(wrong)} of cluster {site.cluster} run {found}, but pd_runtime is {planned}"
    fix = f"stop the cluster as it runs (stop.yml with -e pd_runtime={was}), then run this again"
    return [finding("runtime", "pd_runtime", planned, message, fix)]


def left_behind(site: units.Site) -> dict[int, str]:
    """Processes that a launcher of this cluster has left behind when it was killed, with the unit's name."""
    found: dict[int, str] = {}
    for name in site.found():
        observed = units.observe(site, name)
        if not observed.held:
            found.update((stat_.pid, name) for stat_ in units.living_members(observed.state).own)
    return found


def check_ports(
    site: units.Site,
    ranges: t.Iterable[PortRange],
    containers: t.Sequence[Container] = (),
    planned: t.Collection[str] = (),
) -> list[Finding]:
    """Ports that something else listens on than this cluster's units.

    *planned*: the units that are to be on this host, where that is known; none but these gives its ports back.
    """
    clashes = taken_ports(ranges, procfs.listeners())
    if not clashes:
        return []
    owners = procfs.socket_owners({clash[1].inode for clash in clashes})
    stats = launcher.all_stats()
    ours = own_processes(site)
    leftovers = left_behind(site)
    probed = port_probe.listener_pids(site.cluster, site.root)
    found = []
    removed: dict[str, list[tuple[PortRange, procfs.Listener]]] = {}
    for wanted, listener in clashes:
        pid = owners.get(listener.inode)
        container = None if pid is None else container_of(pid, containers)
        unit = None if pid is None else unit_of(pid, stats, ours, procfs.innermost_pid)
        if container is not None and is_own(container, site.cluster):
            unit = container.name
        if pid in leftovers:
            found.append(_leftover_finding(wanted, listener, pid, leftovers[pid]))
        elif pid in probed:
            continue
        elif unit is None:
            found.append(_port_finding(wanted, listener, pid, container))
        elif planned and unit not in planned:
            removed.setdefault(unit, []).append((wanted, listener))
    return found + [_removed_finding(unit, held) for unit, held in sorted(removed.items())]


def _taken(wanted: PortRange, listener: procfs.Listener) -> str:
    ports = str(wanted.first) if wanted.first == wanted.last else f"{wanted.first}-{wanted.last}"
    owner = f" of {wanted.owner}" if wanted.owner else ""
    return f"port {ports}{owner}: {listener} is taken by"


def _port_finding(
    wanted: PortRange, listener: procfs.Listener, pid: int | None, container: Container | None
) -> Finding:
    who = f"pid {pid} ({procfs.command_line(pid)})" if pid is not None else "a process that this user cannot see"
    fix = "end that process"
    if container is not None:
        who += f" in container {container.name}"
        fix = f"stop that container (docker stop {container.name})"
    fix += f", or set {wanted.variable} to other ports" if wanted.variable else ""
    return finding("port", wanted.variable, listener.port, f"{_taken(wanted, listener)} {who}", fix)


def _removed_finding(unit: str, held: t.Sequence[tuple[PortRange, procfs.Listener]]) -> Finding:
    ports: dict[str, list[int]] = {}
    for wanted, listener in sorted(held, key=lambda each: each[1].port):
        ports.setdefault(wanted.owner, []).append(listener.port)
    taken = ", ".join(f"{owner}: {', '.join(map(str, numbers))}" for owner, numbers in ports.items())
    message = f"{unit}, which is of this cluster and no more planned for this host, has ports of others ({taken})"
    fix = (
        "end it: stop.yml with --limit to this host ends all of the cluster here; with containers `docker rm -f "
        f"{unit}` ends this one alone"
    )
    return finding("port", held[0][0].variable, held[0][1].port, message, fix)


def _leftover_finding(wanted: PortRange, listener: procfs.Listener, pid: int, unit: str) -> Finding:
    """Only a warning: the next start of the unit ends such processes before anything else."""
    message = f"{_taken(wanted, listener)} pid {pid}, which an earlier run of {unit} has left behind"
    fix = "nothing: a start ends it first; the stop playbook does so too"
    return {**finding("port", wanted.variable, listener.port, message, fix), "severity": "warning"}
