# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""hccn.conf and endpoint files: only addresses that are there, nothing replaced silently."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.ascend.pd_serving.plugins.module_utils import npu_files as files
from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import hccn_conf
from ansible_collections.ascend.pd_serving.plugins.modules import npu_files

FIB_TRIE = """Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 127.0.0.1
        /32 host LOCAL
     +-- 192.0.2.0/24 2 0 2
        |-- 192.0.2.0
           /24 link UNICAST
        |-- 192.0.2.80
           /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
        |-- 198.51.100.7
           /32 host LOCAL
"""


def call(root: Path, **args: Any) -> dict[str, Any]:
    out = io.StringIO()
    with (
        patch_module_args({"root": str(root), **args}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        npu_files.main()
    result: dict[str, Any] = json.loads(out.getvalue())
    return result


def endpoint(chip: int | str, address: Any, folder: str = "/etc/hixlep") -> dict[str, str]:
    content = {
        "version": "1.3",
        "net_instance_id": "superpod_0",
        "endpoint_list": [{"protocol": "roce", "comm_id": address, "placement": "host"}],
    }
    return {"path": f"{folder}/ub_endpoint_npu_{chip}.json", "content": json.dumps(content, indent=2)}


def has(root: Path, *addresses: str) -> None:
    path = root / files.REHEARSED_ADDRESSES.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(addresses))


def test_addresses_of_a_host(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/fib_trie").write_text(FIB_TRIE)
    assert files.local_addresses(str(tmp_path)) == {"192.0.2.80", "198.51.100.7"}


def test_addresses_of_this_machine() -> None:
    assert "127.0.0.1" not in files.local_addresses()
    assert files.card_address("lo") == "127.0.0.1"
    assert files.card_address("no-such-card") is None


def test_cards_with_rdma_in_numerical_order(tmp_path: Path) -> None:
    """As text 192.0.2.100 comes before 192.0.2.9."""
    for device, card in (("hrn5_0", "roce0"), ("hrn5_1", "roce1"), ("hrn5_2", "down")):
        (tmp_path / f"infiniband/{device}/device/net/{card}").mkdir(parents=True)
    given = {"roce0": "192.0.2.100", "roce1": "192.0.2.9", "down": None}
    assert files.rdma_addresses(str(tmp_path), given.get) == ["192.0.2.9", "192.0.2.100"]
    assert files.rdma_addresses(str(tmp_path / "nothing")) == []


def test_endpoint_files_are_written_once(tmp_path: Path) -> None:
    has(tmp_path, "192.0.2.80", "192.0.2.81")
    wanted = [endpoint(4, "192.0.2.80"), endpoint(5, "192.0.2.81")]
    first = call(tmp_path, endpoint_files=wanted)
    assert first["changed"] and set(first["files"].values()) == {"written"}
    path = tmp_path / "etc/hixlep/ub_endpoint_npu_4.json"
    assert json.loads(path.read_text())["endpoint_list"][0]["comm_id"] == "192.0.2.80"
    assert path.stat().st_mode & 0o777 == 0o644
    assert not call(tmp_path, endpoint_files=wanted)["changed"]
    # Another layout says the same.
    path.write_text(json.dumps(json.loads(path.read_text())))
    assert not call(tmp_path, endpoint_files=wanted)["changed"]


def test_an_address_that_the_host_does_not_have(tmp_path: Path) -> None:
    """All faults at once, nothing written, and a proposal that nobody takes for a fact."""
    has(tmp_path, "192.0.2.80", "192.0.2.9", "192.0.2.1")
    wanted = [endpoint(0, "192.0.2.81"), endpoint(1, "192.0.2.80"), endpoint(2, "192.0.2.80"), endpoint(3, "-.-.-.-")]
    result = call(tmp_path, endpoint_files=wanted, chips=[1, 0], node_ip="192.0.2.1")
    assert result["failed"]
    said, fix = result["msg"].split("\nFix: ")
    first, *lines = said.splitlines()
    assert first == "no file was written." and len(lines) == 3
    assert fix.splitlines()[-3:] == ["pd_roce_addresses:", "  0: 192.0.2.9", "  1: 192.0.2.80"]
    assert "hccn_overwrite" not in fix
    assert (
        "npu_0.json: comm_id 192.0.2.81 is no address of this host (it has 192.0.2.1, 192.0.2.9, 192.0.2.80)"
        in lines[0]
    )
    assert "npu_2.json" in lines[1] and "npu_1.json too" in lines[1]
    assert "'-.-.-.-' is no IPv4 address" in lines[2]
    assert result["proposal"] == {"0": "192.0.2.9", "1": "192.0.2.80"}
    assert not (tmp_path / "etc").exists()


def test_no_proposal_where_the_numbers_differ(tmp_path: Path) -> None:
    has(tmp_path, "192.0.2.80")
    assert call(tmp_path, chips=[0, 1])["proposal"] == {}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (endpoint("x", "192.0.2.80"), "ub_endpoint_npu_<physical id>.json"),
        ({"path": "/e/ub_endpoint_npu_0.json", "content": "{"}, "npu_0.json"),
        ({"path": "/e/ub_endpoint_npu_0.json", "content": "{}"}, "no endpoint_list"),
        ({"path": "/e/ub_endpoint_npu_0.json", "content": '{"endpoint_list": [1]}'}, "no IPv4 address"),
    ],
)
def test_files_that_no_driver_takes(tmp_path: Path, entry: dict[str, str], says: str) -> None:
    result = call(tmp_path, endpoint_files=[entry])
    assert result["failed"] and says in result["msg"]


