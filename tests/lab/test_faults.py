# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""One fault on one host: one message that names both, the others unharmed, and a rerun that completes the work.

A refusal changes nothing, which each test asserts, so that several of them share one rerun.
"""

from __future__ import annotations

import contextlib
import copy
import typing as t

import pytest

from .conftest import ARCHIVE, IMAGE, Cluster, Deployed, Lab, Run, inventory, task_started
from .test_site import assert_as_planned

OTHERS = ("p1", "d1")
STOP_DOCKER = "systemctl stop docker.socket docker"
# systemd counts the starts, and these tests make many.
START_DOCKER = "systemctl reset-failed docker.service docker.socket; systemctl start docker"


@contextlib.contextmanager
def others_unharmed(lab: Lab, *hosts: str) -> t.Iterator[None]:
    before = lab.ids(*hosts)
    yield
    assert lab.ids(*hosts) == before


def refusal(run: Run, host: str, *words: str) -> None:
    """The run failed because of this host only, said all of this, and changed nothing anywhere."""
    said = run.refusals()
    assert run.rc != 0 and list(said) == [host], said
    for word in words:
        assert word in said[host], said[host]
    failed = [event for event in run.events if event["event"] in ("runner_on_failed", "runner_on_unreachable")]
    assert len(failed) == 1, "one message"
    assert run.changed() == {}


def repaired(lab: Lab, deployed: Deployed) -> Run:
    """A rerun completes the work, and touches neither prefill nor the proxy."""
    with others_unharmed(lab, "p1"):
        run = deployed.cluster.site()
    assert lab.complete(deployed.url)
    return run


@pytest.fixture(scope="module")
def image_runs(lab: Lab, deployed: Deployed) -> dict[str, Run]:
    """d2 has no image, and each run a reason why it cannot get it. The last one can."""
    lab.sh("d2", f"docker rm -f pd-pd-decode; docker rmi {IMAGE}")
    lab.sh(
        "d2", f"head -c 20000000 {ARCHIVE} > /var/tmp/cut.tar; gzip -1 < {ARCHIVE} | head -c 9000000 > /var/tmp/cut.tgz"
    )
    runs = {}
    with others_unharmed(lab, *OTHERS):
        for name in ("/srv/images/none.tar", "/var/tmp/cut.tar", "/var/tmp/cut.tgz"):
            runs[name] = deployed.cluster.run("site.yml", image_archive=name)
        runs["pull"] = deployed.cluster.run("site.yml", image_archive="")
        lab.sh("d2", f"{STOP_DOCKER}; mount -t tmpfs -o size=20m tmpfs /var/lib/docker; {START_DOCKER}")
        runs["no space"] = deployed.cluster.run("site.yml")
        lab.sh("d2", f"{STOP_DOCKER}; umount /var/lib/docker; {START_DOCKER}")
    runs["repaired"] = repaired(lab, deployed)
    return runs


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/srv/images/none.tar", (IMAGE, "/srv/images/none.tar does not exist", "image_archive")),
        ("/var/tmp/cut.tar", (IMAGE, "/var/tmp/cut.tar is damaged or cut off", "image_archive")),
        # Only loading shows that a packed archive is cut off.
        ("/var/tmp/cut.tgz", (IMAGE, "/var/tmp/cut.tgz", "image_archive")),
        # The lab has no way out.
        ("pull", (f"cannot pull {IMAGE}", "image_mirror", "image_archive")),
        ("no space", ("does not fit", "/var/lib/docker", ARCHIVE)),
    ],
)
def test_an_image_that_cannot_be_had(image_runs: dict[str, Run], name: str, words: tuple[str, ...]) -> None:
    refusal(image_runs[name], "d2", *words)


def test_an_image_that_is_there_again_completes_the_work(image_runs: dict[str, Run]) -> None:
    assert set(image_runs["repaired"].changed()) == {"d1", "d2"}


def test_the_docker_daemon_is_down(lab: Lab, deployed: Deployed) -> None:
    lab.sh("d2", STOP_DOCKER)
    with others_unharmed(lab, *OTHERS):
        refusal(deployed.cluster.run("site.yml"), "d2", "docker", "systemctl start docker")
        run = deployed.cluster.run("site.yml", preflight_gate="off")
        assert run.rc != 0 and "systemctl status docker" in run.failures()["d2"]
    lab.sh("d2", START_DOCKER)
    repaired(lab, deployed)


def test_the_docker_daemon_dies_under_what_serves(lab: Lab, deployed: Deployed) -> None:
    """One cause, one message: the engines that go on serving without it are no strangers on their ports."""
    lab.sh("d2", "kill -9 $(pidof dockerd); systemctl stop docker.socket docker")
    assert lab.complete(deployed.url)
    run = deployed.cluster.run("site.yml")
    refusal(run, "d2", "[docker]", "systemctl start docker")
    assert "Preflight: 1 error;" in run.stdout
    status = deployed.cluster.run("status.yml")
    assert status.rc != 0 and "systemctl start docker" in status.failures()["p1"]
    stop = deployed.cluster.run("stop.yml", limit="d2")
    assert stop.rc != 0 and "what serves there goes on" in stop.failures()["d2"]
    assert lab.complete(deployed.url)
    lab.sh("d2", START_DOCKER)  # which ends what ran
    repaired(lab, deployed)


def test_another_runtime_is_refused_while_the_cluster_runs(lab: Lab, deployed: Deployed) -> None:
    with others_unharmed(lab, "p1", "d1", "d2"):
        for verb in ("site.yml", "stop.yml"):
            run = deployed.cluster.run(verb, pd_runtime="process")
            assert run.rc != 0 and run.changed() == {}
            assert "run in containers, but pd_runtime is process" in run.stdout
            assert "stop.yml with -e pd_runtime=docker" in run.stdout
        status = deployed.cluster.run("status.yml", pd_runtime="process")
        assert "decode on d1 runs with runtime docker, but pd_runtime is process" in status.stdout


def test_a_removed_instance_that_still_has_the_ports(lab: Lab, deployed: Deployed, tmp_path: t.Any) -> None:
    """Decode moves to the host of a prefill instance that the inventory has no more: it would end at its start."""
    two = inventory(lab)
    two["all"]["children"]["prefill"]["hosts"]["d1"] = {"ansible_host": lab.address["d1"]}
    two["all"]["children"]["decode"] = {
        "hosts": {"d2": {"ansible_host": lab.address["d2"]}},
        "vars": {"pd_dp_size": 1, "pd_tp_size": 1, "pd_chips": [4]},
    }
    lab.sh("d1", "docker rm -f pd-pd-decode")
    Cluster(lab, tmp_path / "two", two).site()
    with others_unharmed(lab, "p1", "d1", "d2"):
        refusal(
            deployed.cluster.run("site.yml"), "d1", "pd-pd-prefill-d1", "no more planned for this host", "docker rm -f"
        )
    lab.sh("d1", "docker rm -f pd-pd-prefill-d1")
    deployed.cluster.site()
    assert lab.complete(deployed.url)


def test_a_chip_and_a_name_that_others_have(lab: Lab, deployed: Deployed) -> None:
    lab.sh(
        "d2",
        f"docker rm -f pd-pd-decode; docker run -d --name miner --network host --device /dev/davinci4 {IMAGE} sleep 9999",
    )
    with others_unharmed(lab, *OTHERS, "d2"):
        refusal(deployed.cluster.run("site.yml"), "d2", "chip 4 is held by container miner", "pd_chips")
    lab.sh("d2", f"docker rm -f miner; docker run -d --name pd-pd-decode --network host {IMAGE} sleep 9999")
    with others_unharmed(lab, *OTHERS, "d2"):
        refusal(deployed.cluster.run("site.yml"), "d2", "pd-pd-decode (running) has a name", "pd_cluster_name")
    lab.sh("d2", "docker rm -f pd-pd-decode")
    repaired(lab, deployed)


def test_sudo_is_refused_on_one_host(lab: Lab, deployed: Deployed, tmp_path: t.Any) -> None:
    changed = inventory(lab)
    host = changed["all"]["children"]["decode"]["hosts"]["d2"]
    host["ansible_user"] = "opspw"
    cluster = Cluster(lab, tmp_path, changed)
    with others_unharmed(lab, *OTHERS, "d2"):
        refusal(cluster.run("site.yml"), "d2", "Missing sudo password")
        host["ansible_become_password"] = "lab"
        cluster.write(changed)
        assert cluster.site().changed() == {}


@pytest.fixture(scope="module")
def lost(lab: Lab, deployed: Deployed) -> Run:
    """A run whose way to d2 is cut when decode has begun to start anew; then the rerun."""
    cut: list[str] = []

    def pull_the_cable(event: dict[str, t.Any]) -> None:
        if not cut and task_started(event, "Remove containers that must start anew", "Engines"):
            cut.append(lab.ctl("cut", "d2"))

    option = {"decode": {"pd_engine_args": {"max-num-seqs": 18}}}
    try:
        with others_unharmed(lab, "p1"):
            run = deployed.cluster.run("site.yml", watch=pull_the_cable, pd_instances=option)
    finally:
        lab.ctl("mend", "d2")
    assert cut
    repaired(lab, deployed)
    return run


def test_ssh_is_lost_in_the_middle(lost: Run) -> None:
    assert lost.rc != 0
    assert "ssh" in lost.failures()["d2"] and "198.18.0." in lost.failures()["d2"]


def test_a_run_that_has_lost_a_host_goes_no_further(lost: Run) -> None:
    assert list(lost.failures()) == ["d2"], "and no second message, about a cluster that does not serve"


def test_a_host_is_lost_while_the_others_wait_for_its_ranks(lab: Lab, deployed: Deployed) -> None:
    """Its group cannot become ready without it, so nobody waits for that until the time is over."""
    cut: list[str] = []

    def pull_the_cable(event: dict[str, t.Any]) -> None:
        if not cut and task_started(event, "Wait for the ranks", "Gate"):
            cut.append(lab.ctl("cut", "d1"))

    slow = {"decode": {"pd_engine_env": {"SIM_STARTUP": "40"}}}
    try:
        with others_unharmed(lab, "p1"):
            run = deployed.cluster.run("site.yml", watch=pull_the_cable, pd_instances=slow, engine_ready_timeout=600)
    finally:
        lab.ctl("mend", "d1")
    assert cut and run.rc != 0
    failures = run.failures()
    assert "ssh" in failures["d1"]
    assert "instance decode cannot become ready: d1 is not reached any more" in failures["d2"]
    repaired(lab, deployed)


@pytest.fixture(scope="module")
def bare(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """b1 has no python3-requests, and no package source but a folder."""
    cluster = Cluster(lab, tmp_path_factory.mktemp("b1"), one_a2_host(lab))
    runs = {"without": cluster.run("site.yml")}
    package = "/srv/debian/" + lab.sh("b1", "cd /srv/debian; ls python3-requests*.deb").strip()
    runs["by the role"] = cluster.run("site.yml", host_requests_package=package)
    if runs["by the role"].rc:
        lab.sh("b1", f"apt-get install -qq {package}")
        runs["by hand"] = cluster.site()
    assert_as_planned(lab, cluster.plan())
    assert lab.complete(f"http://{lab.address['b1']}:1999")
    assert cluster.run("stop.yml").rc == 0 and lab.containers("b1") == {}
    return runs


def test_docker_modules_need_requests(bare: dict[str, Run]) -> None:
    refusal(bare["without"], "b1", "python3-requests", "host_requests_package")


def test_requests_are_installed_when_asked_for(bare: dict[str, Run]) -> None:
    assert bare["by the role"].rc == 0


def one_a2_host(lab: Lab) -> dict[str, t.Any]:
    """Prefill, decode and proxy on b1, which is an A2."""
    made = copy.deepcopy(inventory(lab))
    made["all"]["vars"] |= {
        "pd_hardware": "a2",
        "image_archive": "/srv/images/vllm-ascend-v0.23.0.tar",
        "pd_instances": {
            "prefill-b1": {"pd_dp_size": 1, "pd_tp_size": 1, "pd_chips": [0]},
            "decode": {"pd_dp_size": 1, "pd_tp_size": 1, "pd_chips": [5]},
        },
    }
    made["all"]["children"] = {
        role: {"hosts": {"b1": {"ansible_host": lab.address["b1"]}}} for role in ("prefill", "decode", "proxy")
    }
    return made
