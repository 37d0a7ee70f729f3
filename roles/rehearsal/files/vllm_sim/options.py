# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The command line of ``vllm serve``, parsed as the real parser parses it.

The option table is data (``vllm_options_<version>.json``), made from the real parser of that version. A type is
``int``, ``float``, ``str``, ``size`` (``16k``), ``size_or_auto``, ``json``, ``object`` (a JSON object), a list of
choices, ``flag`` or ``bool`` (a flag that also has its ``--no-`` form); ``+`` and ``?`` after it are argparse's nargs.
argparse itself is not used: it costs more to import, and to fill with 300 options, than everything else here.
"""

from __future__ import annotations

import json
import os
import re

from vllm_sim.errors import Refusal, UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DEFAULT_VERSION = "0.23.0"
_TABLE = re.compile(r"vllm_options_(.+)\.json")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_MULTIPLIERS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SWITCHES = ("flag", "bool")


class OptionTable:
    """Every option of one vLLM version, with its type."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.version: str = data["version"]
        self.kv_fields: frozenset[str] = frozenset(data["kv_fields"])
        self.types: dict[str, str | list[str]] = data["options"]
        # Every spelling -> (canonical name, value a switch gets from this spelling).
        self.spellings: dict[str, tuple[str, bool]] = {name: (name, True) for name in self.types}
        self.spellings.update({alias: (name, True) for alias, name in data["aliases"].items()})
        self.spellings.update(
            {"--no-" + name[2:]: (name, False) for name, kind in self.types.items() if kind == "bool"}
        )
        self._labels: dict[str, str] = {}
        for spelling, (name, _) in sorted(
            self.spellings.items(), key=lambda item: (not item[0].startswith("--"), item)
        ):
            self._labels[name] = f"{self._labels[name]}/{spelling}" if name in self._labels else spelling

    @classmethod
    def load(cls, version: str) -> OptionTable:
        folder = os.path.dirname(os.path.abspath(__file__))
        try:
            with open(os.path.join(folder, f"vllm_options_{version}.json"), encoding="utf-8") as file:
                return cls(json.load(file))
        except FileNotFoundError:
            known = sorted(match.group(1) for match in map(_TABLE.fullmatch, os.listdir(folder)) if match)
            raise Refusal(f"no option table for vLLM {version}; there is one for: {', '.join(known)}") from None

    def is_switch(self, name: str) -> bool:
        return self.types[name] in _SWITCHES

    def nargs(self, name: str) -> str:
        kind = self.types[name]
        return kind[-1] if isinstance(kind, str) and kind[-1] in "+?" else ""

    def fail(self, name: str, message: str) -> UsageError:
        return UsageError(f"argument {self._labels[name]}: {message}")

    def find(self, word: str) -> tuple[str, bool] | None:
        """The option a word names. upstream: argparse's unique prefixes count (``allow_abbrev`` is on)."""
        if word in self.spellings:
            return self.spellings[word]
        matches = [spelling for spelling in self.spellings if word.startswith("--") and spelling.startswith(word)]
        if len(matches) > 1:
            raise UsageError(f"ambiguous option: {word} could match {', '.join(sorted(matches))}")
        return self.spellings[matches[0]] if matches else None

    def convert(self, name: str, raw: str) -> Any:
        kind = self.types[name]
        if isinstance(kind, list):
            if raw not in kind:
                raise self.fail(name, f"invalid choice: {raw!r} (choose from {', '.join(map(repr, kind))})")
            return raw
        kind = kind.rstrip("+?")
        try:
            return _convert(kind, raw)
        except ValueError as exc:
            if kind in ("json", "object"):
                raise self.fail(name, f"Invalid JSON: {exc}") from None
            raise self.fail(name, f"Value {raw} cannot be converted to {kind}.") from None


