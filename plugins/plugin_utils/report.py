# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""What people read: the plan as a table, findings, progress and the summary of a run."""

from __future__ import annotations

import dataclasses
import json
import shlex
import time
import typing as t
import urllib.parse

from .fabric import is_a5
from .inventory import count, some
from .model import ROLES, Finding, Placement
from .planner import Plan

MAX_ROWS = 200
_CONNECTOR_PORTS = ("kv", "d2rh_zmq", "d2rh_scheduler_ready")


def table(rows: t.Sequence[t.Sequence[str]]) -> list[str]:
    """Left-aligned columns; the first row is the heading."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def span(numbers: t.Sequence[int]) -> str:
    """0-7 or 0-3,8-11: runs of numbers as people write them."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def plan_lines(plan: Plan) -> list[str]:
    """Heading, one row per placement, the proxy."""
    cluster = plan.cluster
    if cluster is None:
        return ["No plan: the inventory does not tell the hardware."]
    versions = cluster.versions
    per_role = [count(len(cluster.of(role)), f"{role} instance") for role in ROLES]
    inside = ", ".join(
        f"{name} {value or '?'}" for name, value in (("CANN", versions.cann), ("Mooncake", versions.mooncake))
    )
    lines = [
        f"Cluster {cluster.name}: {cluster.hardware.name}{_fabric(plan)}, {cluster.connector}, vLLM-Ascend {versions.vllm_ascend} ({inside})",
        f"{' + '.join(per_role)}{_extent(plan)}",
        "",
    ]
    rows: list[tuple[str, ...]] = [
        ("HOST", "ADDRESS", "INSTANCE", "ROLE", "CHIPS", "RANKS", "TP", "API", "KV LISTENS", "DP RPC")
    ]
    rows += [_row(placement) for placement in plan.placements[:MAX_ROWS]]
    if plan.placements:
        lines += table(rows)
    if len(plan.placements) > MAX_ROWS:
        lines.append(f"... and {len(plan.placements) - MAX_ROWS} more placements (all of them: -e plan_out=FILE)")
    if plan.kv_pool:
        place = f"on {plan.kv_pool['host']}" if plan.kv_pool["started"] else "not started here"
        lines += ["", f"KV pool ({plan.kv_pool['backend']}) {place}, {plan.kv_pool['address'] or 'no address'}"]
        most = max(plan.kv_pool["memory"], key=lambda row: row["bytes"], default=None)
        if most:
            each = " + ".join(f"{size / (1 << 30):g} GB {name}" for name, size in most["per_worker"].items())
            lines.append(
                f"Pinned for it, at most: {most['workers']} workers x ({each}) = {most['bytes'] / (1 << 30):g} GB on {most['host']}"
            )
    if plan.proxy:
        ends = {role: _endpoints(plan, role) for role in ROLES}
        lines += [
            "",
            f"Proxy on {plan.proxy['host']}, http://{plan.proxy['address']}:{plan.proxy['port']} ({plan.proxy['kind']}): "
            + ", ".join(f"{count(number, f'{role} endpoint')}" for role, number in ends.items()),
        ]
    return lines


def _fabric(plan: Plan) -> str:
    cluster = plan.cluster
    return f" ({cluster.fabric})" if cluster is not None and is_a5(cluster) else ""


def _extent(plan: Plan) -> str:
    """On how many hosts the instances are, as far as they could be laid out."""
    assert plan.cluster is not None
    processes = sum(len(placement.processes) for placement in plan.placements)
    laid_out = {placement.instance.name for placement in plan.placements}
    left = [instance.name for instance in plan.cluster.instances if instance.name not in laid_out]
    if not plan.placements:
        return ": none can be laid out, for what the findings say"
    text = f" on {count(len({placement.host for placement in plan.placements}), 'host')}, {processes} vllm processes"
    return text if not left else f"{text}; not laid out, for what the findings say: {some(left)}"


def _endpoints(plan: Plan, role: str) -> int:
    return sum(
        process.api_port is not None
        for placement in plan.placements
        if placement.instance.role == role
        for process in placement.processes
    )


