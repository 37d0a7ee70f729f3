# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Addresses of simulated chips: unique over hosts and chips, and the same wherever they are worked out."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import npus


def conf(number: int, generation: str = "a3", chips: int = 16) -> dict[str, str]:
    return dict(line.split("=") for line in npus.hccn_conf(number, generation, chips).splitlines())


def test_addresses_are_unique() -> None:
    """Over the subnets' edges too, and none is a gateway."""
    numbers = [*range(1, 600), npus.MAX_HOSTS]
    found = {value for number in numbers for key, value in conf(number).items() if key.startswith("address_")}
    gateways = {npus.gateway(number) for number in numbers}
    virtual = {npus.vnic_net(number) for number in numbers}
    assert len(found) == 16 * len(numbers)
    assert len(virtual) == len(numbers)
    assert not gateways & found
    assert not virtual & {npus.roce_net(number) for number in numbers}
    assert all(ipaddress.ip_address(address).is_private for address in found)


def test_a_gateway_is_in_its_chips_subnet() -> None:
    for number in (1, 250, 251, npus.MAX_HOSTS):
        own = conf(number)
        network = ipaddress.ip_network(f"{own['address_5']}/{own['netmask_5']}", strict=False)
        assert ipaddress.ip_address(own["gateway_5"]) in network
        assert own["netdetect_5"] == own["gateway_5"]


@pytest.mark.parametrize("number", [0, -1, npus.MAX_HOSTS + 1])
def test_no_address_is_made_up(number: int) -> None:
    with pytest.raises(ValueError, match=f"host number {number} is not in 1 to"):
        npus.roce_net(number)


def test_an_a5_needs_no_addresses() -> None:
    assert conf(1, "a5", 8) == {}
    assert "address * unset" in npus.host_file(1, "a5", 8)


def test_each_host_has_a_number_of_its_own(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    states = {name: tmp_path / name / "npu" for name in ("p1", "p2", "d1")}
    numbers = {}
    for name, state in states.items():
        numbers[name] = npus.claim(fleet, state)
        # Claimed, and not yet built: another run at the same time.
        assert npus.claim(fleet, tmp_path / "other") != numbers[name]
        npus.build(state, fleet, numbers[name], "a2", 8)
    assert len(set(numbers.values())) == 3
    for name, state in states.items():
        assert npus.number_of(state) == numbers[name]
        assert (fleet / npus.roce_net(numbers[name])).resolve() == state
        assert (fleet / npus.vnic_net(numbers[name])).resolve() == state
        assert (state / "fleet").resolve() == fleet
    npus.forget(states["p1"], fleet, numbers["p1"])
    assert not states["p1"].exists()
    assert not (fleet / npus.roce_net(numbers["p1"])).is_symlink()
    assert states["p2"].exists()


def test_what_was_ordered_stays(tmp_path: Path) -> None:
    state, fleet = tmp_path / "p1", tmp_path / "fleet"
    npus.build(state, fleet, 1, "a2", 8)
    (state / "faults").write_text("link 0 down\n")
    npus.build(state, fleet, 1, "a3", 16)
    assert (state / "faults").read_text() == "link 0 down\n"
    assert (state / "host").read_text().startswith("generation a3\nchips 16\n")


def test_a_host_that_was_never_built(tmp_path: Path) -> None:
    assert npus.number_of(tmp_path) is None
