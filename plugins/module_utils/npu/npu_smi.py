# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Reads what npu-smi prints: the table of chips and processes, the mapping of ids, super pods, processes of a chip.

Tables are split at their bars and never at columns, whose widths differ between driver versions. All functions are
pure and never raise; see ``answers`` for what they return.
"""

from __future__ import annotations

import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import (
    FAILED,
    OK,
    UNKNOWN,
    Answer,
    Result,
    listen,
)

DCMI_INIT = "dcmi_init"
DEVICE_USED = "device_used"

_DCMI = re.compile(r"\bdcmi\b.*\bret is (-?[0-9]+)")
# The wording around these numbers differs ("module initialize", "model initialized"), the numbers do not.
_DCMI_ERRORS = {-8005: DCMI_INIT, -8020: DEVICE_USED}

_BORDER = re.compile(r"\+[-=+]+\+")
_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_BUS = re.compile(r"[0-9A-Fa-f]{4,}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]|NA")
_HEALTH = re.compile(r"[A-Za-z][A-Za-z ]*|N/A|-")
_UPPER_NUMBERS = re.compile(r"(\S+) (\S+) (\S+?) ?/ ?(\S+)")
_LOWER_NUMBERS = re.compile(r"(\S+) (\S+?) ?/ ?(\S+)(?: (\S+?) ?/ ?(\S+))?")
_IDLE = re.compile(r"No running processes found in NPU ([0-9]+)")


class _Unreadable(Exception):
    """A cell or a row is not what it must be."""


# ---------------------------------------------------------------------------------------------------------------------
# npu-smi info
# ---------------------------------------------------------------------------------------------------------------------


def parse_info(text: str) -> Result:
    """``npu-smi info``: *version*, *rows* (one per chip, in the tool's order) and *processes*.

    A row has *card*, *chip*, *physical* (physical id; null where the table does not tell), *name*, *health*, *bus_id*,
    *power_w*, *temperature_c*, *utilization_percent*, *hbm_used_mb*, *hbm_total_mb* (numbers, null where the tool
    shows none). A process has *card*, *chip*, *pid*, *name*, *memory_mb*, *pid_in_container*.
    With ``failed`` also *error* (dcmi_init or device_used) and *code*. ``unknown`` unless the table is whole: also
    its second half, without which chips may be missing at the end.
    """
    answer = listen(text)
    table = [line.strip() for line in answer.lines]
    head = _process_head(table)
    if head is None or not table or not _BORDER.fullmatch(table[0]):
        return _refused(answer)
    try:
        version, rows = _read_chips(table[:head])
        processes, seen = _read_processes(table[head:])
    except _Unreadable:
        return answer.refused(UNKNOWN)
    if {row["card"] for row in rows} != seen:
        return answer.refused(UNKNOWN)
    return answer.settled({"version": version, "rows": rows, "processes": processes})


def parse_processes(text: str) -> Result:
    """The second half of ``npu-smi info`` alone: *processes*."""
    answer = listen(text)
    table = [line.strip() for line in answer.lines]
    head = _process_head(table)
    if head is None or any(not _BORDER.fullmatch(line) for line in table[:head]):
        return _refused(answer)
    try:
        return answer.settled({"processes": _read_processes(table[head:])[0]})
    except _Unreadable:
        return answer.refused(UNKNOWN)


def _refused(answer: Answer) -> Result:
    codes = [int(match.group(1)) for match in map(_DCMI.search, answer.lines) if match]
    if len(codes) == 1:
        return answer.refused(FAILED, error=_DCMI_ERRORS.get(codes[0], "dcmi"), code=codes[0])
    return answer.refused()


def _process_head(table: t.Sequence[str]) -> int | None:
    heads = [index for index, line in enumerate(table) if line.startswith("|") and "Process id" in line]
    heads = [index for index in heads if line_cells(table[index]) is not None]
    return heads[0] if len(heads) == 1 else None


def line_cells(line: str) -> list[str] | None:
    """The cells of a row of a table; None when it is none, or was cut."""
    if len(line) < 2 or line[0] != "|" or line[-1] != "|":
        return None
    return [" ".join(cell.split()) for cell in line[1:-1].split("|")]


def _rows(table: t.Iterable[str]) -> list[list[str]]:
    """The rows between borders; anything else makes the table unreadable."""
    found = []
    for line in table:
        if _BORDER.fullmatch(line):
            continue
        cells = line_cells(line)
        if cells is None:
            raise _Unreadable
        found.append(cells)
    return found


def _read_chips(table: t.Sequence[str]) -> tuple[str, list[Result]]:
    rows = _rows(table)
    if len(rows) < 5 or len(rows) % 2 == 0 or not _BORDER.fullmatch(table[-1]):
        raise _Unreadable
    # A name of the tool and the version of the driver: the second counts.
    version = _VERSION.fullmatch(rows[0][0]) if len(rows[0]) == 1 else None
    first, second = rows[1], rows[2]
    alike = len(first) == len(second) and "Health" in first and "Bus-Id" in second
    if version is None or not alike or "Memory-Usage(MB)" not in second[-1] or "Temp(C)" not in first[-1]:
        raise _Unreadable
    found = [_chip(first, second, rows[at], rows[at + 1]) for at in range(3, len(rows), 2)]
    places = [(row["card"], row["chip"]) for row in found]
    known = [row["physical"] for row in found if row["physical"] is not None]
    # The tool goes through cards and chips in order; rows that do not were taken apart and put together wrongly.
    if places != sorted(set(places)) or known != sorted(set(known)):
        raise _Unreadable
    return version.group(2), found


def _chip(first: list[str], second: list[str], upper: list[str], lower: list[str]) -> Result:
    if not len(first) == len(second) == len(upper) == len(lower):
        raise _Unreadable
    separate = first[0] == "NPU ID"  # A5 has a bar after the id, and one chip a card
    if separate:
        name, ids = upper[1], (upper[0], lower[0] or "0", "")
    else:
        above, below = upper[0].partition(" "), lower[0].partition(" ")
        name, ids = above[2], (above[0], below[0], below[2])
    card, chip = _integer(ids[0]), _integer(ids[1])
    physical: int | None
    if second[0].endswith("Phy-ID"):
        physical = _integer(ids[2])
    elif separate or chip != 0:
        physical = None
    else:
        physical = card
    health, bus = upper[-2], lower[-2]
    if not name or " " in name or not _HEALTH.fullmatch(health) or not _BUS.fullmatch(bus):
        raise _Unreadable
    upper_numbers, lower_numbers = _UPPER_NUMBERS.fullmatch(upper[-1]), _LOWER_NUMBERS.fullmatch(lower[-1])
    hbm = "HBM-Usage(MB)" in second[-1]
    if upper_numbers is None or lower_numbers is None or (lower_numbers.group(5) is None) == hbm:
        raise _Unreadable
    used, total = (4, 5) if hbm else (2, 3)
    used_mb, total_mb = _number(lower_numbers.group(used)), _number(lower_numbers.group(total))
    if used_mb is not None and total_mb is not None and used_mb > total_mb:
        raise _Unreadable
    return {
        "card": card,
        "chip": chip,
        "physical": physical,
        "name": name,
        "health": health,
        "bus_id": bus,
        "power_w": _number(upper_numbers.group(1)),
        "temperature_c": _number(upper_numbers.group(2)),
        "utilization_percent": _number(lower_numbers.group(1)),
        "hbm_used_mb": used_mb,
        "hbm_total_mb": total_mb,
    }


def _integer(cell: str) -> int:
    if not re.fullmatch(r"[0-9]{1,3}", cell):
        raise _Unreadable
    return int(cell)


def _number(cell: str) -> int | float | None:
    """A number; the second die of a card shows '-' for its power."""
    if cell in ("-", "NA", "N/A"):
        return None
    if not re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,3})?", cell):
        raise _Unreadable
    return float(cell) if "." in cell else int(cell)


def _read_processes(table: t.Sequence[str]) -> tuple[list[Result], set[int]]:
    """The processes, and the cards that the table speaks of."""
    rows = _rows(table)
    head, body = rows[0], rows[1:]
    borders = [line for line in table if _BORDER.fullmatch(line)]
    # The last border is printed like those between cards. One that was cut at a crossing equals none of them.
    if len(head) not in (4, 5) or not body or table[-1] != borders[-1] or borders[-1] not in borders[:-1]:
        raise _Unreadable
    if not (head[0].startswith("NPU") and head[1] == "Process id" and head[3] == "Process memory(MB)"):
        raise _Unreadable
    processes = []
    idle: set[int] = set()
    for cells in body:
        match = _IDLE.fullmatch(cells[0]) if len(cells) == 1 else None
        if match and int(match.group(1)) not in idle:
            idle.add(int(match.group(1)))
        else:
            processes.append(_process(cells, len(head)))
    busy = {process["card"] for process in processes}
    if busy & idle:
        raise _Unreadable
    return processes, busy | idle


def _process(cells: list[str], width: int) -> Result:
    place = re.fullmatch(r"([0-9]{1,3})(?: ([0-9]{1,3}))?", cells[0])
    # A name may hold a bar itself.
    after = width - 3
    if place is None or len(cells) < width or not re.fullmatch(r"[0-9]{1,10}", cells[1]):
        raise _Unreadable
    memory = _number(cells[len(cells) - after])
    inner = _number(cells[-1]) if width == 5 else None
    if isinstance(memory, float) or isinstance(inner, float):
        raise _Unreadable
    return {
        "card": int(place.group(1)),
        "chip": int(place.group(2) or 0),
        "pid": int(cells[1]),
        "name": "|".join(cells[2 : len(cells) - after]),
        "memory_mb": memory,
        "pid_in_container": inner,
    }


# ---------------------------------------------------------------------------------------------------------------------
# npu-smi info -m, and the physical ids
# ---------------------------------------------------------------------------------------------------------------------

_MAPPING_COLUMNS = {
    "NPU ID": "card",
    "Slot ID": "slot",
    "Chip ID": "chip",
    "Chip Logic ID": "logical",
    "Chip Phy-ID": "physical",
    "Chip Name": "name",
}


def parse_mapping(text: str) -> Result:
    """``npu-smi info -m``: *chips* with *card*, *chip*, *logical*, *physical* and *name*; *ignored* other rows.

    A2's tool has no column of physical ids: there the card is the chip. A5's has none of logical ids. Rows of a
    card's controller carry '-' and are no chips.
    """
    answer = listen(text)
    lines = [line.strip() for line in answer.lines]
    head = re.split(r"\s{2,}", lines[0]) if lines else []
    fields = [_MAPPING_COLUMNS.get(name, "") for name in head]
    if not answer.complete or not {"card", "chip", "name"} <= set(fields):
        return answer.refused()
    chips, ignored = [], 0
    for line in lines[1:]:
        row = dict(zip(fields, re.split(r"\s{2,}", line)))
        numbers = [row[field] for field in fields if field and field != "name" and field in row]
        if len(row) != len(fields) or not all(re.fullmatch(r"[0-9]{1,3}|-", number) for number in numbers):
            return answer.refused()
        if "-" in (row.get("logical", "0"), row.get("physical", "0")) or row["name"] == "Mcu":
            ignored += 1
            continue
        if "-" in (row["card"], row["chip"]):
            return answer.refused()
        card, chip = int(row["card"]), int(row["chip"])
        physical = int(row["physical"]) if "physical" in row else (card if chip == 0 else None)
        logical = int(row["logical"]) if "logical" in row else None
        chips.append({"card": card, "chip": chip, "logical": logical, "physical": physical, "name": row["name"]})
    places = {(chip["card"], chip["chip"]) for chip in chips}
    known = [chip["physical"] for chip in chips if chip["physical"] is not None]
    if not chips or len(places) != len(chips) or len(set(known)) != len(known):
        return answer.refused()
    return answer.settled({"chips": chips, "ignored": ignored})


def places(info: Result, mapping: Result) -> dict[int, tuple[int, int]]:
    """Physical id → (card, chip), by what the mapping and the table say. Where they disagree, the id is left out."""
    found: dict[int, tuple[int, int]] = {}
    torn: set[int] = set()
    for entry in [*mapping.get("chips", []), *info.get("rows", [])]:
        physical, place = entry["physical"], (entry["card"], entry["chip"])
        if physical is None:
            continue
        if found.setdefault(physical, place) != place:
            torn.add(physical)
    if not found:
        # A5's table has but one number for a chip; without a mapping that is the best there is.
        found = {row["card"]: (row["card"], row["chip"]) for row in info.get("rows", []) if row["chip"] == 0}
    return {physical: place for physical, place in found.items() if physical not in torn}


def chips_by_physical_id(info: Result, found: t.Mapping[int, tuple[int, int]]) -> dict[str, Result]:
    """The rows of the table by physical id (as text), each with its processes."""
    ids = {place: physical for physical, place in found.items()}
    chips = {}
    for row in info.get("rows", []):
        place = (row["card"], row["chip"])
        if place not in ids:
            continue
        mine = [entry for entry in info["processes"] if (entry["card"], entry["chip"]) == place]
        kept = [{key: value for key, value in entry.items() if key not in ("card", "chip")} for entry in mine]
        chips[str(ids[place])] = {
            **{key: value for key, value in row.items() if key != "physical"},
            "processes": kept,
        }
    return chips


# ---------------------------------------------------------------------------------------------------------------------
# npu-smi info -t …
# ---------------------------------------------------------------------------------------------------------------------

_SPOD_KEYS = {
    "sdid": "sdid",
    "super pod size": "super_pod_size",
    "super pod id": "super_pod_id",
    "server index": "server_index",
    "chassis id": "chassis_id",
    "super pod type": "super_pod_type",
}


def parse_spod(text: str) -> Result:
    """``npu-smi info -t spod-info -i CARD -c CHIP``: *sdid*, *super_pod_size*, *super_pod_id*, *server_index*.

    A5 has no *sdid*, but *chassis_id* or *server_index* and *super_pod_type*. What is not shown is null. 0 is a valid id.
    """
    answer = listen(text)
    table = any(line.lstrip().startswith(("|", "+")) for line in answer.lines)
    found: dict[str, int | str] = {}
    for label, value in _spod_pairs(answer, table):
        key = _SPOD_KEYS.get(" ".join(label.split()).lower())
        if key is None:
            continue
        number = int(value) if re.fullmatch(r"[0-9]{1,10}", value) else None
        good = number is not None or (key == "super_pod_type" and value)
        if not good or key in found:
            return _refused_spod(answer, UNKNOWN)
        found[key] = value if number is None else number
    named = "super_pod_id" in found
    a3 = "sdid" in found and "server_index" in found
    a5 = "sdid" not in found and "super_pod_type" in found and ("server_index" in found or "chassis_id" in found)
    # As a table only the id of the super pod has been seen; its end is the bar, so a cut is noticed.
    if not named or not (table or (answer.complete and (a3 or a5))):
        return _refused_spod(answer)
    return answer.settled({key: found.get(key) for key in _SPOD_KEYS.values()})


def _refused_spod(answer: Answer, state: str | None = None) -> Result:
    return answer.refused(state) if state else _refused(answer)


def _spod_pairs(answer: Answer, table: bool) -> list[tuple[str, str]]:
    found = []
    for line in answer.lines:
        parts = (line_cells(line.strip()) or []) if table else [line]
        for part in parts:
            label, colon, value = part.partition(":")
            if colon:
                found.append((label.strip(), value.strip()))
    return found


_PROCESS = re.compile(r"\s*Process id\s*:\s*([0-9]+)\s+Process name\s*:(.*?)\s*Process memory\(MB\)\s*:\s*([0-9]+)\s*")
_NO_PROCESS = re.compile(r"no (?:running )?process(?:es)?\b.*", re.IGNORECASE)


def parse_proc_mem(text: str) -> Result:
    """``npu-smi info -t proc-mem -i CARD -c CHIP``: *processes* with *pid*, *name* (may be empty) and *memory_mb*."""
    answer = listen(text)
    if not answer.lines or not answer.complete:
        return _refused(answer)
    if len(answer.lines) == 1 and _NO_PROCESS.fullmatch(answer.lines[0].strip()):
        return {"state": OK, "processes": []}
    found = []
    for line in answer.lines:
        match = _PROCESS.fullmatch(line)
        if match is None:
            return _refused(answer)
        name = match.group(2).strip()
        found.append({"pid": int(match.group(1)), "name": name, "memory_mb": int(match.group(3))})
    return answer.settled({"processes": found})
