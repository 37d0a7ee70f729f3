# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Cases about the image, its tag and versions."""

from __future__ import annotations

from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.rule_cases.case import Provoking, Quiet
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import base, one_host

IMAGE: list[Provoking | Quiet] = [
    Provoking(
        "image-version",
        "tag and version",
        base(all={"pd_image": "quay.example/a/vllm-ascend:v0.18.0-a3", "pd_vllm_ascend_version": "v0.23.0"}),
        "all",
        "pd_vllm_ascend_version",
        "v0.23.0",
        ("v0.23.0", "v0.18.0"),
    ),
    Quiet(
        "image-version",
        "the same, one without v",
        base(all={"pd_image": "quay.example/a/vllm-ascend:v0.18.0-a3", "pd_vllm_ascend_version": "0.18.0"}),
    ),
    Provoking(
        "image-hardware",
        "the a2 build on a3",
        base(all={"pd_image": "example/vllm-ascend:v0.18.0"}),
        "all",
        "pd_image",
        "example/vllm-ascend:v0.18.0",
        ("a3", "v0.18.0-a3"),
    ),
    Provoking(
        "image-hardware",
        "the a3 build on a2",
        one_host(host={"pd_image": "example/vllm-ascend:v0.18.0-a3"}),
        "all",
        "pd_image",
        "example/vllm-ascend:v0.18.0-a3",
        ("a2", "a3"),
    ),
    Provoking(
        "image-hardware",
        "310p",
        base(all={"pd_image": "example/vllm-ascend:v0.18.0-310p-openeuler"}),
        "all",
        "pd_image",
        "example/vllm-ascend:v0.18.0-310p-openeuler",
        ("310p",),
    ),
    Quiet("image-hardware", "openEuler", base(all={"pd_image": "example/vllm-ascend:v0.18.0-a3-openeuler"})),
    Quiet("image-hardware", "a2 and openEuler", one_host(host={"pd_image": "e/vllm-ascend:v0.18.0-openeuler"})),
    *(
        Quiet("image-hardware", about, base(all={"pd_image": image, "pd_vllm_ascend_version": "v0.23.0"}))
        for about, image in (
            ("a private image", "registry.example:5000/team/pd:2026-11"),
            ("a digest", "e/vllm-ascend@sha256:" + "0" * 64),
        )
    ),
    Provoking(
        "version-unknown",
        "the future",
        base(all={"pd_vllm_ascend_version": "v0.99.0"}),
        "all",
        "pd_vllm_ascend_version",
        "v0.99.0",
        ("v0.99.0",),
        severity="warning",
    ),
    Provoking(
        "version-unknown",
        "a branch",
        base(all={"pd_vllm_ascend_version": "main"}),
        "all",
        "pd_vllm_ascend_version",
        "main",
        ("main",),
        severity="warning",
    ),
]

TAGS: list[Provoking | Quiet] = [
    *(
        Provoking("image-hardware", image, base(all={"pd_image": image}), "all", "pd_image", image, says)
        for image, says in (
            ("e/vllm-ascend:main", ("a3", "main", "a2 build")),
            ("e/vllm-ascend:nightly-main-openeuler", ("nightly-main-openeuler",)),
            ("e/vllm-ascend:nightly-main-a5", ("nightly-main-a5",)),
            ("e/vllm-ascend:v0.18.0-A3", ("A3", "v0.18.0-a3")),
            ("e/vllm-ascend:v0.18.0-a3-a2", ("a3-a2",)),
            ("e/vllm-ascend:v0.18.0-910b", ("910b", "v0.18.0-a3")),
            ("m.mirror.example/quay.io/ascend/vllm-ascend:v0.18.0-openeuler", ("openeuler (the a2 build)",)),
            ("e/vllm-ascend:v0.18.0@sha256:" + "0" * 64, ("empty (the a2 build)",)),
        )
    ),
    Provoking(
        "image-hardware",
        "a site's own image that speaks of a2",
        base(all={"pd_image": "registry.example/team/pd:prod-a2", "pd_vllm_ascend_version": "v0.23.0"}),
        "all",
        "pd_image",
        "registry.example/team/pd:prod-a2",
        ("a2", "a3"),
        severity="warning",
    ),
    *(
        Provoking("image-hardware", image, base(all={"pd_image": image}), "all", "pd_image", image, ("its name", *says))
        for image, says in (
            ("e/vllm-ascend-310p:v0.18.0", ("310p", "quay.io/ascend/vllm-ascend:v0.18.0-a3")),
            ("e/vllm-ascend-a2:v0.18.0-openeuler", ("a2", "built for a3")),
        )
    ),
    Provoking(
        "image-version",
        "the tag of a site's own image has the name of another release",
        base(all={"pd_image": "registry.example/team/pd:v0.18.0-a3", "pd_vllm_ascend_version": "v0.23.0"}),
        "all",
        "pd_vllm_ascend_version",
        "v0.23.0",
        ("v0.18.0", "registry.example/team/pd"),
        severity="warning",
    ),
    Quiet(
        "image-version",
        "the tag of a site's own image has the name of the same release",
        base(all={"pd_image": "registry.example/team/pd:v0.23.0-a3", "pd_vllm_ascend_version": "v0.23.0"}),
    ),
    *(
        Quiet("image-hardware", image, base(all={"pd_image": image, "pd_vllm_ascend_version": "v0.23.0"}))
        for image in (
            "registry.example/team/pd:v1.2",
            "registry.example/team/pd:latest",
            "registry.example/team/pd-a2:prod-a3",
            # A repository for each generation; a site's own build.
            "registry.example/team/vllm-ascend-a3:v0.23.0",
            "registry.example/team/vllm-ascend-patched:v0.23.0",
        )
    ),
    *(
        Quiet("image-hardware", image, base(all={"pd_image": image}))
        for image in (
            "registry.example:5000/e/vllm-ascend:0.18.0-a3",
            "e/vllm-ascend:v0.18.0-a3@sha256:" + "0" * 64,
            "e/vllm-ascend:v0.18.0-a3-patch.2",
        )
    ),
    Quiet("image-hardware", "a2 by name", one_host(host={"pd_image": "e/vllm-ascend:v0.18.0-a2"})),
    Quiet(
        "image-version",
        "an image of another name counts its own versions",
        base(all={"pd_image": "registry.example/team/pd:v1.2", "pd_vllm_ascend_version": "v0.23.0"}),
    ),
    *(
        Provoking(
            "version-unknown",
            image,
            base(all={"pd_image": image}),
            "all",
            "pd_image",
            image,
            ("tells no version", "v0.23.0"),
            severity="warning",
        )
        for image in ("e/vllm-ascend:main-a3", "e/vllm-ascend:latest", "e/vllm-ascend:V0.18.0-a3")
    ),
    Quiet(
        "version-unknown",
        "told beside a tag that does not",
        base(all={"pd_image": "e/vllm-ascend:main-a3", "pd_vllm_ascend_version": "v0.26.0"}),
    ),
    *(
        Provoking(
            "variable-value",
            f"{variable} is {value!r}",
            base(all={variable: value}),
            "p1",
            variable,
            value,
            (repr(value), says),
        )
        for variable, value, says in (
            ("pd_vllm_ascend_version", "v0.18.0-a3", "suffix"),
            ("pd_vllm_ascend_version", "V0.18.0", "small v"),
            ("pd_vllm_ascend_version", "v0.23.0 ", "blanks"),
            ("pd_vllm_ascend_version", 0.2, "quotes"),
            ("pd_cann_version", 9.1, "quotes"),
            ("pd_served_model_name", True, "quotes"),
            ("pd_hardware", "A3", "did you mean pd_hardware: a3?"),
            ("pd_hardware", "910C", "did you mean pd_hardware: a3?"),
            ("pd_hardware", "Atlas 800T A2", "did you mean pd_hardware: a2?"),
            ("pd_topology", "back-to-back", "did you mean pd_topology: back_to_back?"),
            ("pd_connector", "mooncake_connector_v1", "did you mean pd_connector: MooncakeConnectorV1?"),
            ("pd_dp_mode", "Internal", "did you mean pd_dp_mode: internal?"),
        )
    ),
]

