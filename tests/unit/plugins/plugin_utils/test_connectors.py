# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""--kv-transfer-config: what the plan sets, what the user adds, what a pool makes of it."""

from __future__ import annotations

import copy
import json
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import slices, tables
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.support import (
    Source,
    Variables,
    base,
    errors_of,
    kv_config,
    one_host,
    only,
    placement,
    planned,
    rules_of,
    told,
    value_of,
)

V1, HYBRID, LAYERWISE = "MooncakeConnectorV1", "MooncakeHybridConnector", "MooncakeLayerwiseConnector"


def test_a_transport_has_the_name_of_its_connector() -> None:
    for name, transport in tables.TRANSPORTS.items():
        assert transport.connector == name


@pytest.mark.parametrize(
    ("connector", "binding", "initiator", "proxy"),
    [
        (V1, "prefill", "decode", "prefill_first"),
        ("MooncakeConnector", "prefill", "decode", "prefill_first"),
        (HYBRID, "prefill", "decode", "prefill_first"),
        (LAYERWISE, "decode", "prefill", "decode_first"),
        ("MooncakeD2RHConnectorV1", "prefill", "decode", "prefill_first"),
    ],
)
def test_who_binds_who_opens_and_which_proxy(connector: str, binding: str, initiator: str, proxy: str) -> None:
    transport = tables.TRANSPORTS[connector]
    assert (transport.binding_role, transport.initiator, transport.proxy_kind) == (binding, initiator, proxy)


@pytest.mark.parametrize("connector", [V1, LAYERWISE])
def test_planned_config(connector: str) -> None:
    source = base(all={"pd_connector": connector})
    sizes = {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 32, "tp_size": 1}}
    assert kv_config(source, "p-b", "p2") == {
        "kv_connector": connector,
        "kv_role": "kv_producer",
        "kv_port": "36100",
        "kv_connector_extra_config": sizes,
    }
    assert kv_config(source, "d-a", "d2") == {
        "kv_connector": connector,
        "kv_role": "kv_consumer",
        "kv_port": "36200",
        "kv_connector_extra_config": sizes,
    }


def test_pipeline_parallel_prefill_is_told_to_both_sides() -> None:
    source = base(prefill={"pd_tp_size": 4, "pd_pp_size": 2})
    for instance, host in (("p-a", "p1"), ("d-a", "d2")):
        assert kv_config(source, instance, host)["kv_connector_extra_config"]["prefill"] == {
            "dp_size": 2,
            "tp_size": 4,
            "pp_size": 2,
        }


def test_the_layers_of_a_pipeline_are_told_to_both_sides() -> None:
    layers = {"pd_engine_env": {"VLLM_PP_LAYER_PARTITION": "32,29"}}
    source = base(prefill={"pd_tp_size": 4, "pd_pp_size": 2, **layers})
    for instance, host in (("p-a", "p1"), ("d-a", "d2")):
        told = kv_config(source, instance, host)["kv_connector_extra_config"]["prefill"]
        assert told == {"dp_size": 2, "tp_size": 4, "pp_size": 2, "pp_layer_partition": "32,29"}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (base(), []),
        (base(decode={"pd_qos_priority": 0}), [("d-a", "Injected comm_resource_config.qos=0")]),
        (base(all={"pd_qos_priority": 3}), [("d-a", "Injected comm_resource_config.qos=3")]),
        (
            base(all={"pd_connector": LAYERWISE, "pd_qos_priority": 4}),
            [(name, "Injected comm_resource_config.qos=4") for name in ("p-a", "p-b")],
        ),
        (
            base(decode={"pd_kv_transfer_config": {"kv_connector_extra_config": {"qos_priority": 2}}}),
            [("d-a", "Injected comm_resource_config.qos=2")],
        ),
    ],
)
def test_the_log_line_that_tells_the_priority(source: Source, said: list[tuple[str, str]]) -> None:
    told_of = slices.overview(planned(source), {})["priorities"]
    assert [(entry["instance"], entry["log_line"]) for entry in told_of] == said


def test_qos_goes_to_the_extra_config_of_its_side() -> None:
    source = base(decode={"pd_qos_priority": 0})
    assert kv_config(source, "d-a", "d1")["kv_connector_extra_config"]["qos_priority"] == 0
    assert "qos_priority" not in kv_config(source)["kv_connector_extra_config"]


# What the user adds -------------------------------------------------------------------------------------------------


