# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Rehearsal: the same inventory on this machine, every host simulated on a loopback address of its own.

Overrides exactly connection, become, interpreter, ansible_host, pd_node_ip, pd_nic and pd_runtime; everything else is the
production plan. Nothing here opens a connection.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import typing as t

from . import npus
from .inventory import Source
from .slices import HostRoot

SIMULATOR_DIRECTORY = "/opt/pd_rehearsal"
UPSTREAM_VERSION = "0.23.0.post1"
MOONCAKE_VERSION = "0.3.11.post1"
# 127.0.0.0/24 is left alone: upstream's proxies rewrite the text 127.0.0.1.
_FIRST_NET, _NETS, _PER_NET = 16, 224, 250
_PLACES = _NETS * _PER_NET * _PER_NET
# Stands for an endpoint file that the user has written himself.
_ENDPOINT = json.dumps(
    {
        "version": "1.3",
        "net_instance_id": "superpod_0",
        "endpoint_list": [{"protocol": "ub_ctp", "comm_id": "0" * 32, "placement": "device"}],
    }
)
# A user who gives one of these on the command line would win over the override.
OVERRIDDEN = (
    "ansible_connection",
    "ansible_host",
    "ansible_python_interpreter",
    "ansible_become",
    "ansible_ssh_host",
    "ansible_shell_type",
    "ansible_shell_executable",
    "ansible_remote_tmp",
    "ansible_async_dir",
    "pd_node_ip",
    "pd_nic",
    "pd_runtime",
)


class RehearsalError(Exception):
    """A rehearsal that cannot start; the text says what to do."""


def addresses(hosts: t.Sequence[str], state: str) -> dict[str, str]:
    """A loopback address per host, by its name and the state folder.

    A host that is added moves no other, and two rehearsals on one machine do not meet.
    """
    taken: dict[int, str] = {}
    for host in hosts:
        place = _hash(f"{state}\n{host}") % _PLACES
        while place in taken:
            place = (place + 1) % _PLACES
        taken[place] = host
    return {host: _address(place) for place, host in taken.items()}


def _address(place: int) -> str:
    rest, last = divmod(place, _PER_NET)
    net, subnet = divmod(rest, _PER_NET)
    return f"127.{_FIRST_NET + net}.{1 + subnet}.{1 + last}"


def _hash(text: str) -> int:
    return int(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest(), 16)


def rehearse(source: Source, state: str) -> dict[str, t.Any]:
    """The inventory with the plan's overrides; the production one stays beside it, for its own faults count too."""
    hosts: t.Mapping[str, Source] = source["hosts"]
    given = addresses(list(hosts), state)
    # A production address may stand in other variables as well, and must not reach a simulated engine.
    moved = {
        str(values.get("pd_node_ip") or values.get("ansible_host") or host): given[host]
        for host, values in hosts.items()
    }
    return {
        **source,
        "production": source,
        "hosts": {
            host: {
                **_moved(values, moved),
                "ansible_host": given[host],
                "pd_node_ip": given[host],
                "pd_nic": "lo",
                "pd_runtime": "process",
            }
            for host, values in hosts.items()
        },
    }


def _moved(values: Source, moved: t.Mapping[str, str]) -> dict[str, t.Any]:
    """Values of one host or of one entry of pd_instances, with production addresses and cards replaced."""
    out = dict(values)
    if isinstance(out.get("pd_dp_address"), str):
        out["pd_dp_address"] = moved.get(out["pd_dp_address"], out["pd_dp_address"])
    for name in ("pd_engine_env_common", "pd_engine_env", "pd_engine_env_extra"):
        if isinstance(out.get(name), dict):
            out[name] = {key: _moved_variable(key, value, moved) for key, value in out[name].items()}
    entries = out.get("pd_instances")
    if isinstance(entries, dict):
        out["pd_instances"] = {
            name: _moved_entry(entry, moved) if isinstance(entry, dict) else entry for name, entry in entries.items()
        }
    return out


def _moved_entry(entry: Source, moved: t.Mapping[str, str]) -> dict[str, t.Any]:
    """An entry of pd_instances without what is overridden; a group that met at such an address meets at its head."""
    met_there = "pd_node_ip" in entry and entry.get("pd_dp_address") == entry["pd_node_ip"]
    dropped = ("pd_node_ip", "pd_nic", *(("pd_dp_address",) if met_there else ()))
    return {key: value for key, value in _moved(entry, moved).items() if key not in dropped}


