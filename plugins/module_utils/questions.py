# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Several questions to this host in one process; those that need no tool are asked while tools are waited for."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
import types
import typing as t

BESIDE = {"host": "npu", "probes": "pings"}
"""What needs no turn of hccn_tool and npu-smi is asked while these are."""

Arguments = t.Mapping[str, t.Any]
Check = t.Callable[[str, Arguments], t.Tuple[Arguments, t.Optional[str]]]
"""Given a part and its arguments: these as they must be, or what is wrong with them."""


def source(part: str) -> types.ModuleType:
    """What answers a part. A host compiles all that is imported, in every call, so nothing else is."""
    if part == "npu":
        from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import facts

        return facts
    if part == "host":
        from ansible_collections.ascend.pd_serving.plugins.module_utils import host_look

        return host_look
    if part == "pings":
        from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import pings

        return pings
    if part == "units":
        from ansible_collections.ascend.pd_serving.plugins.module_utils import unit_report

        return unit_report
    from ansible_collections.ascend.pd_serving.plugins.module_utils import port_probe

    return port_probe


class Question:
    """One part: its *answer* or the *fault* for which there is none, and the *span* of the asking since *began*."""

    def __init__(self, part: str, arguments: Arguments, began: float, check: Check) -> None:
        self._part = part
        self._arguments = arguments
        self._began = began
        self._check = check
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.answer: dict[str, t.Any] = {}
        self.fault: str | None = None
        self.span = (0.0, 0.0)

    def start(self) -> None:
        """Ask in a thread of its own."""
        self._thread = threading.Thread(target=self._ask_aside)
        self._thread.start()

    def finish(self) -> None:
        """Wait for the thread, or ask now. Raises what nobody has foreseen, from a thread as well."""
        if self._thread is None:
            self._ask()
            return
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _ask_aside(self) -> None:
        try:
            self._ask()
        except BaseException as error:
            self._error = error

    def _ask(self) -> None:
        asked_at = time.monotonic() - self._began
        arguments, wrong = self._check(self._part, self._arguments)
        if wrong is not None:
            self.fault = f"{self._part}: {wrong}"
            return
        asked = source(self._part)
        try:
            self.answer = asked.answer(arguments)
        except asked.FAULTS as error:
            self.fault = str(error)
        self.span = (asked_at, time.monotonic() - self._began)


@dataclasses.dataclass
class Told:
    """What came of it. Of parts behind a *fault* nothing is told."""

    answers: dict[str, dict[str, t.Any]]
    spans: dict[str, tuple[float, float]]
    warnings: list[str]
    fault: str | None = None
    elapsed: float = 0.0


def ask(parts: t.Sequence[str], arguments: t.Mapping[str, Arguments], check: Check) -> Told:
    """Ask in this order, but for what is asked beside something else."""
    began = time.monotonic()
    questions = {part: Question(part, arguments.get(part) or {}, began, check) for part in parts}
    aside = [part for part in parts if BESIDE.get(part) in parts]
    if aside:
        # A tool that has answered is not to wait for the interpreter, which a thread keeps for 5 ms otherwise.
        sys.setswitchinterval(0.0005)
        for part in aside:
            source(BESIDE[part])  # first, since two that compile at once both take twice as long
            questions[part].start()
    told = Told({}, {}, [])
    for part, question in questions.items():
        question.finish()
        if question.fault is not None:
            told.fault = question.fault
            break
        told.warnings.extend(question.answer.pop("warnings", ()))
        told.answers[part] = question.answer
        told.spans[part] = question.span
    told.elapsed = time.monotonic() - began
    return told


def answer(params: t.Mapping[str, t.Any]) -> dict[str, t.Any]:
    """As module on_host: *parts*, and *arguments* that somebody has checked already."""
    told = ask(params["parts"], params["arguments"], lambda _part, given: (given, None))
    failure = {} if told.fault is None else {"failed": True, "msg": told.fault}
    content = {"answers": told.answers, "spans": told.spans, "elapsed": told.elapsed, "warnings": told.warnings}
    return {"changed": False, **content, **failure}
