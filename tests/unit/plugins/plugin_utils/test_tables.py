# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Tables of hardware and versions, row by row."""

from __future__ import annotations

import json
import pathlib
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import tables
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.inventory import image_tag
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.model import Versions

NIXL = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"
ABORT = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
V1, HYBRID = "MooncakeConnectorV1", "MooncakeHybridConnector"


@pytest.mark.parametrize(
    ("version", "cann", "mooncake"),
    [
        ("v0.11.0", "8.3.RC2", "0.3.7.post2"),
        ("v0.12.0rc1", "8.3.RC2", "0.3.7.post2"),
        ("v0.13.0", "8.5.0", "0.3.7.post2"),
        ("v0.14.0rc1", "8.5.0", "0.3.7.post2"),
        ("v0.15.0", "8.5.0", "0.3.8.post1"),
        ("v0.16.0", "8.5.1", "0.3.8.post1"),
        ("v0.17.0rc1", "8.5.1", "0.3.8.post1"),
        ("v0.18.0", "8.5.1", "0.3.9"),
        ("v0.19.1rc1", "8.5.1", "0.3.8.post1"),
        ("v0.20.2rc1", "9.0.0", "0.3.8.post1"),
        ("v0.21.0rc1", "9.0.0", "0.3.9"),
        ("v0.22.1rc1", "9.0.0", "0.3.9"),
        ("v0.23.0", "9.1.0", "0.3.11.post1"),
        ("v0.24.0rc1", "9.0.1", "0.3.11.post1"),
        ("v0.25.1rc1", "9.0.1", "0.3.11.post1"),
        ("v0.26.0rc1", "9.1.0", "0.3.11.post1"),
    ],
)
def test_what_an_image_holds(version: str, cann: str, mooncake: str) -> None:
    assert tables.versions(version) == Versions(version, cann, mooncake, None, known=True)


@pytest.mark.parametrize(
    "version", ["v0.10.0", "v0.27.0", "v0.2", "v1.23.0", "main", "nightly-0.23", "", "v", "latest"]
)
def test_versions_that_are_not_in_the_table(version: str) -> None:
    assert tables.versions(version) == Versions(version, None, None, None, known=False)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("v0.23", "v0.23.0"),
        ("0.22", "v0.22.1rc1"),
        ("v0.26", ""),
        ("v0.99", None),
        ("v0.23.0", None),
        ("v0.23rc1", None),
        ("main", None),
    ],
)
def test_the_release_that_a_short_version_means(version: str, release: str | None) -> None:
    assert tables.release_of(version) == release


def test_releases_are_of_their_row() -> None:
    for row in tables._load("versions.yml")["images"]:
        release = row.get("release")
        assert release is None or release.startswith(f"v{row['match']}."), row


def test_the_default_is_in_the_table() -> None:
    assert tables.default_version() == "v0.23.0"
    assert tables.versions(tables.default_version()).known


@pytest.mark.parametrize(
    ("version", "key"),
    [
        ("v0.23.0", (0, 23, 0)),
        ("0.20.2rc1", (0, 20, 2)),
        ("0.3.7.post2", (0, 3, 7)),
        ("8.3.RC2", (8, 3)),
        ("9", (9,)),
        ("main", None),
        ("nightly-v0.23", None),
        ("", None),
    ],
)
def test_version_key(version: str, key: tuple[int, ...] | None) -> None:
    assert tables.version_key(version) == key


@pytest.mark.parametrize(
    ("version", "limit", "expected"),
    [
        ("v0.9.0", "0.18", True),
        ("v0.17.9", "0.18", True),
        ("v0.18.0", "0.18", False),
        ("v0.18.0rc1", "0.18", False),
        ("v1.0", "0.18", False),
        ("0.3.7.post2", "0.3.8", True),
        ("0.3.10", "0.3.8", False),
        ("8.2.RC1", "8.3", True),
        ("8.10", "8.3", False),
        ("9.1", "9.1.0", False),
        ("9", "9.1.0", True),
        ("9.1.0.1", "9.1.0", False),
        (None, "0.18", False),
        ("main", "0.18", False),
    ],
)
def test_before_compares_numbers_not_text(version: str | None, limit: str, expected: bool) -> None:
    assert tables.before(version, limit) is expected


@pytest.mark.parametrize(
    ("version", "connector", "names"),
    [
        ("v0.11.0", V1, [NIXL]),
        ("v0.13.0", HYBRID, [NIXL]),
        ("v0.17.0", V1, [NIXL]),
        ("v0.18.0", V1, [ABORT]),
        ("v0.19.1rc1", HYBRID, [ABORT]),
        ("v0.20.2rc1", V1, [ABORT]),
        ("v0.20.2rc1", HYBRID, [ABORT, NIXL]),
        ("v0.21.0rc1", HYBRID, [ABORT, NIXL]),
        ("v0.21.0rc1", V1, [ABORT]),
        ("v0.22.1rc1", HYBRID, [ABORT]),
        ("v0.26.0", V1, [ABORT]),
        ("main", V1, [ABORT, NIXL]),
        ("v0.99.0", HYBRID, [ABORT, NIXL]),
    ],
)
def test_names_of_the_release_timeout(version: str, connector: str, names: list[str]) -> None:
    assert tables.kv_release_timeout_names(tables.versions(version), connector) == names