def test_deep_merge_keeps_both() -> None:
    added: Variables = {
        "kv_buffer_device": "npu",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "ascend_local_comm_res_path": "/etc/hixlep",
            "prefill": {"pp_layer_partition": "30,31"},
            "tls_config": {"ssl_enable": False},
        },
    }
    given = copy.deepcopy(added)
    config = kv_config(base(p1={"pd_kv_transfer_config": added}))
    assert config["kv_buffer_device"] == "npu"
    assert config["kv_load_failure_policy"] == "recompute"
    extra = config["kv_connector_extra_config"]
    assert extra["prefill"] == {"dp_size": 2, "tp_size": 8, "pp_layer_partition": "30,31"}
    assert extra["decode"] == {"dp_size": 32, "tp_size": 1}
    assert extra["tls_config"] == {"ssl_enable": False}
    assert extra["ascend_local_comm_res_path"] == "/etc/hixlep"
    assert added == given, "the inventory's own mapping was changed"


def test_a_contradiction_does_not_reach_the_command() -> None:
    """Even in the plan that is written beside the finding, the planned value stands."""
    source = base(p1={"pd_kv_transfer_config": {"kv_port": 1, "kv_connector_extra_config": {"decode": {"tp_size": 4}}}})
    config = kv_config(source)
    assert config["kv_port"] == "36000"
    assert config["kv_connector_extra_config"]["decode"]["tp_size"] == 1


def test_only_the_hosts_that_have_it() -> None:
    source = base(d2={"pd_kv_transfer_config": {"kv_buffer_device": "npu"}})
    assert "kv_buffer_device" not in kv_config(source, "d-a", "d1")
    assert kv_config(source, "d-a", "d2")["kv_buffer_device"] == "npu"


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"kv_connector": "Other"}, "kv_connector"),
        ({"kv_role": "kv_consumer"}, "kv_role"),
        ({"kv_port": None}, "kv_port"),
        ({"kv_port": True}, "kv_port"),
        ({"kv_port": ["36000"]}, "kv_port"),
        ({"kv_connector_extra_config": None}, "kv_connector_extra_config"),
        ({"kv_connector_extra_config": []}, "kv_connector_extra_config"),
        ({"kv_connector_extra_config": {"prefill": None}}, "kv_connector_extra_config.prefill"),
        ({"kv_connector_extra_config": {"decode": [32, 1]}}, "kv_connector_extra_config.decode"),
        ({"kv_connector_extra_config": {"decode": {"pp_size": 2}}}, "kv_connector_extra_config.decode.pp_size"),
        ({"connectors": []}, "connectors"),
    ],
)
def test_contradictions(config: Variables, path: str) -> None:
    finding = only(base(p1={"pd_kv_transfer_config": config}), "kv-transfer-contradiction")
    assert (finding.severity, finding.host, finding.variable) == ("error", "p1", f"pd_kv_transfer_config.{path}")


def test_qos_in_the_config_against_the_variable() -> None:
    config = {"kv_connector_extra_config": {"qos_priority": 3}}
    finding = only(
        base(decode={"pd_qos_priority": 2}, d1={"pd_kv_transfer_config": config}), "kv-transfer-contradiction"
    )
    assert "pd_qos_priority" in finding.fix


@pytest.mark.parametrize("priority", [5, -1, True, "high"])
def test_qos_in_the_config_has_the_same_limits(priority: t.Any) -> None:
    config = {"kv_connector_extra_config": {"qos_priority": priority}}
    assert errors_of(base(d1={"pd_kv_transfer_config": config}))


def test_a_quoted_qos_is_a_number_for_the_connector() -> None:
    config = {"kv_connector_extra_config": {"qos_priority": "3"}}
    source = base(decode={"pd_kv_transfer_config": config})
    assert not errors_of(source)
    assert kv_config(source, "d-a", "d1")["kv_connector_extra_config"]["qos_priority"] == 3


# engine_id ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["v0.11.0", "v0.12.0rc1"])
def test_engine_id_is_made_for_old_releases(version: str) -> None:
    """Unique per instance, one on all hosts of an instance, and not moved by an appended instance."""
    source = base(all={"pd_vllm_ascend_version": version})
    ids = {
        (instance, host): kv_config(source, instance, host).get("engine_id")
        for instance, host in (("p-a", "p1"), ("p-b", "p2"), ("d-a", "d1"), ("d-a", "d2"))
    }
    assert None not in ids.values()
    assert ids["d-a", "d1"] == ids["d-a", "d2"]
    assert len(set(ids.values())) == 3


def test_engine_id_null_is_not_given() -> None:
    assert kv_config(base(p1={"pd_kv_transfer_config": {"engine_id": None}})).get("engine_id") is None


def test_engine_id_is_one_for_an_instance() -> None:
    source = base(
        all={"pd_vllm_ascend_version": "v0.12.0"},
        d1={"pd_kv_transfer_config": {"engine_id": "a"}},
        d2={"pd_kv_transfer_config": {"engine_id": "b"}},
    )
    assert {"d1", "d2"} <= set(" ".join(finding.message for finding in planned(source).findings).split())