def _convert(kind: str, raw: str) -> Any:
    if kind == "str":
        return raw
    if kind == "size_or_auto" and raw.lower() in ("-1", "auto"):
        return -1
    if kind == "int":
        return int(raw)
    if kind == "float":
        return float(raw)
    if kind.startswith("size"):
        match = _SIZE.fullmatch(raw.strip())
        if not match or ("." in match.group(1) and match.group(2) in "KMGT"):
            raise ValueError(raw)
        return int(float(match.group(1)) * _MULTIPLIERS[match.group(2)])
    value = json.loads(raw)
    if kind == "object" and not isinstance(value, dict):
        raise ValueError(f"{raw!r} is not a JSON object")
    return value


def parse(table: OptionTable, argv: list[str]) -> tuple[str, dict[str, Any]]:
    """Returns the model and the value of every given option by its canonical name."""
    words = _join_dotted(table, [_dashes(word) for word in argv])
    values: dict[str, Any] = {}
    unknown: list[str] = []
    model = None
    if words and _is_value(table, words[0]):
        model = words.pop(0)
    while words:
        word = words.pop(0)
        spelling, _, explicit = word.partition("=")
        found = None if _is_value(table, word) else table.find(spelling)
        if found is None:
            unknown.append(word)
        else:
            given = [explicit] if "=" in word else None
            values[found[0]] = _take(table, found, given, words)
    if unknown:
        raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", prog="vllm")
    model = model or values.get("--model")
    if not model:
        raise UsageError("`model` should be provided as the first positional argument when using `vllm serve`.")
    return model, values


def _take(table: OptionTable, found: tuple[str, bool], given: list[str] | None, words: list[str]) -> Any:
    """The value of an option, from ``--x=value`` or from the words after it."""
    name, switch = found
    if table.is_switch(name):
        if given is not None:
            raise table.fail(name, f"ignored explicit argument {given[0]!r}")
        return switch
    nargs = table.nargs(name)
    if given is None:
        given = []
        while words and _is_value(table, words[0]) and (nargs == "+" or not given):
            given.append(words.pop(0))
    if not given:
        if nargs == "?":
            return True
        raise table.fail(name, "expected at least one argument" if nargs == "+" else "expected one argument")
    converted = [table.convert(name, raw) for raw in given]
    return converted if nargs == "+" else converted[0]


def _is_value(table: OptionTable, word: str) -> bool:
    """Whether argparse takes the word for a value and not for an option."""
    if not word.startswith("-") or word == "-":
        return True
    if word in table.spellings or word.partition("=")[0] in table.spellings:
        return False
    return bool(_NEGATIVE_NUMBER.fullmatch(word)) or " " in word


def _dashes(word: str) -> str:
    """upstream: underscores equal dashes between the leading ``--`` and the first dot or ``=``."""
    if not word.startswith("--"):
        return word
    match = re.match(r"[^.=]*", word)
    end = match.end() if match else 0
    return word[:end].replace("_", "-") + word[end:]


def _join_dotted(table: OptionTable, words: list[str]) -> list[str]:
    """upstream: ``--a.b.c 1 --a.d+ x,y`` becomes ``--a '{"b": {"c": 1}, "d": ["x", "y"]}'`` at the end."""
    plain: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if not key.startswith("-") or "." not in key or _is_value(table, word):
            plain.append(word)
            continue
        if not equals:
            if not rest:
                raise UsageError(f"argument {key}: expected one argument")
            value = rest.pop(0)
        option, *path = key.rstrip("+").split(".")
        _merge(dotted.setdefault(option, {}), path, value.split(",") if key.endswith("+") else _loose_json(value))
    for option, tree in dotted.items():
        plain += [option, json.dumps(tree)]
    return plain


def _merge(tree: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        below = tree.get(key)
        tree[key] = below if isinstance(below, dict) else {}
        tree = tree[key]
    before = tree.get(path[-1])
    tree[path[-1]] = before + value if isinstance(before, list) and isinstance(value, list) else value


def _loose_json(text: str) -> Any:
    """upstream: the value of a dotted option is JSON if it can be, else a size, else a string."""
    for kind in ("json", "size"):
        try:
            return _convert(kind, text)
        except ValueError:
            continue
    return text