@pytest.mark.parametrize(
    ("version", "differ", "workers"),
    [
        ("v0.11.0", True, False),
        ("v0.12.0rc1", True, False),
        ("v0.13.0", False, False),
        ("v0.20.2rc1", False, False),
        ("v0.21.0rc1", False, True),
        ("v0.26.0", False, True),
    ],
)
def test_what_changed_when(version: str, differ: bool, workers: bool) -> None:
    assert tables.engine_id_must_differ(tables.versions(version)) is differ
    assert tables.proxy_has_workers(tables.versions(version)) is workers


def _versions(**known: str | None) -> Versions:
    return Versions("v0.23.0", known.get("cann"), known.get("mooncake"), None, known=True)


@pytest.mark.parametrize(("cann", "ports"), [("8.2.RC1", 16), ("8.3.RC2", 32), ("9.1.0", 32), (None, 32)])
def test_hccl_ports(cann: str | None, ports: int) -> None:
    assert tables.hccl_port_count(_versions(cann=cann)) == ports


@pytest.mark.parametrize(
    ("mooncake", "reserve", "ports"),
    [
        ("0.3.7.post2", "documented", 1000),
        ("0.3.7.post2", "measured", 1000),
        ("0.3.8.post1", "documented", 1000),
        ("0.3.8.post1", "measured", 100),
        ("0.3.11.post1", "measured", 100),
        pytest.param(
            None,
            "measured",
            1000,
        ),
    ],
)
def test_adxl_ports_per_chip(mooncake: str | None, reserve: str, ports: int) -> None:
    assert tables.adxl_ports_per_chip(_versions(mooncake=mooncake), reserve) == ports


@pytest.mark.parametrize(("chips", "kv_base"), [(16, 36000), (8, 28000), (4, 28000), (1, 28000), (32, 52000)])
def test_default_kv_base(chips: int, kv_base: int) -> None:
    assert tables.default_kv_base(chips) == kv_base


@pytest.mark.parametrize(
    ("environment", "first"),
    [
        ({}, 20000),
        ({"ASCEND_BASE_PORT": "40000"}, 40000),
        ({"ASCEND_BASE_PORT": 40000}, 40000),
        ({"ASCEND_BASE_PORT": None}, 20000),
        ({"ASCEND_BASE_PORT": "many"}, 20000),
        ({"ASCEND_BASE_PORT": ""}, 20000),
        pytest.param(
            {"ASCEND_BASE_PORT": "²"},
            20000,
        ),
    ],
)
def test_adxl_base(environment: dict[str, t.Any], first: int) -> None:
    assert tables.adxl_base(environment, _versions(mooncake="0.3.9")) == first


@pytest.mark.parametrize(
    ("mooncake", "environment", "expected"),
    [
        ("0.3.11.post1", {}, (15000, 17000, "MC_MIN_RPC_PORT")),
        ("0.3.11.post1", {"MC_MIN_RPC_PORT": 36000, "MC_MAX_RPC_PORT": 36500}, (36000, 36500, "MC_MIN_RPC_PORT")),
        ("0.3.11.post1", {"MC_MIN_PRC_PORT": 36000, "MC_MAX_PRC_PORT": 36500}, (36000, 36500, "MC_MIN_PRC_PORT")),
        ("0.3.11.post1", {"MC_MAX_PRC_PORT": 16000, "MC_MAX_RPC_PORT": 18000}, (15000, 18000, "MC_MIN_RPC_PORT")),
        (None, {"MC_MIN_PRC_PORT": 16000}, (16000, 17000, "MC_MIN_PRC_PORT")),
        ("0.3.9", {"MC_MIN_RPC_PORT": 36000, "MC_MAX_RPC_PORT": 36500}, (15000, 17000, "MC_MIN_RPC_PORT")),
        ("0.3.9", {"MC_MIN_PRC_PORT": 36000, "MC_MAX_PRC_PORT": 36500}, (36000, 36500, "MC_MIN_PRC_PORT")),
        ("0.3.7.post2", {"MC_MAX_RPC_PORT": 20000, "MC_MAX_PRC_PORT": "18000"}, (15000, 18000, "MC_MIN_RPC_PORT")),
    ],
)
def test_transfer_engine_ports(
    mooncake: str | None, environment: dict[str, t.Any], expected: tuple[int, int, str]
) -> None:
    assert tables.transfer_engine_ports(environment, _versions(mooncake=mooncake)) == expected


@pytest.mark.parametrize("version", ["v0.11.0", "v0.17.0", "v0.18.0", "v0.21.0", "v0.23.0", "main"])
@pytest.mark.parametrize("connector", sorted(tables.TRANSPORTS))
def test_the_name_that_no_release_reads_is_never_planned(version: str, connector: str) -> None:
    """docs/differences.md promises it."""
    names = tables.kv_release_timeout_names(tables.versions(version), connector)
    assert names and "VLLM_MOONCAKE_CONNECTOR_TIMEOUT" not in names