# Pool ---------------------------------------------------------------------------------------------------------------


class TestPool:
    """MultiConnector: the transport first, the store second, one role in all places."""

    POOL: t.ClassVar = {"backend": "mooncake", "load_async": True}

    def test_composition(self) -> None:
        config = kv_config(base(all={"pd_kv_pool": self.POOL}), "d-a", "d1")
        transport, store = config["kv_connector_extra_config"]["connectors"]
        assert config["kv_connector"] == "MultiConnector"
        assert {config["kv_role"], transport["kv_role"], store["kv_role"]} == {"kv_consumer"}
        assert transport["kv_connector"] == V1
        assert transport["kv_port"] == "36200"
        assert transport["kv_connector_extra_config"]["decode"] == {"dp_size": 32, "tp_size": 1}
        assert store["kv_connector"] == "AscendStoreConnector"
        assert store["kv_connector_extra_config"] == {"lookup_rpc_port": "0", "backend": "mooncake", "load_async": True}
        assert "kv_port" not in config
        assert set(config["kv_connector_extra_config"]) == {"connectors"}

    def test_what_belongs_outside_and_what_inside(self) -> None:
        added = {
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"ascend_local_comm_res_path": "/etc/hixlep", "qos_priority": 2},
        }
        config = kv_config(base(all={"pd_kv_pool": self.POOL}, d1={"pd_kv_transfer_config": added}), "d-a", "d1")
        transport = config["kv_connector_extra_config"]["connectors"][0]
        assert config["kv_load_failure_policy"] == "recompute"
        assert config["kv_connector_extra_config"]["ascend_local_comm_res_path"] == "/etc/hixlep"
        assert transport["kv_connector_extra_config"]["qos_priority"] == 2
        assert "kv_load_failure_policy" not in transport
        assert "ascend_local_comm_res_path" not in transport["kv_connector_extra_config"]

    def test_lookup_ports_differ_on_one_host(self) -> None:
        """It is part of a socket's name: equal values of two instances on a host would meet."""
        source = one_host(host={"pd_kv_pool": self.POOL})
        found = {
            instance: kv_config(source, instance, "h1")["kv_connector_extra_config"]["connectors"][1][
                "kv_connector_extra_config"
            ]["lookup_rpc_port"]
            for instance in ("p-a", "d-a")
        }
        assert found == {"p-a": "0", "d-a": "1"}

    def test_the_store_knows_the_stages_of_prefill(self) -> None:
        layers = {"pd_engine_env": {"VLLM_PP_LAYER_PARTITION": "32,29"}}
        stages = {"pd_tp_size": 4, "pd_pp_size": 2}
        for prefill, known in (
            (stages, {"prefill_pp_size": 2}),
            ({**stages, **layers}, {"prefill_pp_size": 2, "prefill_pp_layer_partition": "32,29"}),
        ):
            config = kv_config(base(all={"pd_kv_pool": self.POOL}, prefill=prefill), "d-a", "d1")
            store = config["kv_connector_extra_config"]["connectors"][1]["kv_connector_extra_config"]
            assert known.items() <= store.items()

    def test_the_ports_of_the_transport_stay(self) -> None:
        plan = planned(base(all={"pd_kv_pool": self.POOL}))
        assert placement(plan, "p-a", "p1").kv_listen == (36000, 36015)

    def test_the_pool_is_the_users_and_stays_as_it_is(self) -> None:
        pool = copy.deepcopy(self.POOL)
        planned(base(all={"pd_kv_pool": pool}))
        assert pool == self.POOL

    @pytest.mark.parametrize("extra", ["x", None, 1])
    def test_a_wrong_extra_config_beside_a_pool_is_a_finding(self, extra: t.Any) -> None:
        source = base(all={"pd_kv_pool": self.POOL}, p1={"pd_kv_transfer_config": {"kv_connector_extra_config": extra}})
        assert "kv-transfer-contradiction" in rules_of(source)

    def test_an_empty_extra_config_is_no_fault(self) -> None:
        source = base(all={"pd_kv_pool": self.POOL}, p1={"pd_kv_transfer_config": {"kv_connector_extra_config": {}}})
        assert not planned(source).errors, told(planned(source).findings)


def test_rendered_as_one_word_of_compact_json() -> None:
    plan = planned(base())
    word = value_of(placement(plan, "p-a", "p1").processes[0].argv, "--kv-transfer-config")
    assert word == json.dumps(json.loads(word), separators=(",", ":"))
    assert '"kv_port":"36000"' in word
