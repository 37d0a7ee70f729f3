# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Everything that the tools and files of a host say about its chips, gathered in one go. Changes nothing."""

from __future__ import annotations

import dataclasses
import os
import re
import typing as t

from ansible_collections.ascend.pd_serving.plugins.module_utils import sites
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import (
    answers,
    hccn,
    hccn_conf,
    npu_smi,
    tool,
    versions,
)
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.answers import Result
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu.tool import HCCN_TOOL, NPU_SMI, Tools
from ansible_collections.ascend.pd_serving.plugins.module_utils.part_options import MORE_QUERIES, QUERIES

A5_FILES = ("/lib/route.conf", "/etc/hccl_rootinfo.json", "/etc/hixlep")
"""What one or the other fabric of A5 needs; which one does is for the controller to say."""

FAULTS = (sites.UnitError,)
"""What answer() raises, each with a message that can be read alone."""


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be gathered."""

    hardware: str
    chips: t.Sequence[int] | None
    queries: t.Sequence[str]
    cluster: str = ""
    base_dir: str = ""


def allowed_queries(hardware: str) -> tuple[str, ...]:
    """Everything that can be asked of a chip of this generation."""
    return QUERIES[hardware] + MORE_QUERIES[hardware]


def answer(params: t.Mapping[str, t.Any]) -> Result:
    """The answer of module npu_facts to these options."""
    hardware, chips, queries = params["hardware"], params["chips"], params["queries"]
    wrong = [str(chip) for chip in chips or [] if not 0 <= chip <= 999]
    if wrong:
        raise sites.UnitError(f"chips must be physical ids from 0 on, not {', '.join(wrong)}")
    foreign = sorted(set(queries or []) - set(allowed_queries(hardware)))
    if foreign:
        allowed = ", ".join(allowed_queries(hardware))
        raise sites.UnitError(f"queries: {', '.join(foreign)} cannot be asked of {hardware}, only {allowed}")
    faults = tool.faults(params)
    if faults:
        raise sites.UnitError("; ".join(faults))
    wanted = Wanted(
        hardware,
        chips,
        QUERIES[hardware] if queries is None else list(dict.fromkeys(queries)),
        params["cluster"],
        params["base_dir"],
    )
    return gather(tool.tools_of(params), wanted)


def find_chips(root: str) -> list[int]:
    """Physical ids of the device nodes."""
    try:
        names = os.listdir(sites.under(root, "/dev"))
    except OSError:
        return []
    found = (re.fullmatch(r"davinci([0-9]{1,3})", name) for name in names)
    return sorted(int(match.group(1)) for match in found if match)


def gather(tools: Tools, wanted: Wanted) -> Result:
    """The result of module npu_facts, without the parts that every module has."""
    root = tools.root
    found = find_chips(root)
    asked = list(found if wanted.chips is None else dict.fromkeys(wanted.chips))
    info = tools.ask(NPU_SMI, ["info"]).read(npu_smi.parse_info)
    mapping = tools.ask(NPU_SMI, ["info", "-m"]).read(npu_smi.parse_mapping)
    places = npu_smi.places(info, mapping)
    chips = {}
    for chip in asked:
        asker = _Asker(tools, wanted.hardware, chip, places.get(chip), mapping, info)
        chips[str(chip)] = {query: asker.ask(query) for query in wanted.queries}
    return {
        "hardware": wanted.hardware,
        "found": found,
        **tools.report(),
        "hccn_conf": hccn_conf.read(sites.under(root, "/etc/hccn.conf")),
        "npu_smi": _table(info, places, _ownership(root, wanted)),
        "mapping": mapping,
        "driver": versions.gather(lambda path: sites.under(root, path)),
        "files": {path: _kind(sites.under(root, path)) for path in (A5_FILES if wanted.hardware == "a5" else ())},
        "chips": chips,
    }


def _table(info: Result, places: t.Mapping[int, tuple[int, int]], is_own: t.Callable[[int], bool] | None) -> Result:
    kept = {key: value for key, value in info.items() if key not in ("rows", "processes")}
    chips = npu_smi.chips_by_physical_id(info, places)
    for chip in chips.values():
        for process in chip["processes"]:
            process["own"] = None if is_own is None else is_own(process["pid"])
    return {"text": "", "version": None, "error": None, "code": None, **kept, "chips": chips}


def _ownership(root: str, wanted: Wanted) -> t.Callable[[int], bool] | None:
    """Tells whether a process belongs to a running unit of the cluster; None where nobody has named one."""
    if not wanted.cluster:
        return None
    # The tools need none of it: their first call does not wait until it is compiled.
    from ansible_collections.ascend.pd_serving.plugins.module_utils import host_check, launcher, procfs

    site = sites.Site(wanted.cluster, root, wanted.base_dir)
    stats = launcher.all_stats()
    ours = host_check.own_processes(site)
    return lambda pid: host_check.unit_of(pid, stats, ours, procfs.innermost_pid) is not None


def _kind(path: str) -> str:
    if os.path.isdir(path):
        return "directory"
    if os.path.exists(path):
        return "file"
    return "dangling" if os.path.islink(path) else "missing"


@dataclasses.dataclass
class _Asker:
    """Asks about one chip."""

    tools: Tools
    hardware: str
    chip: int
    place: tuple[int, int] | None
    mapping: Result
    info: Result
    ports: Result | None = None

    def ask(self, query: str) -> Result:
        if query == "spod":
            return self._spod()
        if self.hardware != "a5":
            parser = hccn.QUERIES[query]
            return self._hccn(["-i", str(self.chip), f"-{query}", "-g"], lambda text: parser(text, self.chip))
        if query == "link":
            return self._ub_links()
        if query == "dev_info":
            return self._dev_info()
        parser = hccn.QUERIES[query]
        return self._hccn(["-g", f"-{query}", "-i", str(self._a5_id)], lambda text: parser(text, self._a5_id))

    @property
    def _a5_id(self) -> int:
        """A5's tool takes the NPU ID of npu-smi, not the physical id."""
        return self.chip if self.place is None else self.place[0]

    def _hccn(self, words: t.Sequence[str], parser: t.Callable[[str], Result]) -> Result:
        return self.tools.ask(HCCN_TOOL, words, self.chip).read(parser)

    def _dev_info(self) -> Result:
        if self.ports is None:
            self.ports = self._hccn(["-g", "-dev_info", "-i", str(self._a5_id)], hccn.parse_dev_info)
        return self.ports

    def _ub_links(self) -> Result:
        """The link of every port that dev_info shows, one call each; *link* sums them up in the tool's own words."""
        listed = self._dev_info()
        if listed["state"] != answers.OK:
            return {**listed, "text": answers.excerpt(f"the ports are not known: {listed['text']}")}
        links = []
        for port in listed["ports"]:
            words = ["-g", "-link", "-i", str(self._a5_id), "-u", str(port["udie"]), "-p", str(port["port"])]
            answer = self._hccn(words, hccn.parse_ub_link)
            if answer["state"] != answers.OK:
                return {**answer, "udie": port["udie"], "port": port["port"]}
            links.append({"udie": port["udie"], "port": port["port"], "link": answer["link"]})
        states = {link["link"] for link in links}
        # A single card has no ports that could be linked.
        summary = "NA" if not links else states.pop() if len(states) == 1 else "PARTIAL LINK"
        return {"state": answers.OK, "link": summary, "ports": links}

    def _spod(self) -> Result:
        """Of the (card, chip) that this chip is; a number tried blindly would be another chip's, or nobody's."""
        if self.place is None:
            return self._placeless()
        words = ["info", "-t", "spod-info", "-i", str(self.place[0]), "-c", str(self.place[1])]
        return self.tools.ask(NPU_SMI, words, self.chip).read(npu_smi.parse_spod)

    def _placeless(self) -> Result:
        """No card and chip are known: nobody has printed them, or this chip is not among them."""
        for source in (self.mapping, self.info):
            if source["state"] == answers.OK:
                text = f"npu-smi knows no chip with the physical id {self.chip}"
                return answers.refused(answers.NO_SUCH_DEVICE, text)
        text = f"card and chip of physical id {self.chip} are not known: {self.info['text']}"
        return answers.refused(self.info["state"], text)