def test_what_says_something_else_is_shown_and_kept(tmp_path: Path) -> None:
    call(tmp_path, endpoint_files=[endpoint(0, "192.0.2.80")])
    path = tmp_path / "etc/hixlep/ub_endpoint_npu_0.json"
    before = path.read_text()
    refused = call(tmp_path, endpoint_files=[endpoint(0, "192.0.2.81"), endpoint(1, "192.0.2.82")])
    assert refused["failed"]
    assert '-      "comm_id": "192.0.2.80"' in refused["msg"] and '+      "comm_id": "192.0.2.81"' in refused["msg"]
    assert path.read_text() == before
    assert not (tmp_path / "etc/hixlep/ub_endpoint_npu_1.json").exists(), "all or nothing"

    replaced = call(tmp_path, endpoint_files=[endpoint(0, "192.0.2.81")], overwrite=True)
    assert replaced["changed"] and replaced["files"] == {str(path): "replaced"}
    (backup,) = replaced["backups"]
    assert Path(backup).read_text() == before
    assert "192.0.2.81" in path.read_text()


CHIPS = {
    "0": {"address": "192.0.2.80", "netmask": "255.255.255.0", "gateway": "192.0.2.1"},
    "1": {"address": "192.0.2.81", "netmask": "255.255.255.0", "send_arp_status": 1},
}


def test_hccn_conf_is_written_when_asked(tmp_path: Path) -> None:
    assert not call(tmp_path)["changed"]
    path = tmp_path / "etc/hccn.conf"
    assert not path.exists()
    assert call(tmp_path, hccn_conf=CHIPS)["changed"]
    assert path.read_text().splitlines() == [
        "address_0=192.0.2.80",
        "netmask_0=255.255.255.0",
        "gateway_0=192.0.2.1",
        "address_1=192.0.2.81",
        "netmask_1=255.255.255.0",
        "send_arp_status_1=1",
    ]
    assert not call(tmp_path, hccn_conf=CHIPS)["changed"]


def test_hccn_conf_keeps_what_others_wrote(tmp_path: Path) -> None:
    path = tmp_path / "etc/hccn.conf"
    path.parent.mkdir()
    path.write_text("address_1=192.0.2.99\nnetmask_1=255.255.255.0\ntls_1=1\naddress_7=192.0.2.87\n")
    refused = call(tmp_path, hccn_conf=CHIPS)
    assert refused["failed"] and "-address_1=192.0.2.99" in refused["msg"]
    assert "192.0.2.99" in path.read_text()
    assert call(tmp_path, hccn_conf=CHIPS, overwrite=True)["changed"]
    found = hccn_conf.parse(path.read_text())["chips"]
    assert found["1"]["address"] == "192.0.2.81"
    assert found["1"]["tls"] == "1" and found["7"]["address"] == "192.0.2.87"


def test_hccn_conf_that_is_a_folder(tmp_path: Path) -> None:
    """What docker leaves behind where a mounted file was missing."""
    (tmp_path / "etc/hccn.conf").mkdir(parents=True)
    result = call(tmp_path, hccn_conf=CHIPS, overwrite=True)
    assert result["failed"] and "is a folder" in result["msg"] and "docker" in result["msg"]


def test_wrong_values_of_hccn_conf_are_all_named(tmp_path: Path) -> None:
    wrong = {
        "x": {"address": "192.0.2.1", "netmask": "255.255.255.0"},
        "0": {"address": "192.0.2.300", "netmask": "255.255.255.0", "mtu": 9000},
        "1": {"address": "192.0.2.80"},
        "2": {"address": "192.0.2.1", "netmask": "255.255.255.0", "send_arp_status": 7},
        "3": {"address": "192.0.2.83", "netmask": "255.255.0.255"},
    }
    result = call(tmp_path, hccn_conf=wrong)
    assert result["failed"]
    for says in (
        "'x' is no physical id",
        "192.0.2.300",
        "mtu is no key",
        "chip 1: give at least",
        "0 or 1",
        "have one address",
        "chip 3: netmask '255.255.0.255' is no netmask",
    ):
        assert says in result["msg"], result["msg"]
    assert not (tmp_path / "etc").exists()


def test_check_mode_writes_nothing(tmp_path: Path) -> None:
    result = call(tmp_path, hccn_conf=CHIPS, endpoint_files=[endpoint(0, "192.0.2.80")], _ansible_check_mode=True)
    assert result["changed"] and set(result["files"].values()) == {"written"}
    assert not (tmp_path / "etc").exists()


def test_an_empty_file_says_nothing_that_could_be_lost(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hccn.conf").write_text("\n")
    assert call(tmp_path, hccn_conf=CHIPS)["files"] == {str(tmp_path / "etc/hccn.conf"): "written"}
