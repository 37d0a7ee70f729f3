# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The collection as a whole: headers, links, verbs, plugin documentation, and what gets out of the checkout."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ansible_collections.ascend.pd_serving.plugins.action import plan
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight.verdicts import TAGS

ROOT = Path(__file__).resolve().parents[2]
LINK = ".ansible/collections/ansible_collections/ascend/pd_serving"

SPDX = "SPDX-License-Identifier: GPL-3.0-or-later"
COPYRIGHT = "Copyright: the ascend.pd_serving contributors"
SOURCE_SUFFIXES = {".cfg", ".ini", ".j2", ".py", ".sh", ".toml", ".yaml", ".yml"}
SOURCE_NAMES = {".ansible-lint", ".gitattributes", ".gitignore", ".yamllint", "Makefile", "requirements.txt"}
# Written by antsibull-changelog, or data that a test compares byte for byte.
GENERATED = re.compile(r"^changelogs/changelog\.yaml$|^tests/.*/(golden|data)/")
UNTRACKED_TREES = {".cache", ".git", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".venv", "build"}

# The verbs an operator says from the first release on; more may follow.
VERBS = {"site", "plan", "preflight", "prefill", "decode", "proxy", "verify", "status", "stop"}
ROOT_YAML = {"galaxy.yml", "requirements.yml", "execution-environment.yml"}


def git(*arguments: str) -> str | None:
    """What git prints; None where there is no git or no repository (an unpacked archive, say)."""
    if shutil.which("git") is None:
        return None
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def project_files() -> list[Path]:
    """Every file that is or would be committed, relative to the root."""
    listed = git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if listed is not None:
        found = [Path(name) for name in listed.split("\0") if name]
    else:
        walk = (path.relative_to(ROOT) for path in ROOT.rglob("*"))
        found = [path for path in walk if not UNTRACKED_TREES & set(path.parts) and "__pycache__" not in path.parts]
    return sorted(path for path in found if (ROOT / path).is_file() and not (ROOT / path).is_symlink())


FILES = project_files()


