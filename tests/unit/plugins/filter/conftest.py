# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The collection's filters as templates see them."""

from __future__ import annotations

import collections.abc as c
import json
import subprocess
import sys
import typing as t
from pathlib import Path

import pytest

COLLECTIONS = Path(__file__).resolve().parents[4] / ".ansible" / "collections"


class TemplateError(Exception):
    """What Ansible says of a template that cannot be rendered."""


class Renderer:
    """Renders a template's text with some variables; values come back as JSON has them."""

    def __init__(self, worker: subprocess.Popen[str]) -> None:
        self._worker = worker

    def __call__(self, text: str, **variables: t.Any) -> t.Any:
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        print(json.dumps({"text": text, "variables": variables}), file=self._worker.stdin, flush=True)
        answer = json.loads(self._worker.stdout.readline())
        if "error" in answer:
            raise TemplateError(answer["error"])
        return answer["value"]


@pytest.fixture(scope="session")
def render() -> c.Iterator[Renderer]:
    command = [sys.executable, str(Path(__file__).with_name("template_worker.py")), str(COLLECTIONS)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        yield Renderer(worker)
