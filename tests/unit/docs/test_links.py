# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Whatever the documentation points to is there: pages, anchors, verbs of the Makefile, playbooks, inventories, files."""

from __future__ import annotations

import re
import shlex

import markdown_pages
import pytest
from markdown_pages import ROOT, Page

PAGES = {page.name: page for page in markdown_pages.pages()}
SHELL = {"bash", "console", "sh", "shell"}
# A word of a command that stands for what the reader puts there.
PLACEHOLDER = re.compile(r"[A-Z][A-Z_]+|<[^>]+>")

by_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


def make_verbs() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def playbook_exists(name: str) -> bool:
    if PLACEHOLDER.fullmatch(name.removesuffix(".yml")):
        return True
    if name.startswith("ascend.pd_serving."):
        return (ROOT / "playbooks" / f"{name.rpartition('.')[2]}.yml").is_file()
    return (ROOT / name).is_file()


def commands(page: Page) -> list[tuple[int, list[str]]]:
    """(line number, words) of every command in the shell blocks; continued lines joined, prompts taken away."""
    found = []
    for block in page.blocks:
        if block.language not in SHELL:
            continue
        text = "\n".join(line.strip() for line in block.lines).replace("\\\n", " ")
        for offset, line in enumerate(text.splitlines(), 1):
            for part in re.split(r"\s&&\s|\s\|\s(?=\w)|;\s", line.removeprefix("$ ")):
                words = shlex.split(part, comments=True)
                if words:
                    found.append((block.number + offset, words))
    return found


@by_page
def test_relative_links_lead_somewhere(page: Page) -> None:
    wrong = []
    for number, target in page.links():
        if re.match(r"[a-z]+:", target):
            continue
        path, _hash, anchor = target.partition("#")
        file = (page.path.parent / path).resolve() if path else page.path
        if not file.exists():
            wrong.append(f"line {number}: {target}: no such file")
        elif anchor and anchor not in markdown_pages.read(file).anchors():
            wrong.append(f"line {number}: {target}: no such heading in {file.name}")
    assert not wrong, page.name + "\n" + "\n".join(wrong)


@by_page
def test_links_lead_elsewhere_only_on_purpose(page: Page) -> None:
    """Nobody checks a foreign address when it moves, so there are few."""
    foreign = [target for _number, target in page.links() if re.match(r"[a-z]+:", target)]
    assert set(foreign) <= {"https://jmespath.org/"}


@by_page
def test_make_verbs_exist(page: Page) -> None:
    mentioned = set(re.findall(r"`make ([a-z-]+)", "\n".join(page.prose)))
    mentioned |= {words[1] for _number, words in commands(page) if words[0] == "make" and len(words) > 1}
    assert mentioned <= make_verbs()


@by_page
def test_playbooks_that_are_named_exist(page: Page) -> None:
    names = re.findall(r"`((?:playbooks/)?[a-z_]+\.yml)`", "\n".join(page.prose))
    others = {"all.yml", "hosts.yml", "prefill_a.yml", "requirements.yml", "galaxy.yml", "hardware.yml", "versions.yml"}
    assert [name for name in names if name not in others and not playbook_exists(name)] == []


@by_page
def test_commands_name_playbooks_and_inventories_that_exist(page: Page) -> None:
    wrong = []
    for number, words in commands(page):
        if not words[0].endswith("ansible-playbook"):
            continue
        playbook = next((word for word in words[1:] if not word.startswith("-")), "")
        if not playbook_exists(playbook):
            wrong.append(f"line {number}: playbook {playbook}")
        inventories = [words[i + 1] for i, word in enumerate(words[:-1]) if word in ("-i", "--inventory")]
        if not inventories:
            wrong.append(f"line {number}: no inventory")
        wrong += [
            f"line {number}: inventory {name}"
            for name in inventories
            if not (PLACEHOLDER.fullmatch(name) or name.startswith(("my/", "../")) or (ROOT / name).exists())
        ]
    assert not wrong, page.name + "\n" + "\n".join(wrong)


@by_page
def test_files_in_code_exist(page: Page) -> None:
    """`plugins/...`, `docs/...` and the like in running text are paths of this checkout."""
    tops = "docs|inventories|molecule|playbooks|plugins|roles|tests|tools|changelogs|benchmarks"
    names = re.findall(rf"`((?:{tops})/[\w./-]*)`", "\n".join(page.prose))
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    """Of the roles only those that a user calls by name need to be: a role's page lies beside it."""
    seen, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        if name in seen or name not in PAGES:
            continue
        seen.add(name)
        page = PAGES[name]
        files = [(page.path.parent / target.partition("#")[0]).resolve() for _number, target in page.links()]
        waiting += [file.relative_to(ROOT).as_posix() for file in files if file.is_file() and file.is_relative_to(ROOT)]
    assert {name for name in PAGES if not name.startswith("roles/")} <= seen
