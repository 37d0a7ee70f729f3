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
import typing as t
import zlib

# Runs on the host, behind SOURCES, MAIN and ARGUMENTS. Compiles what is imported, when it is.
_SCRIPT = """
import base64, importlib, importlib.machinery, json, sys, zlib
class Finder:
    sources = json.loads(zlib.decompress(base64.b64decode(SOURCES)))
    def find_spec(self, name, path=None, target=None):
        if name in self.sources:
            return importlib.machinery.ModuleSpec(name, self, is_package=self.sources[name] is None)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(compile(self.sources[module.__name__] or "", module.__name__, "exec"), module.__dict__)
sys.meta_path.insert(0, Finder())
main = importlib.import_module(MAIN)
try:
    told = main.answer(json.loads(ARGUMENTS))
except Exception as error:
    import traceback
    told = {"failed": True, "msg": type(error).__name__ + ": " + str(error), "traceback": traceback.format_exc()}
print(json.dumps(told))
"""

_HERE = pathlib.Path(__file__).resolve().parent.parent / "module_utils"
_PACKAGE = "ansible_collections.ascend.pd_serving.plugins.module_utils"

USUAL = "python3"
"""What to try where nobody has said which Python a host has."""

LONGEST = 60000
"""Of a program in a command: the kernel takes 128 KiB in one word, and a shell within sudo's puts quotes around quotes."""


def interpreter(templar: t.Any, task_vars: t.Mapping[str, t.Any]) -> str | None:
    """The host's Python where the inventory or an earlier task says it."""
    given = templar.template(task_vars.get("ansible_python_interpreter", ""))
    found = (task_vars.get("ansible_facts") or {}).get("discovered_interpreter_python", "")
    for path in (given, found):
        if isinstance(path, str) and path.startswith("/") and " " not in path:
            return path
    return None


def program(main: str, others: t.Iterable[str], arguments: t.Mapping[str, t.Any]) -> str:
    """A program in Python that prints, as JSON, what answer(*arguments*) of *main* returns.

    *main* and the *others* are modules of module_utils ("npu.tool") that import the standard library and one another
    alone. They are read as files: the controller would have to compile what it imports, in every task.
    """
    sources: dict[str, str | None] = {}
    for name in (main, *others):
        words = f"{_PACKAGE}.{name}".split(".")
        sources.update({".".join(words[:count]): None for count in range(1, len(words))})
        sources[".".join(words)] = _HERE.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")
    packed = base64.b64encode(zlib.compress(json.dumps(sources).encode())).decode()
    return f"SOURCES = {packed!r}\nMAIN = {_PACKAGE + '.' + main!r}\nARGUMENTS = {json.dumps(json.dumps(arguments))}\n{_SCRIPT}"


def ask(action: t.Any, python: str, text: str) -> dict[str, t.Any] | None:
    """Let the host of an action plugin run a program; None where that gives no answer. With -vvv one sees why.

    By its standard input where Ansible uses that for modules too: sudo writes every word of a command into its log.
    """
    # Isolated: nothing of the current folder, the environment, the user or site packages comes in between.
    words = [python, "-IS"]
    if action._is_pipelining_enabled("new"):
        result = action._low_level_execute_command(shlex.join([*words, "-"]), in_data=text.encode())
    elif len(text) > LONGEST:
        return None
    else:
        result = action._low_level_execute_command(shlex.join([*words, "-c", text]))
    told = answered(result)
    if told is None:
        action._display.vvv(
            f"no answer without a module (exit code {result.get('rc')}): {str(result.get('stderr') or '').strip()[-500:]}"
        )
    elif "traceback" in told:
        action._display.vvv(told.pop("traceback"))
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
