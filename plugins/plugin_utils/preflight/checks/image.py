# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""The engine image on the hosts."""

from __future__ import annotations

import shlex
import typing as t

from ..fleet import Fleet, mapping
from ..verdicts import Words
from .host import alike
from .say import Say

_ABSENT = Words(
    "image {expected} is not on {host} yet; site.yml loads or pulls it",
    "nothing; or beforehand on {host}: `docker pull {image}`, or `docker load` with its archive",
    "{host} 上还没有镜像 {expected}；site.yml 会加载或拉取",
    "无需处理；也可提前在 {host} 上执行：`docker pull {image}`，或用其归档执行 `docker load`",
)
_UNKNOWN = Words(
    "whether image {expected} is on {host} is not known",
    "on {host}: `docker image inspect {image}`",
    "无法得知 {host} 上是否有镜像 {expected}",
    "在 {host} 上执行：`docker image inspect {image}`",
)


def _image(fleet: Fleet, host: str) -> t.Mapping[str, t.Any]:
    return mapping(mapping(fleet.host(host).get("docker")).get("image"))


def _quoted(fleet: Fleet) -> str:
    return shlex.quote(fleet.view["image"])


def _wanted(fleet: Fleet, say: Say) -> list[str]:
    return say.hosts if fleet.view["runtime"] == "docker" else []


def image_present(fleet: Fleet, say: Say) -> None:
    for host in _wanted(fleet, say):
        present = _image(fleet, host).get("present")
        if present is True:
            say.ok(host)
        elif present is False and any(one["check"] in ("image", "space") for one in fleet.findings(host)):
            # host_check says that it is missing and cannot be loaded.
            say.blocked(host)
        elif present is False:
            say.info(_ABSENT, host, expected=fleet.view["image"], found="none", image=_quoted(fleet))
        elif any(one["check"] in ("docker", "requests") for one in fleet.findings(host)):
            say.blocked(host)
        else:
            say.unknown(_UNKNOWN, host, expected=fleet.view["image"], found="unknown", image=_quoted(fleet))


def image_equal(fleet: Fleet, say: Say) -> None:
    digests: dict[str, str] = {}
    for host in _wanted(fleet, say):
        digest = _image(fleet, host).get("parts") or _image(fleet, host).get("digest")
        if isinstance(digest, str) and digest:
            digests[host] = digest.removeprefix("sha256:")[:12]
        elif _image(fleet, host).get("present") is True:
            say.unknown(_UNKNOWN, host, expected=fleet.view["image"], found="no digest", image=_quoted(fleet))
    remedy = (
        f"a tag was built twice; load the right one (`docker pull {_quoted(fleet)}`, or `docker load` with its archive), or give "
        "pd_image by digest (IMAGE@sha256:...)"
    )
    remedy_zh = (
        f"同一标签被构建过两次；加载正确的镜像（`docker pull {_quoted(fleet)}`，或用其归档执行 `docker load`），"
        "或用摘要指定 pd_image（IMAGE@sha256:...）"
    )
    alike(say, digests, "error", what="the image's id", what_zh="镜像 ID", remedy=remedy, remedy_zh=remedy_zh)