def _moved_variable(name: t.Any, value: t.Any, moved: t.Mapping[str, str]) -> t.Any:
    if str(name).endswith("_SOCKET_IFNAME"):
        return "lo"
    return moved.get(value, value) if isinstance(value, str) else value


def _folder(host: str) -> str:
    """The host's own name where it is a plain one. Others could lead elsewhere, and Ansible's shell reads the path."""
    if re.fullmatch(r"\w[\w.-]{0,99}", host):
        return host
    digest = hashlib.sha256(host.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', host)[:40]}-{digest}"


def host_root(state: str, host: str) -> HostRoot:
    """Where a simulated host's paths are, and what its processes need to find the simulators."""
    root = str(pathlib.Path(state) / "hosts" / _folder(host))
    return HostRoot(
        root=root,
        environment={
            "PD_REHEARSAL_ROOT": root,
            "PATH": f"{root}{SIMULATOR_DIRECTORY}/bin:/usr/local/bin:/usr/bin:/bin",
        },
    )


# Simulated machines -------------------------------------------------------------------------------------------------


def build_host(
    slice_: dict[str, t.Any],
    generation: str,
    chips_per_node: int,
    files: pathlib.Path,
    upstream: pathlib.Path,
    python: str,
) -> None:
    """Make one simulated host: chips with addresses, driver files, model, tools, upstream's examples.

    A host is built once; what is taken away later (a chip, a model) stays away, so that faults can be rehearsed.
    """
    root = pathlib.Path(slice_["root"])
    checks = slice_["checks"]
    mooncake = mooncake_directory(upstream)
    told = [checks["paths"], checks["device_nodes"], generation, chips_per_node, python, str(mooncake)]
    wanted = json.dumps(told, sort_keys=True)
    stamp = root / SIMULATOR_DIRECTORY.lstrip("/") / "built.json"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    for chip in range(chips_per_node):
        _touch(root / "dev" / f"davinci{chip}")
    for node in checks["device_nodes"]:
        _touch(root / "dev" / node)
    _npus(root, generation, chips_per_node)
    _tools(root, files, mooncake, python, [entry["path"] for entry in checks["paths"]])
    for entry in checks["paths"]:
        if entry["variable"] == "pd_roce_addresses":
            continue  # an endpoint file of an unknown address is what preflight has to miss
        path = root / entry["path"].strip("/")
        if entry["type"] == "file" and path.name.startswith("ub_endpoint_npu_"):
            _touch(path, _ENDPOINT)
        elif entry["type"] == "file":
            _touch(path, "{}\n" if path.suffix == ".json" else "")
        elif not path.exists():
            path.mkdir(parents=True)
    workspace = root / "vllm-workspace" / "vllm-ascend"
    workspace.mkdir(parents=True, exist_ok=True)
    link = workspace / "examples"
    if link.is_symlink():
        link.unlink()
    link.symlink_to(upstream / "examples")
    stamp.write_text(wanted, encoding="utf-8")


def _touch(path: pathlib.Path, content: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(content, encoding="utf-8")


def _npus(root: pathlib.Path, generation: str, chips: int) -> None:
    """The state of the simulated driver, and the files that say the same on a real host."""
    state = root / npus.DIRECTORY
    fleet = root.parents[1] / "npu_fleet"
    number = npus.number_of(state)
    if number is None:
        try:
            number = npus.claim(fleet, state)
        except ValueError as problem:
            raise RehearsalError(f"a rehearsal has addresses for {npus.MAX_HOSTS} hosts: {problem}") from problem
    npus.build(state, fleet, number, generation, chips)
    files = {**npus.DRIVER_FILES, "etc/hccn.conf": npus.hccn_conf(number, generation, chips)}
    for name, text in files.items():
        path = root / name
        # Hosts of an earlier version of the simulation had these files without content.
        if path.is_file() and not path.stat().st_size:
            path.unlink()
        _touch(path, text)


def _tools(
    root: pathlib.Path, files: pathlib.Path, mooncake: pathlib.Path, python: str, paths: t.Sequence[str]
) -> None:
    """Wrappers named like the real commands. Python is called by its full path: a version manager's shim costs 170 ms."""
    folder = root / SIMULATOR_DIRECTORY.lstrip("/") / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    quoted = {name: shlex.quote(str(files / name)) for name in ("vllm_sim", "standin")}
    interpreter = shlex.quote(python)
    # Compiled once per rehearsal, not beside the sources: 36 engines starting cold cost 4 s of CPU, warm 1 s.
    compiled = shlex.quote(f"pycache_prefix={root.parents[1] / 'pycache'}")
    absent, master = shlex.quote(str(mooncake / "absent")), shlex.quote(str(mooncake / "mooncake/mooncake_master"))
    scripts = {
        "vllm": f'exec {interpreter} -I -S -X {compiled} {quoted["vllm_sim"]} "$@"\n',
        "python3": (
            'case "$1" in /vllm-workspace/*) script="$PD_REHEARSAL_ROOT$1"; shift; set -- "$script" "$@" ;; esac\n'
            f'PYTHONPATH={quoted["standin"]} exec {interpreter} "$@"\n'
        ),
        # The real one. It wants libraries of the driver, which it does not call; where they are not there, stand-ins.
        "mooncake_master": f'LD_LIBRARY_PATH="${{LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}}"{absent} exec {master} "$@"\n',
    }
    for name, body in scripts.items():
        _script(folder / name, body)
    for place in ("/usr/local/bin/npu-smi", "/usr/local/Ascend/driver/tools/hccn_tool"):
        # At their real places, which the inventory may know better, so that a missing tool can be rehearsed.
        name = pathlib.Path(place).name
        places = [path for path in paths if pathlib.Path(path).name == name and ".." not in path] or [place]
        # Read, not started anew: a call is over in milliseconds.
        parts = "".join(f". {shlex.quote(str(files / 'npu_sim' / part))}\n" for part in ("common.sh", name))
        for path in places:
            _script(root / path.strip("/"), f"PD_REHEARSAL_ROOT={shlex.quote(str(root))}\n{parts}")
        link = folder / name
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(root / places[0].strip("/"), folder))


def _script(path: pathlib.Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}", encoding="utf-8")
    path.chmod(0o755)


def warm_up(state: str) -> None:
    """Let one simulator compile what the others will load."""
    if not (pathlib.Path(state) / "pycache").exists():
        wrapper = next((pathlib.Path(state) / "hosts").glob(f"*{SIMULATOR_DIRECTORY}/bin/vllm"), None)
        if wrapper is None:
            return
        try:
            subprocess.run([str(wrapper), "--version"], check=True, stdout=subprocess.DEVNULL, timeout=60)
        except subprocess.SubprocessError as problem:
            raise RehearsalError(f"the simulator does not start: {problem}") from problem


def upstream_directory(prefix: str) -> pathlib.Path:
    """Where set-up puts upstream's example scripts: beside the interpreter, so that each environment has its own."""
    return pathlib.Path(prefix) / "share" / "pd_serving" / "upstream" / UPSTREAM_VERSION


def mooncake_directory(upstream: pathlib.Path) -> pathlib.Path:
    """Where set-up puts Mooncake's master: beside upstream's scripts."""
    return upstream.parent.parent / "mooncake" / MOONCAKE_VERSION


def check_mooncake(mooncake: pathlib.Path, fetch_command: str) -> None:
    if not (mooncake / "SOURCE.json").exists():
        raise RehearsalError(
            f"a rehearsed KV pool has the real mooncake_master, and that of Mooncake {MOONCAKE_VERSION} is not in "
            f"{mooncake}. Fetch it once (needs the Python package index): {fetch_command}"
        )


def check_upstream(upstream: pathlib.Path, fetch_command: str) -> None:
    if not (upstream / "SOURCE.json").exists():
        raise RehearsalError(
            f"upstream's proxy scripts (vllm-ascend {UPSTREAM_VERSION}) are not in {upstream}. Fetch them once (needs the "
            f"Python package index): {fetch_command}"
        )


def default_state(cluster: str, inventories: t.Sequence[str]) -> str:
    """One state folder per cluster name and inventory, below the user's state directory."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    mark = hashlib.sha256("\n".join(os.path.abspath(path) for path in inventories).encode()).hexdigest()[:8]
    return os.path.join(base, "pd_serving", "rehearsal", f"{cluster}-{mark}")
