# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The container against the guide's own docker run, flag by flag."""

from __future__ import annotations

import typing as t

import pytest

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Source,
    as_json,
    base,
    one_host,
    planned,
    told,
)

CHIPS = [f"--device=/dev/davinci{chip}" for chip in range(16)]
NODES = ["--device=/dev/davinci_manager", "--device=/dev/devmm_svm", "--device=/dev/hisi_hdc"]
DRIVER = [
    "-v=/usr/local/dcmi:/usr/local/dcmi",
    "-v=/usr/local/Ascend/driver/tools/hccn_tool:/usr/local/Ascend/driver/tools/hccn_tool:ro",
    "-v=/usr/local/bin/npu-smi:/usr/local/bin/npu-smi",
    "-v=/usr/local/Ascend/driver/lib64/:/usr/local/Ascend/driver/lib64/",
    "-v=/usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info",
    "-v=/etc/ascend_install.info:/etc/ascend_install.info",
    "-v=/etc/hccn.conf:/etc/hccn.conf:ro",
]
CACHE = "/mnt/sfs_turbo/.cache:/root/.cache"


def container(source: Source, instance: str = "p-a", host: str = "p1") -> dict[str, t.Any]:
    written = as_json(source)
    found = [p for p in written["placements"] if (p["instance"], p["host"]) == (instance, host)]
    assert len(found) == 1
    made: dict[str, t.Any] = found[0]["container"]
    return made


def flags(made: dict[str, t.Any]) -> list[str]:
    """What `docker run` would be given."""
    return [
        f"--net={made['network']}",
        f"--shm-size={made['shm_size']}",
        *(["--privileged"] if made["privileged"] else []),
        *(f"--ulimit={limit}" for limit in made["ulimits"]),
        *(f"--cap-add={capability}" for capability in made["capabilities"]),
        *(f"--device={device}" for device in made["devices"]),
        *(f"-v={mount}" for mount in made["mounts"]),
        *(f"-e={name}={value}" for name, value in made["env"].items()),
    ]


# What the launcher reads and writes, at the same path on both sides.
OWN = [f"-v={folder}/pd/pd-pd-p-a:{folder}/pd/pd-pd-p-a" for folder in ("/opt/pd_serving", "/var/log/pd_serving")]


def test_a3_as_the_guide_has_it() -> None:
    """Differences on purpose: the -a3 build of the image, the model's own folder, read-only, and the unit's folders."""
    made = container(base(all={"pd_mounts": [CACHE]}))
    model = "-v=/models/DeepSeek-r1_w8a8_mtp:/models/DeepSeek-r1_w8a8_mtp:ro"
    guide = ["--net=host", "--shm-size=1g", *CHIPS, *NODES, *DRIVER, f"-v={CACHE}"]
    assert flags(made) == [*guide, model, *OWN]
    assert made["image"] == "quay.io/ascend/vllm-ascend:v0.23.0-a3"
    assert made["name"] == "pd-pd-p-a"


def test_a2() -> None:
    made = container(
        one_host(prefill={"pd_chips": list(range(8)), "pd_tp_size": 4}, decode={"pd_chips": [7]}), "p-a", "h1"
    )
    model = "-v=/models/m:/models/m:ro"
    assert flags(made) == ["--net=host", "--shm-size=1g", *CHIPS[:8], *NODES, *DRIVER, model, *OWN]
    assert made["image"] == "quay.io/ascend/vllm-ascend:v0.23.0"


def test_hccn_is_always_there() -> None:
    """FAB-01, vllm-ascend#7711: without both the first token is wrong and then one token repeats."""
    for source, instance, host in ((base(), "d-a", "d2"), (one_host(), "d-a", "h1")):
        mounts = container(source, instance, host)["mounts"]
        for path in ("/etc/hccn.conf", "/usr/local/Ascend/driver/tools/hccn_tool"):
            assert f"{path}:{path}:ro" in mounts


@pytest.mark.parametrize(
    ("mapped", "chips", "devices"),
    [
        (None, [4, 5, 6, 7], [4, 5, 6, 7]),
        (None, [7, 5, 6, 4], [4, 5, 6, 7]),
        ([0, 3, 4, 7], [4, 7], [0, 3, 4, 7]),
        ([7, 4, 3, 0], [4, 7], [0, 3, 4, 7]),
    ],
)
def test_devices_are_the_mapped_chips(mapped: t.Any, chips: list[int], devices: list[int]) -> None:
    source = one_host(
        prefill={"pd_chips": chips, "pd_mapped_chips": mapped, "pd_dp_size": 1, "pd_tp_size": 2},
        decode={"pd_chips": [1], "pd_dp_size": 1},
    )
    made = container(source, "p-a", "h1")
    assert made["devices"][: len(devices)] == [f"/dev/davinci{chip}" for chip in devices]
    assert made["devices"][len(devices) :] == ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"]


@pytest.mark.parametrize(
    ("path", "mounts", "own"),
    [
        ("/models/m", [], ["/models/m:/models/m:ro"]),
        ("/models/m/", [], ["/models/m:/models/m:ro"]),
        ("/models/m", ["/data/m:/models/m:ro"], []),
        ("/models/m", ["/data:/models"], []),
        ("/models/m", ["/data:/models/"], []),
        ("/models/m", ["/data:/models/m2"], ["/models/m:/models/m:ro"]),
        ("/models/m", ["/models/m:/other"], ["/models/m:/models/m:ro"]),
    ],
)
def test_the_model_is_mounted_once(path: str, mounts: list[str], own: list[str]) -> None:
    made = container(one_host(host={"pd_model_path": path, "pd_mounts": mounts}), "p-a", "h1")
    assert made["mounts"][7:-2] == [*mounts, *own]


def test_a_given_mount_replaces_the_built_in_one_of_its_target() -> None:
    """Some hosts have npu-smi in /usr/local/sbin; docker refuses two mounts of one target."""
    source = base(p1={"pd_mounts": ["/usr/local/sbin/npu-smi:/usr/local/bin/npu-smi"]})
    targets = [mount.split(":")[1] for mount in container(source)["mounts"]]
    assert targets.count("/usr/local/bin/npu-smi") == 1


def test_names_hold_cluster_and_instance() -> None:
    source = base(all={"pd_cluster_name": "demo-2"})
    assert [p["container"]["name"] for p in as_json(source)["placements"]] == [
        "pd-demo-2-p-a",
        "pd-demo-2-p-b",
        "pd-demo-2-d-a",
        "pd-demo-2-d-a",
    ]


def test_two_containers_cannot_map_one_chip() -> None:
    """vllm-ascend#632: a container that is not privileged has its cards for itself; the other one gets -8020."""
    everything = {"pd_mapped_chips": list(range(8))}
    plan = planned(one_host(prefill=everything, decode=everything))
    assert plan.errors, told(plan.findings)


def test_processes_without_a_container_share_what_they_see() -> None:
    everything = {"pd_mapped_chips": list(range(8))}
    plan = planned(one_host(prefill=everything, decode=everything, host={"pd_runtime": "process"}))
    assert not plan.findings, told(plan.findings)
