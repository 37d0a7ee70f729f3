# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Run a function of module_utils on a host without a module around it.

Ansible's own part of a module takes 150 ms of a host's processor and 170 KB of the connection, and building a module
takes 150 ms of the controller's, while all hosts wait. What needs none of it is a program of a few KB and 30 ms.
"""

from __future__ import annotations

import base64
import json
import pathlib
import shlex
import types
import typing as t
import zlib

# Runs on the host, behind SOURCES and ARGUMENTS. The last of the sources has the function answer().
_SCRIPT = """
import base64, json, sys, types, zlib
def module(name, source=""):
    made = sys.modules[name] = types.ModuleType(name)
    made.__path__ = []
    above, _dot, own = name.rpartition(".")
    if above:
        setattr(sys.modules[above], own, made)
    exec(compile(source, name, "exec"), made.__dict__)
    return made
for name, source in json.loads(zlib.decompress(base64.b64decode(SOURCES))):
    last = module(name, source)
print(json.dumps(last.answer(json.loads(ARGUMENTS))))
"""

LONGEST = 60000
"""Of a program in a command: the kernel takes 128 KiB in one word, and a shell within sudo's puts quotes around quotes."""


def interpreter(templar: t.Any, task_vars: t.Mapping[str, t.Any]) -> str:
    """The host's Python where the inventory or an earlier task says it; else the usual one may do."""
    given = templar.template(task_vars.get("ansible_python_interpreter", ""))
    found = (task_vars.get("ansible_facts") or {}).get("discovered_interpreter_python", "")
    for path in (given, found):
        if isinstance(path, str) and path.startswith("/") and " " not in path:
            return path
    return "python3"


def program(modules: t.Sequence[types.ModuleType], arguments: t.Mapping[str, t.Any]) -> str:
    """A program in Python that prints, as JSON, what answer(*arguments*) of the last of the *modules* returns.

    They import the standard library and one another alone; each stands behind what it imports.
    """
    sources: dict[str, str] = {}
    for one in modules:
        above = one.__name__.split(".")[:-1]
        sources.update({".".join(above[: count + 1]): "" for count in range(len(above))})
        sources[one.__name__] = pathlib.Path(str(one.__file__)).read_text(encoding="utf-8")
    packed = base64.b64encode(zlib.compress(json.dumps(list(sources.items())).encode())).decode()
    return f"SOURCES = {packed!r}\nARGUMENTS = {json.dumps(json.dumps(arguments))}\n{_SCRIPT}"


def ask(action: t.Any, python: str, text: str) -> dict[str, t.Any] | None:
    """Let the host of an action plugin run a program; None, and with -vvv the reason, where that gives no answer.

    By its standard input where Ansible uses that for modules too: sudo writes every word of a command into its log.
    """
    # Isolated: nothing of the current folder, the environment, the user or site packages comes in between.
    words = [python, "-IS"]
    if action._is_pipelining_enabled("new"):
        result = action._low_level_execute_command(shlex.join([*words, "-"]), in_data=text)
    elif len(text) > LONGEST:
        return None
    else:
        result = action._low_level_execute_command(shlex.join([*words, "-c", text]))
    told = answered(result)
    if told is None:
        action._display.vvv(
            f"no answer without a module (exit code {result.get('rc')}): {str(result.get('stderr') or '').strip()[-500:]}"
        )
    return told


def answered(result: t.Mapping[str, t.Any]) -> dict[str, t.Any] | None:
    """The answer in what Ansible says of the command; None when there is none."""
    lines = str(result.get("stdout") or "").strip().splitlines()
    if result.get("rc") != 0 or not lines:
        return None
    try:
        told = json.loads(lines[-1])
    except ValueError:
        return None
    return told if isinstance(told, dict) else None
