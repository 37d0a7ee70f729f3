# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""Every sample output is read rightly, and nothing that was made of one is read as something else.

What can happen to an output on its way: it is cut (at either end), its lines change places, two outputs are mixed,
it comes from a terminal, in another language, or not at all. Then the answer is the same or it is not ok.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.ascend.pd_serving.plugins.module_utils.npu import answers
from ansible_collections.ascend.pd_serving.tests.unit.plugins.module_utils.npu.samples import (
    DATA,
    READERS,
    SAMPLES,
    Sample,
)

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)

# These are dictionaries of answers, or of plain values, each judged by itself.
LOOPS = ("ip_loop", "tls_loop")
PLAIN = ("version_info",)
ANSWERING = [sample for sample in SAMPLES if sample.reader not in [READERS[name] for name in (*LOOPS, *PLAIN)]]
OK_SAMPLES = [sample for sample in ANSWERING if sample.expect["state"] == "ok"]


def ok_samples(*without: str) -> pytest.MarkDecorator:
    """Every sample that is ok, but for those whose name holds one of these words."""
    chosen = [sample for sample in OK_SAMPLES if not any(word in sample.name for word in without)]
    return pytest.mark.parametrize("sample", chosen, ids=lambda sample: sample.name)


every_ok_sample = ok_samples()

STATES = {*answers.STATES, "missing", "is_directory", "unreadable", "malformed", "empty"}


def part(expected: Any, found: Any) -> Any:
    """*found* without what *expected* does not name."""
    if isinstance(expected, dict) and isinstance(found, dict):
        return {key: part(value, found.get(key, "absent")) for key, value in expected.items()}
    return found


@every_sample
def test_a_sample_is_read(sample: Sample) -> None:
    assert part(sample.expect, sample.read()) == sample.expect


def test_every_sample_has_an_expectation() -> None:
    assert {path.stem for path in DATA.glob("*.txt")} == {sample.name for sample in SAMPLES}
    assert len(SAMPLES) >= 60


@every_sample
def test_what_is_not_ok_shows_the_output(sample: Sample) -> None:
    answer = sample.read()
    if "state" in answer and answer["state"] not in ("ok", "empty"):
        assert answer.get("text") == sample.text.strip()[:300] or answer["state"] == "malformed"


def false_ok(sample: Sample, answer: dict[str, Any]) -> bool:
    """Whether an answer is ok and says something else than the sample does.

    A value that is not there (null) is no statement; only some drivers show it.
    """
    if answer["state"] != "ok":
        assert answer["state"] in STATES
        return False
    whole = sample.read()
    missing = (None, [], {})
    wrong = {key for key, value in answer.items() if value not in missing and value != whole.get(key)}
    # A list that lost entries is another list.
    wrong |= {
        key for key in ("rows", "chips", "links", "processes", "l1_plane", "eids") if answer.get(key) != whole.get(key)
    }
    # Fewer ports or certificates were shown; what the others are like is known. The link of all was not cut.
    return bool(wrong - CUTTABLE.get(sample.name, set()))


# At the end of a line these are whole answers, and no reader can tell.
CUTTABLE = {
    "hccn-link-a5-partial": {"ports"},
    "hccn-devinfo-a5": {"eids"},
    "hccn-tls-old-driver": {"certificates"},
    "hccn-tls-full-with-cert": {"certificates"},
    "hccn-tls-a5-expired": {"certificates", "cert_expiration"},
    "npusmi-m-a3": {"chips", "ignored", "logical_to_physical", "card_to_physical"},
    "npusmi-m-a2": {"chips", "ignored", "logical_to_physical", "card_to_physical"},
    "npusmi-m-a5": {"chips", "ignored", "logical_to_physical", "card_to_physical"},
    "npusmi-a3-process-block-26.x": {"processes"},
    "hccn-conf-a2-ok": {"chips"},
    "hccn-conf-more-keys": {"chips"},
}


@every_ok_sample
def test_an_output_that_was_cut_says_the_same_or_nothing(sample: Sample) -> None:
    wrong = [
        sample.text[:length][-60:]
        for length in range(len(sample.text))
        if false_ok(sample, sample.read(sample.text[:length]))
    ]
    assert not wrong


@every_ok_sample
def test_an_output_without_its_beginning_says_the_same_or_nothing(sample: Sample) -> None:
    wrong = [start for start in range(len(sample.text)) if false_ok(sample, sample.read(sample.text[start:]))]
    assert not wrong


