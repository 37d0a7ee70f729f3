# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""A strict stand-in for ``vllm serve`` of vLLM-Ascend with Mooncake prefill/decode disaggregation.

It needs no model, no NPU and no package: Python 3.8 and its standard library. It is strict where a deployment can be
wrong (options, JSON values, devices, addresses, ports, the data-parallel rendezvous), and a prefill and a decode
really hand the KV blocks over on the connector's own ports, so a wrong address, port or size shows in the answer.

Dozens of them run on one small machine, therefore nothing here imports what is expensive to load (``typing``,
``argparse``, ``http.server``, ``dataclasses``), nothing polls, and one thread serves all KV ports of a process.

Run the folder itself: ``python3 -I -S vllm_sim serve MODEL [options]``.

===================  ==========================================================================================
environment          meaning
===================  ==========================================================================================
PD_REHEARSAL_ROOT    put before every host path (``/models``, ``/dev``, ``/opt/pd_rehearsal/faults.json``); with it
                     only loopback addresses are used, and a wildcard ``--host`` binds the host's own address, since
                     many simulated hosts share one machine
SIM_STARTUP          seconds of "loading" before it serves (0.3)
SIM_PREFILL_DELAY    seconds one prefill takes (0.05)
SIM_TOKEN_DELAY      seconds one generated token takes (0.01)
SIM_DP_TIMEOUT       seconds to wait for all ranks of the data-parallel group (600)
SIM_PUSH_TIMEOUT     seconds a layerwise decode waits for its blocks (30)
SIM_VLLM_VERSION     which option table to enforce (0.23.0)
===================  ==========================================================================================

``faults.json`` maps ``"<API port>"``, ``"rank<N>"`` or ``"*"`` (the narrower entry wins) to faults: ``load_seconds``
(loading takes that long), ``fail_start`` (loading ends with this text), ``die_after`` (seconds after the whole group is
ready), ``unhealthy`` (true: /health answers 503).
"""