def _row(placement: Placement) -> tuple[str, ...]:
    ports = {item.owner: str(item) for item in placement.ports}
    ranks = range(placement.dp_rank_start, placement.dp_rank_start + placement.dp_size_local)
    return (
        placement.host,
        placement.member.node_ip,
        placement.instance.name,
        placement.instance.role,
        span(placement.used_chips),
        span(list(ranks)),
        str(placement.instance.tp_size),
        ports.get("api", "headless"),
        ",".join(ports[owner] for owner in _CONNECTOR_PORTS if owner in ports) or "-",
        ports.get("dp_rpc", "-"),
    )


def finding_lines(findings: t.Sequence[Finding]) -> list[str]:
    """Each finding as what, where, value, fix."""
    lines = []
    for finding in findings:
        where = " ".join(part for part in (finding.host, finding.variable) if part)
        value = "" if finding.value is None else f" = {_short(finding.value)}"
        lines.append(f"{finding.severity.upper()} [{finding.rule}] {where}{value}")
        lines.append(f"    {finding.message}")
        lines.append(f"    Fix: {finding.fix}")
    return lines


def _short(value: t.Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def verdict(findings: t.Sequence[Finding]) -> str:
    errors = sum(finding.severity == "error" for finding in findings)
    warnings = len(findings) - errors
    if not findings:
        return "No findings."
    return f"{count(errors, 'error')}, {count(warnings, 'warning')}." + (" Details: docs/rules.md" if findings else "")


# Progress of the gate -----------------------------------------------------------------------------------------------


def clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def progress_line(instance: str, ready: int, total: int, elapsed: float, last: str) -> str:
    tail = f"  {last[:110]}" if last else ""
    return f"[{clock(elapsed)}] {instance}: {ready}/{total} ranks ready{tail}"


# Status -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class UnitState:
    """One unit of one host, as found. problems name what should be up and is not, notes what is merely different."""

    row: tuple[str, ...]
    deployed: bool
    stopped: bool
    problems: list[str]
    notes: list[str]


def unit_state(host: str, name: str, instance: str, found: dict[str, t.Any], runtime: str) -> UnitState:
    """*found*: what module launch_info tells of the unit; *runtime*: the planned one."""
    processes = found["processes"]
    ready = sum(process["health"] == "ready" for process in processes)
    end = found.get("end") or {}
    # A launcher ends with 0 only when it was told to.
    stopped = found["deployed"] and not found["running"] and end.get("code") == 0
    problems, notes = [], []
    if not found["deployed"]:
        state = "not deployed"
    elif found["running"]:
        state = "up" if ready == len(processes) else "not all ready"
        problems = _not_ready(host, instance, processes)
        if found["contained"] != (runtime == "docker"):
            was = "docker" if found["contained"] else "process"
            notes.append(
                f"{instance} on {host} runs with runtime {was}, but pd_runtime is {runtime}: stop it as it runs "
                f"(stop.yml with -e pd_runtime={was}), then run site.yml"
            )
        elif not found["current"]:
            notes.append(
                f"{instance} on {host} runs another configuration than the inventory has; site.yml would restart it"
            )
    else:
        state = "stopped" if stopped else "ended"
        problems.append(
            f"{instance} on {host} {'is stopped' if stopped else 'has ended: ' + (end.get('reason') or 'its launcher is gone')}"
        )
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(found["since"])) if found.get("since") else "-"
    pid = "in container" if found["contained"] else str(found.get("pid") or "-")
    row = (host, instance, name, f"{ready}/{len(processes)}", state, pid, since)
    return UnitState(row, found["deployed"], stopped, problems, notes)


def _not_ready(host: str, instance: str, processes: list[dict[str, t.Any]]) -> list[str]:
    """One line per kind of trouble: d1:7100-7115 unhealthy (decode rank 0 ...)."""
    groups: dict[str, list[dict[str, t.Any]]] = {}
    ready = sum(process["health"] == "ready" for process in processes)
    for process in processes:
        if process["health"] != "ready":
            groups.setdefault(process["health"], []).append(process)
    lines = []
    for health, alike in groups.items():
        ports = [urllib.parse.urlsplit(process.get("health_url") or "").port for process in alike]
        where = f"{host}:{span([port for port in ports if port])}" if any(ports) else host
        state = "down" if health == "none" else health
        names = alike[0]["label"] + (f" and {len(alike) - 1} more" if len(alike) > 1 else "")
        lines.append(f"{where} {state} ({instance} {names}; {ready}/{len(processes)} ready)")
    return lines


