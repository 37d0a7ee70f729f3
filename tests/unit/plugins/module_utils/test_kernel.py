# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Merging kernel parameters: nothing that others have reserved is lost."""

from __future__ import annotations

import pathlib

import pytest

from ansible_collections.ascend.pd_serving.plugins.module_utils import kernel


@pytest.mark.parametrize(
    ("texts", "merged"),
    [
        (("", ""), ""),
        (("7100-7115", "12321"), "7100-7115,12321"),
        (("7100-7107", "7108-7115"), "7100-7115"),
        (("36000-36015,60000-60031", "8080,36010-36020"), "8080,36000-36020,60000-60031"),
        (("8080\n", " 8080 , 8081"), "8080-8081"),
    ],
)
def test_ports_are_merged(texts: tuple[str, str], merged: str) -> None:
    assert kernel.merged_ports(*texts) == merged


@pytest.mark.parametrize("text", ["x", "1-", "70000", "0", "20-10", "1,,2"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(kernel.KernelError, match=r"port|range"):
        kernel.merged_ports(text)


@pytest.fixture
def host(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setattr(kernel, "parameter_path", lambda name: str(tmp_path / name))
    (tmp_path / kernel.RESERVED_PORTS).write_text("8080\n", encoding="ascii")
    (tmp_path / kernel.HUGEPAGES).write_text("0\n", encoding="ascii")
    return tmp_path


def test_others_ports_stay_and_a_second_run_changes_nothing(host: pathlib.Path) -> None:
    file = str(host / "90.conf")
    change = kernel.plan(file, "7100-7115,36000-36015", None)
    assert change.needed
    kernel.apply(change)
    assert (host / kernel.RESERVED_PORTS).read_text(encoding="ascii") == "8080,7100-7115,36000-36015".replace(
        "8080,7100-7115", "7100-7115,8080"
    )
    assert not kernel.plan(file, "7100-7115,36000-36015", None).needed


def test_a_second_cluster_adds_its_ports(host: pathlib.Path) -> None:
    file = str(host / "90.conf")
    kernel.apply(kernel.plan(file, "7100-7115", None))
    kernel.apply(kernel.plan(file, "7300-7315", 16))
    text = pathlib.Path(file).read_text(encoding="ascii")
    assert "7100-7115,7300-7315,8080" in text
    assert "vm.nr_hugepages = 16" in text
    assert not kernel.plan(file, "7100-7115", 16).needed


def test_fewer_hugepages_than_asked_for_are_no_success(host: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = kernel.plan(str(host / "90.conf"), None, 16)
    monkeypatch.setattr(kernel, "read", lambda _path: "3\n")
    with pytest.raises(kernel.KernelError, match=r"vm.nr_hugepages: the kernel gave 3 of 16"):
        kernel.apply(change)
    assert not (host / "90.conf").exists()


def test_after_a_reboot_the_files_value_is_merged_again(host: pathlib.Path) -> None:
    file = str(host / "90.conf")
    kernel.apply(kernel.plan(file, "7100-7115", None))
    (host / kernel.RESERVED_PORTS).write_text("9000\n", encoding="ascii")
    change = kernel.plan(file, "7100-7115", None)
    assert change.needed
    assert change.values[kernel.RESERVED_PORTS] == "7100-7115,8080,9000"