def text_of(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8", errors="replace")


def is_source(path: Path) -> bool:
    # An empty file (Ansible wants its __init__.py so) is nobody's work.
    if GENERATED.search(path.as_posix()) or not text_of(path).strip():
        return False
    return path.suffix in SOURCE_SUFFIXES or path.name in SOURCE_NAMES or text_of(path).startswith("#!")


def run_ansible(tool: str, *arguments: str) -> str:
    """Run one of the environment's Ansible tools in the checkout and return what it prints."""
    command = [str(Path(sys.executable).with_name(tool)), *arguments]
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"_test_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What is in the checkout


def test_preflight_knows_its_tags() -> None:
    """Those that the judgement goes by; preflight.yml refuses all others."""
    text = (ROOT / "playbooks" / "preflight.yml").read_text(encoding="utf-8")
    assert f"preflight_tags: [preflight, {', '.join(TAGS)}]" in text


def test_every_tag_is_known() -> None:
    """What is not is taken for misspelt."""
    found = set()
    for path in FILES:
        if path.parts[0] in ("roles", "playbooks") and path.suffix == ".yml":
            for words in re.findall(r"^ *tags: \[(.+)\]$", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE):
                found |= {word.strip() for word in words.split(",")}
    assert found | {"all", "never", "tagged", "untagged"} == plan.TAGS


def test_every_source_file_has_its_header() -> None:
    """Both lines, near the top: a file that is copied out must still say whose it is."""
    missing = []
    for path in filter(is_source, FILES):
        head = "\n".join(text_of(path).splitlines()[:6])
        missing += [f"{path}: {line}" for line in (SPDX, COPYRIGHT) if line not in head]
    assert not missing, "\n".join(missing)


def test_no_file_tells_where_it_was_written() -> None:
    """Paths of a developer's machine and package indexes of one site have no place here.

    Put together from pieces, so that this file does not contain what it looks for.
    """
    private = re.compile(
        "|".join(
            [
                r"(?<![\w.-])/" + r"work/",
                r"/" + r"tmp/pd/",
                r"\.\./" + r"shared\b",
                r"--(extra-)?index" + r"-url[= ](?!\S*\bexample\b)",
                r"--trusted" + r"-host[= ](?!\S*\bexample\b)",
                r"file:/" + r"//(opt|mnt|srv|home)\b",
            ]
        )
    )
    found = []
    for path in FILES:
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if match := private.search(line):
                found.append(f"{path}:{number}: {match.group()}")
    assert not found, "\n".join(found)


def test_the_checkout_finds_its_own_collection() -> None:
    """The tracked link makes the checkout an `ansible_collections/ascend/pd_serving` folder, wherever it lies."""
    link = ROOT / LINK
    install = "ansible-galaxy collection install . -p .ansible/collections --no-deps --force"
    assert link.is_symlink(), f"{LINK} is not a link. Where links cannot be had: delete it, then {install}"
    assert link.readlink() == Path("../../../..")
    assert link.resolve() == ROOT


def test_the_link_is_tracked_as_a_link() -> None:
    listed = git("ls-files", "-s", "--", ".ansible")
    if not listed:
        pytest.skip("no git, or nothing committed yet")
    assert [line.split()[0] for line in listed.splitlines()] == ["120000"], listed


def test_git_ignores_what_is_made_here() -> None:
    if git("rev-parse") is None:
        pytest.skip("no git repository")
    made = [".venv/x", ".cache/x", "tests/output/x", "ascend-pd_serving-0.1.0.tar.gz", ".ansible/tmp/x"]
    ignored = git("check-ignore", "--no-index", "--", *made) or ""
    assert ignored.split() == made
    assert git("check-ignore", "--no-index", "--", LINK) is None, f"{LINK} must not be ignored"


# Verbs


def playbooks(folder: Path) -> dict[str, Any]:
    return {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.yml"))
        if path.name not in ROOT_YAML and not path.name.startswith((".", "_"))
    }


def test_every_verb_is_a_playbook_at_the_root_and_in_the_collection() -> None:
    root, collection = playbooks(ROOT), playbooks(ROOT / "playbooks")
    assert set(root) == set(collection)
    assert set(root) >= VERBS, f"missing: {sorted(VERBS - set(root))}"


def test_every_verb_says_which_groups_it_needs() -> None:
    """So that a --limit which leaves it nothing to do is refused by the plan."""
    for verb, content in playbooks(ROOT / "playbooks").items():
        plans = [play for play in content if str(play.get("ansible.builtin.import_playbook")).endswith("plan.yml")]
        for play in plans:
            assert play["vars"]["plan_needs"], verb
        assert plans or verb in ("plan", "prefill", "decode"), verb


def test_root_playbooks_only_import() -> None:
    """Whatever they did themselves would be missing when the collection is installed."""
    for verb, content in playbooks(ROOT).items():
        assert isinstance(content, list), f"{verb}.yml is no playbook"
        assert len(content) == 1, f"{verb}.yml does more than import"
        entry = dict(content[0])
        entry.pop("name", None)
        allowed = (
            {"ansible.builtin.import_playbook": name} for name in (f"ascend.pd_serving.{verb}", f"playbooks/{verb}.yml")
        )
        assert entry in allowed, f"{verb}.yml: {entry}"


# Plugins


def plugin_files(kind: str) -> list[Path]:
    folder = ROOT / "plugins" / ("modules" if kind == "module" else kind)
    return sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")


def plugin_names(kind: str) -> list[str]:
    """The full names of the plugins that the files under plugins/ define. A filter file may define several."""
    names: list[str] = []
    for path in plugin_files(kind):
        names += load(path).FilterModule().filters() if kind == "filter" else [path.stem]
    return [f"ascend.pd_serving.{name}" for name in names]


def undocumented(prefix: str, options: dict[str, Any]) -> list[str]:
    missing = []
    for name, option in (options or {}).items():
        if not option.get("description"):
            missing.append(f"{prefix}{name}")
        missing += undocumented(f"{prefix}{name}.", option.get("suboptions") or option.get("contains") or {})
    return missing


def test_there_are_plugins() -> None:
    """The filters are a public interface; so are the names."""
    filters = {f"ascend.pd_serving.{name}" for name in ("plan", "port_ranges", "visible_devices")}
    assert filters <= set(plugin_names("filter"))


DOCUMENTED_KINDS = ["filter", "module", "lookup", "callback"]


@pytest.mark.parametrize("kind", [kind for kind in DOCUMENTED_KINDS if plugin_files(kind)])
def test_plugins_are_listed_and_documented(kind: str) -> None:
    """As their user sees it: through ansible-doc, with examples, return values and every option described."""
    names = plugin_names(kind)
    listed = json.loads(run_ansible("ansible-doc", "--type", kind, "--list", "--json", "ascend.pd_serving"))
    assert sorted(names) == sorted(name for name in listed if name in names), "ansible-doc does not list all"

    documented = json.loads(run_ansible("ansible-doc", "--type", kind, "--json", *names))
    for name in names:
        page = documented[name]
        doc = page["doc"]
        assert doc.get("short_description"), name
        assert doc.get("description"), name
        assert doc.get("version_added"), f"{name}: no version_added"
        assert name in (page.get("examples") or ""), f"{name}: the examples do not use its full name"
        assert not undocumented("", doc.get("options") or {}), name
        if kind in ("filter", "lookup"):
            assert page.get("return"), f"{name}: says nothing of what it returns"
        assert not undocumented("", page.get("return") or {}), name


def test_action_plugins_have_a_documented_module() -> None:
    """ansible-doc reads an action plugin's documentation from the module file of its name."""
    modules = {path.stem for path in plugin_files("module")}
    assert {path.stem for path in plugin_files("action")} <= modules


HOST_CODE = [
    path
    for path in FILES
    if path.suffix == ".py" and path.as_posix().startswith(("plugins/module_utils/", "plugins/modules/", "roles/"))
]


def test_host_code_is_python_38() -> None:
    """Managed hosts may run Python 3.8; what does not even parse there would fail in the middle of a run."""
    for path in HOST_CODE:
        ast.parse(text_of(path), filename=str(path), feature_version=(3, 8))


def test_host_code_imports_nothing_of_the_controller() -> None:
    """A module is sent to its host with module_utils only, and standard library is all that is sure to be there."""
    for path in HOST_CODE:
        if path.parts[0] != "plugins":
            continue
        imported = {
            name
            for node in ast.walk(ast.parse(text_of(path)))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        }
        allowed = ("ansible.module_utils", "ansible_collections.ascend.pd_serving.plugins.module_utils")
        foreign = {
            name
            for name in imported
            if not name.startswith(allowed) and name.partition(".")[0] not in {*sys.stdlib_module_names, ""}
        }
        assert not foreign, f"{path} imports {sorted(foreign)}"


# What a release holds


def test_the_artifact_holds_the_collection_and_nothing_else(tmp_path: Path) -> None:
    check = load(ROOT / "tools" / "check_artifact.py")
    assert check.problems(check.names(check.build(tmp_path))) == []


def test_the_artifact_check_sees_what_does_not_belong() -> None:
    check = load(ROOT / "tools" / "check_artifact.py")
    good = [*check.REQUIRED, "plugins/filter/plan.py"]
    assert check.problems(good) == []
    for bad in ("inventories/2p1d/hosts.yml", "roles/engine/.cache", "plugins/filter/__pycache__", "site.yml"):
        assert [line.partition(":")[0] for line in check.problems([*good, bad])] == [bad]
    assert check.problems([name for name in good if name != "LICENSE"]) == ["LICENSE: missing"]


def test_versions_agree() -> None:
    """The version is said once, in galaxy.yml; a release of it is in the changelog only when it was released."""
    galaxy = yaml.safe_load(text_of(Path("galaxy.yml")))
    assert (galaxy["namespace"], galaxy["name"]) == ("ascend", "pd_serving")
    releases = yaml.safe_load(text_of(Path("changelogs/changelog.yaml")))["releases"]
    fragments = list((ROOT / "changelogs" / "fragments").glob("*.yml"))
    assert galaxy["version"] in releases or fragments


def test_collection_dependencies_are_satisfied_by_the_pinned_package() -> None:
    """A range that excludes what requirements.txt installs makes every tool ask Galaxy, which not all sites reach."""
    galaxy = yaml.safe_load(text_of(Path("galaxy.yml")))["dependencies"]
    wanted = yaml.safe_load(text_of(Path("requirements.yml")))["collections"]
    assert galaxy == {entry["name"]: entry["version"] for entry in wanted}
    listed = json.loads(run_ansible("ansible-galaxy", "collection", "list", "--format", "json"))
    installed = {name: entry["version"] for path in listed.values() for name, entry in path.items()}
    for name, wide in galaxy.items():
        match = re.fullmatch(r">=(\d+(?:\.\d+)*)", wide)
        assert match, f"{name}: {wide} is not an open range"
        have = [int(part) for part in installed[name].split(".")]
        assert have >= [int(part) for part in match.group(1).split(".")]


def test_every_requirement_is_pinned() -> None:
    """A checkout of one commit must run the same code next year."""
    for name in ("requirements.txt", "requirements-dev.txt"):
        lines = [line.strip() for line in text_of(Path(name)).splitlines()]
        loose = [
            line for line in lines if line and not line.startswith(("#", "-r ")) and "==" not in line.split(";")[0]
        ]
        assert not loose, f"{name}: {loose}"


# Makefile -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("verb", "given", "look", "stop"),
    [
        ("demo", [], "", ""),
        ("demo", ["ARGS=-e 'pd_nic=a b'"], " -e 'pd_nic=a b'", " ARGS=\"-e 'pd_nic=a b'\""),
        ("demo-layerwise", [], " -e pd_connector=MooncakeLayerwiseConnector", ""),
        (
            "demo-layerwise",
            ["ARGS=-e pd_proxy_port=2000"],
            " -e pd_connector=MooncakeLayerwiseConnector -e pd_proxy_port=2000",
            ' ARGS="-e pd_proxy_port=2000"',
        ),
        ("demo", ["INVENTORY=inventories/1p1d"], "", ' INVENTORY="inventories/1p1d"'),
    ],
)
def test_what_a_demo_proposes_is_about_the_same_cluster(verb: str, given: list[str], look: str, stop: str) -> None:
    inventory = next((word.partition("=")[2] for word in given if word.startswith("INVENTORY=")), "inventories/2p1d")
    environ = {name: value for name, value in os.environ.items() if name not in ("ARGS", "INVENTORY", "MAKEFLAGS")}
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", verb, *given],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=environ,
    )
    hints = subprocess.run(
        ["sh", "-c", done.stdout.splitlines()[-1]], capture_output=True, text=True, check=True
    ).stdout
    run = f'-i "{inventory}" -e pd_rehearsal=true{look}'
    assert f"  look:  .venv/bin/ansible-playbook status.yml {run}\n" in hints
    assert f"  stop:  make demo-stop{stop}\n" in hints