VERSIONS: list[Provoking | Quiet] = [
    *(
        Provoking(
            "version-unknown",
            image,
            base(all={"pd_image": image}),
            "all",
            "pd_image",
            image,
            (*says, "tells no version", "taken for v0.23.0", "every known name", "set pd_vllm_ascend_version"),
            severity="warning",
        )
        for image, says in (
            ("registry.example/ai/serving:v0.17.0rc1-a3", ("not called vllm-ascend", "(v0.17.0rc1, if its tag")),
            ("private/own:1.2", ("the tag 1.2", "not called vllm-ascend")),
            ("private/own:latest", ("the tag latest",)),
            ("registry.example:5000/vllm-ascend", ("no tag",)),
            ("quay.io/ascend/vllm-ascend@sha256:" + "0" * 64, ("digest",)),
        )
    ),
    Provoking(
        "version-unknown",
        "beside what its tag says of the hardware",
        base(all={"pd_image": "registry.example/team/pd:prod-a2"}),
        "all",
        "pd_image",
        "registry.example/team/pd:prod-a2",
        ("the tag prod-a2",),
        severity="warning",
        alone=False,
    ),
    Quiet(
        "version-unknown",
        "an image of another name with its version told",
        base(all={"pd_image": "private/own:1.2", "pd_vllm_ascend_version": "v0.18.0"}),
    ),
    *(
        Provoking(
            "version-unknown",
            f"{version} alone",
            base(all={"pd_vllm_ascend_version": version}),
            "all",
            "pd_vllm_ascend_version",
            f"v{version.removeprefix('v')}",
            (f"vllm-ascend:v{version.removeprefix('v')}-a3", "upstream does not have", says),
            severity="warning",
        )
        for version, says in (
            ("v0.23", "use v0.23.0"),
            ("0.23", "use v0.23.0"),
            ("v0.22", "use v0.22.1rc1"),
            ("v0.26", "such as v0.23.0"),
        )
    ),
    Quiet(
        "version-unknown",
        "two numbers beside an image",
        base(all={"pd_image": "private/own:1.2", "pd_vllm_ascend_version": "v0.23"}),
    ),
    *(
        Provoking(
            "variable-value",
            f"{variable} {value}",
            base(all={variable: value}),
            "p1",
            variable,
            value,
            (f"{variable} must be a version", repr(value), f"set {variable}"),
        )
        for variable in ("pd_cann_version", "pd_mooncake_version", "pd_hixl_version")
        for value in ("latest", "true", "main", "rc1")
    ),
    *(
        Quiet("variable-value", f"{variable} {value}", base(all={variable: value}), clean=False)
        for variable, value in (
            ("pd_cann_version", "8.3.RC2"),
            ("pd_cann_version", "8.5.0.alpha001"),
            ("pd_mooncake_version", "v0.3.9"),
            ("pd_mooncake_version", "0.3.11.post1"),
            ("pd_hixl_version", "9.1.0"),
        )
    ),
]

CASES: list[Provoking | Quiet] = [*IMAGE, *TAGS, *VERSIONS]