def test_mooncake_before_0_3_8_does_not_move_its_adxl_ports() -> None:
    assert tables.adxl_base({"ASCEND_BASE_PORT": 40000}, _versions(mooncake="0.3.7.post2")) == 20000
    assert tables.adxl_base({"ASCEND_BASE_PORT": 40000}, _versions(mooncake=None)) == 40000


# Hardware -----------------------------------------------------------------------------------------------------------


def test_hardware() -> None:
    assert tables.hardware_names() == ["a2", "a3", "a5"]
    for name, chips, suffix in (("a2", 8, ""), ("a3", 16, "a3")):
        entry = tables.hardware(name)
        assert entry is not None
        assert (entry.name, entry.chips_per_node, entry.image_suffix) == (name, chips, suffix)
        assert entry.device_nodes == ("davinci_manager", "devmm_svm", "hisi_hdc")
        assert entry.privileged is False


def test_every_mount_has_a_type_to_check() -> None:
    """docker makes a directory of a missing source, so preflight must know what to look for."""
    by_fabric = {tables.fabric_fact("route_conf"), *tables.fabric_fact("older_files")}
    by_hand = {"/usr/lib64/libhrn5-rdmav34.so", "/etc/libibverbs.d/hrn5.driver", "/usr/local/bin/hiroce5"}
    for name in tables.hardware_names():
        entry = tables.hardware(name)
        assert entry is not None
        sources = {mount.split(":")[0].rstrip("/") for mount in entry.mounts}
        assert set(entry.mount_types) == sources | (by_fabric | by_hand if name == "a5" else set())
        assert set(entry.mount_types.values()) == {"file", "directory"}


def test_hardware_of_850_850e_and_950() -> None:
    entry = tables.hardware("a5")
    assert entry is not None
    assert (entry.chips_per_node, entry.image_suffix, entry.privileged) == (8, "a5", True)
    assert entry.device_nodes == ("davinci_manager", "hisi_hdc", "ummu", "uburma")


@pytest.mark.parametrize("name", ["a5-", "A3", "", "a4"])
def test_hardware_that_is_not_there(name: str) -> None:
    assert tables.hardware(name) is None


@pytest.mark.parametrize(
    ("version", "suffix", "image"),
    [
        ("v0.23.0", "a3", "quay.io/ascend/vllm-ascend:v0.23.0-a3"),
        ("v0.18.0", "", "quay.io/ascend/vllm-ascend:v0.18.0"),
    ],
)
def test_default_image(version: str, suffix: str, image: str) -> None:
    assert tables.default_image(version, suffix) == image


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("quay.io/ascend/vllm-ascend:v0.23.0", ("v0.23.0", "")),
        ("quay.io/ascend/vllm-ascend:v0.23.0-a3", ("v0.23.0", "a3")),
        ("quay.io/ascend/vllm-ascend:v0.21.0rc1-a3-openeuler", ("v0.21.0rc1", "a3-openeuler")),
        ("registry.example:5000/x/vllm-ascend:v0.23.0-a3", ("v0.23.0", "a3")),
        ("vllm-ascend:v0.23.0-a3@sha256:00", ("v0.23.0", "a3")),
        ("registry.example:5000/x/vllm-ascend", None),
        ("registry.example:5000/v0.23.0/vllm-ascend", None),
        ("vllm-ascend@sha256:00", None),
        ("vllm-ascend:latest", None),
        ("vllm-ascend:nightly-v0.23.0", None),
        ("team/pd:2026-11", None),
    ],
)
def test_image_tag(image: str, tag: tuple[str, str] | None) -> None:
    assert image_tag(image) == tag


SIMULATOR = pathlib.Path(__file__).resolve().parents[4] / "roles" / "rehearsal" / "files" / "vllm_sim"
# Types in the simulator's parser by kind in the planner's table; a choice is text here.
TYPES: dict[str, set[str]] = {
    "flag": {"flag", "bool"},
    "integer": {"int"},
    "number": {"float"},
    "size": {"size"},
    "size-or-auto": {"size_or_auto"},
    "json": {"object"},
    "json-list": {"json"},
    "words": {"str+", "int+"},
    "text": {"str", "str?", "choice"},
}


def test_the_option_table_and_the_simulated_parser_agree() -> None:
    """The planner's kinds and the parser that a rehearsal meets come from one vLLM release."""
    parser = json.loads((SIMULATOR / "vllm_options_0.23.0.json").read_text(encoding="utf-8"))["options"]
    types = {name[2:]: "choice" if isinstance(kind, list) else kind for name, kind in parser.items()}
    kinds = {name: kind for kind in tables.VLLM_OPTION_KINDS for name in tables.vllm_options(kind)}
    assert set(types) == set(kinds)
    assert {name for name, kind in kinds.items() if types[name] not in TYPES[kind]} == set()