def status_lines(states: t.Sequence[UnitState]) -> list[str]:
    rows = [("HOST", "INSTANCE", "UNIT", "READY", "STATE", "PID", "SINCE"), *(state.row for state in states[:MAX_ROWS])]
    lines = table(rows)
    if len(states) > MAX_ROWS:
        lines.append(f"... and {len(states) - MAX_ROWS} more")
    return lines + [note for state in states for note in state.notes]


# Summary of a run ---------------------------------------------------------------------------------------------------


def stopped_lines(overview: dict[str, t.Any], hosts: t.Sequence[str], others: t.Sequence[str]) -> list[str]:
    """What stop.yml has done. *hosts*: those of the run; *others*: those of the inventory that have no role."""
    lines = [
        f"Cluster {overview['name']} is stopped on {count(len(hosts), 'host')}. Its files and logs are still there; site.yml starts "
        "it again."
    ]
    for instance in overview["instances"]:
        left = [host for host in instance["hosts"] if host not in hosts]
        if 0 < len(left) < len(instance["hosts"]):
            lines.append(
                f"{instance['name']} serves no more: a group does not live without a part of it, and {some(left)} still "
                f"{'has' if len(left) == 1 else 'have'} the rest. site.yml over all of its hosts starts it anew."
            )
    if others:
        lines.append(f"Not looked at, since they are in no group of a role: {some(others)}.")
    return lines


def summary_lines(
    overview: dict[str, t.Any],
    gate: t.Mapping[str, dict[str, t.Any]],
    verify: dict[str, t.Any] | None,
    skipped: t.Sequence[str],
    elapsed: float,
) -> list[str]:
    """What an operator wants to see at the end: what serves where, how long it took, what to try."""
    rows = [("INSTANCE", "ROLE", "HOSTS", "RANKS", "TP", "STATE")]
    for instance in overview["instances"]:
        state = gate.get(instance["name"])
        rows.append(
            (
                instance["name"],
                instance["role"],
                some(instance["hosts"]),
                str(instance["ranks"]),
                str(instance["tp_size"]),
                _state(state, instance["ranks"]),
            )
        )
    lines = [f"Cluster {overview['name']} ({overview['hardware']}, {overview['connector']})", "", *table(rows), ""]
    proxy = overview["proxy"]
    door = f"http://{proxy['address']}:{proxy['port']}"
    lines.append(f"Door      {door} ({proxy['kind']} proxy on {proxy['host']})")
    pool = overview.get("kv_pool")
    if pool:
        where = f"on {pool['host']}" if pool["started"] else "not of this run"
        lines.append(f"KV pool   {pool['backend']}, {pool['address'] or 'no address'} ({where})")
    if verify:
        lines.append(f"Verified  {verify_line(verify)}")
    lines += [f"Not judged  {entry}" for entry in skipped]
    lines.append(f"Took      {clock(elapsed)}")
    if verify:
        body = json.dumps(
            {"model": overview["served_model_name"], "prompt": "Who are you?", "max_tokens": 100, "temperature": 0},
            ensure_ascii=False,
        )
        words = [
            "curl",
            "-sS",
            "--noproxy",
            "*",
            f"{door}/v1/completions",
            "-H",
            "Content-Type: application/json",
            "-d",
            body,
        ]
        lines += ["", "Try it:", "  " + " ".join(shlex.quote(word) for word in words)]
    return lines


def verify_line(verify: dict[str, t.Any]) -> str:
    latency = verify.get("latency") or {}
    reached = verify.get("roles") or {}
    parts = [f"{verify.get('requests', 0)} completions, streamed and not"]
    for role in ROLES:
        if role in reached:
            parts.append(f"{reached[role]['reached']}/{reached[role]['total']} {role} endpoints reached")
    if latency:
        parts.append(f"median {latency['median']:.2f} s")
    return ", ".join(parts)


def _state(state: dict[str, t.Any] | None, ranks: int) -> str:
    if state is None:
        return "not judged"
    ready = f"{state['ready']}/{ranks} ready"
    if state["ready"] < ranks:
        # Some wait for hosts outside --limit, or are there: how long they will take is not known.
        return f"{ready}, {clock(state['seconds'])} after the start" if state.get("started") else ready
    return f"{ready} after {clock(state['seconds'])}" if state.get("started") else f"{ready}, was up"