@pytest.mark.parametrize(
    "sample",
    # A file is read as it is; its last line may lack an end.
    [one for one in OK_SAMPLES if one.name in CUTTABLE and not one.name.startswith("hccn-conf")],
    ids=lambda one: one.name,
)
def test_a_cut_inside_a_line_is_noticed_everywhere(sample: Sample) -> None:
    """Where a cut between two lines cannot be noticed, one inside of a line still is."""
    whole = sample.read()
    for length in range(1, len(sample.text) - 1):
        text = sample.text[:length]
        if text.endswith("\n") or sample.text[length] == "\n":
            continue
        answer = sample.read(text)
        assert answer["state"] != "ok" or answer == whole, text[-60:]


@every_ok_sample
@pytest.mark.parametrize("text", ["", "\n", " \r\n", "\0", "Cmd executed successfully!\n"], ids=repr)
def test_nothing_is_never_ok(sample: Sample, text: str) -> None:
    assert sample.read(text)["state"] != "ok"


@every_ok_sample
def test_a_terminals_line_ends_change_nothing(sample: Sample) -> None:
    answer = sample.read(sample.text.replace("\n", "\r\n"))
    if sample.name.startswith("hccn-conf"):
        # In the file itself they are a fault: the tool takes the end for a part of the address.
        assert answer["state"] == "malformed"
    else:
        assert answer == sample.read()


TRANSLATED = {
    "status": "状态",
    "ipaddr": "地址",
    "netdetect": "侦测",
    "gateway": "网关",
    "Ifname": "端口",
    "switch": "开关",
    "received": "已接收",
    "Health": "健康",
    "Process id": "进程",
    "Chip": "芯片",
    "Link": "链路",
    "Super": "超",
    "address": "地址",
    "dest_ip": "目的",
    "Name": "名称",
    "name": "名称",
}


@every_ok_sample
def test_another_language_is_not_understood(sample: Sample) -> None:
    text = sample.text
    for word, other in TRANSLATED.items():
        text = text.replace(word, other)
    assert text != sample.text
    assert sample.read(text)["state"] != "ok"


# A file is no answer, lost packets end with a refusal anyway, and the description of a switch may say anything.
@ok_samples("hccn-conf", "lost", "ping-a2-partial", "unreachable", "hccn-lldp-a2-ok")
def test_a_refusal_next_to_a_value_is_a_contradiction(sample: Sample) -> None:
    assert sample.read(sample.text + "The device is not exist!\n")["state"] != "ok"


# In the file the same line twice says the same.
@ok_samples("hccn-conf")
def test_two_outputs_in_one_are_not_ok(sample: Sample) -> None:
    """Of two calls that wrote into one another, line by line."""
    mixed = "".join(line * 2 for line in sample.text.splitlines(keepends=True))
    for text in (mixed, sample.text * 2):
        assert sample.read(text)["state"] != "ok" or sample.name in ("hccl-link-error-table", "npusmi-procmem-bad-name")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@every_ok_sample
def test_lines_in_another_order_say_the_same_or_nothing(sample: Sample, data: st.DataObject) -> None:
    lines = sample.text.splitlines(keepends=True)
    text = "".join(data.draw(st.permutations(lines)))
    answer = sample.read(text)
    # The order of a file's lines says nothing. What a switch calls itself is free text, and nothing is judged by it.
    if sample.name.startswith(("hccn-conf", "hccn-lldp")) or answer["state"] != "ok":
        return
    whole = sample.read()
    for key, value in answer.items():
        if isinstance(value, list) and key not in ("l1_plane", "problems"):
            assert sorted(map(repr, value)) == sorted(map(repr, whole[key]))
        else:
            assert value == whole[key], key


@settings(max_examples=30, deadline=None)
@given(data=st.data())
@every_ok_sample
def test_one_wrong_character_says_the_same_or_nothing_of_the_state(sample: Sample, data: st.DataObject) -> None:
    """A letter that was lost or changed may change a number, but a word that judges is never made of another."""
    at = data.draw(st.integers(0, len(sample.text) - 1))
    letter = data.draw(st.sampled_from(["", "X", "\ufffd", "|", ":", "\n"]))
    answer = sample.read(sample.text[:at] + letter + sample.text[at + 1 :])
    if answer["state"] == "ok":
        whole = sample.read()
        for key in ("link", "net_health", "tls_switch", "cert_expiration"):
            assert answer.get(key) in (whole.get(key), None)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(max_size=300)
    | st.lists(
        st.sampled_from([line for sample in SAMPLES for line in sample.text.splitlines()[:12]]), max_size=12
    ).map("\n".join)
)
def test_no_text_makes_a_reader_raise(text: str) -> None:
    for name, reader in READERS.items():
        answer = reader(text)
        if name not in (*LOOPS, *PLAIN):
            assert answer["state"] in STATES
        if name in LOOPS:
            assert all(one["state"] in STATES for one in answer.values())


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=200))
def test_noise_is_never_ok(text: str) -> None:
    for name, reader in READERS.items():
        if name not in (*LOOPS, *PLAIN, "hccn_conf"):
            assert reader(text)["state"] != "ok"
