# SPDX-License-Identifier: GPL-3.0-or-later
# Copyright: the ascend.pd_serving contributors
"""report.html without a browser: what is inside, how large it is, that nothing can break out of it, its colours."""

from __future__ import annotations

import html.parser
import json
import re
import typing as t

import pytest

from ansible_collections.ascend.pd_serving.plugins.plugin_utils import preflight
from ansible_collections.ascend.pd_serving.plugins.plugin_utils.preflight import html as page
from ansible_collections.ascend.pd_serving.tests.unit.plugins.plugin_utils.preflight import demo, faults, fleets

MEBIBYTE = 1024 * 1024
NASTY = [
    "p\"'`</script><script>alert(1)</script>",
    "<!--<script>",
    "%DATA%",
    "d & d]]>",
    "host\u2028with\u2029separators",
]


class Reader(html.parser.HTMLParser):
    """The elements of a page with their attributes, and the text of the data's element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag == "script" and dict(attrs).get("id") == "data"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.data += data


def data_of(text: str) -> dict[str, t.Any]:
    loaded: dict[str, t.Any] = json.loads(Reader(text).data)
    return loaded


@pytest.fixture(scope="module")
def text() -> str:
    return preflight.render_html(demo.faulty().judge())


def test_texts_put_together_from_the_data_are_those_of_the_report(text: str) -> None:
    """As the page's script does it: templates, and the values of each verdict."""
    report, data = demo.faulty().judge(), data_of(text)
    assert len(data["verdicts"]) == len(report.verdicts) == 9
    for packed, verdict in zip(data["verdicts"], report.verdicts, strict=True):
        _check, _severity, host, chip, words, values, expected, found, _also, _odd = packed
        names = {
            "host": data["hosts"][host],
            "chip": "" if chip is None else chip,
            "expected": expected,
            "found": found,
        }
        names |= dict(zip(data["words"][words][4], values, strict=True))
        put = [re.sub(r"\{(\w+)\}", lambda match: str(names[match[1]]), one) for one in data["words"][words][:4]]  # noqa: B023
        assert put == [verdict.message, verdict.fix, verdict.message_zh, verdict.fix_zh]


def test_the_odd_ones_out_are_marked(text: str) -> None:
    data = data_of(text)
    odd = {(data["checks"][one[0]][0], data["hosts"][one[2]]) for one in data["verdicts"] if one[9]}
    assert odd == {("tls-equal", "d2"), ("driver-equal", "d3"), ("mtu-equal", "p3")}


def test_nothing_comes_from_elsewhere(text: str) -> None:
    elements = Reader(text).elements
    assert [
        (tag, name) for tag, attributes in elements for name in attributes if name in ("src", "action", "srcset")
    ] == []
    assert [attributes["href"] for _tag, attributes in elements if "href" in attributes] == ["#findings"]
    assert not re.search(r"https?:|@import|url\(", text)
    policies = [attributes.get("content") for _tag, attributes in elements if "http-equiv" in attributes]
    assert policies and "default-src 'none'" in str(policies[0])


@pytest.mark.parametrize("name", NASTY)
def test_names_cannot_break_out(name: str) -> None:
    case = fleets.good("a3", (name, "d1", "d2"))
    faults.tls_on(case, name)
    case.smi("d1", 3)["processes"] = [{"pid": 1, "name": f"{name} {{host}} {{nothing}}", "memory_mb": 1}]
    case.view["name"] = name
    text = preflight.render_html(case.judge())
    reader = Reader(text)
    assert [tag for tag, _attributes in reader.elements].count("script") == 2
    data = json.loads(reader.data)
    assert name in data["hosts"] and len(data["verdicts"]) == 2
    assert not set("<>&\u2028\u2029") & set(reader.data)


def test_half_a_surrogate_pair_is_no_reason_to_fail() -> None:
    case = fleets.good("a3")
    case.smi("d1", 3)["processes"] = [{"pid": 1, "name": "\ud83d", "memory_mb": 1}]
    preflight.render_html(case.judge()).encode("utf-8")


def large(wrong: bool) -> str:
    case = fleets.good("a3", [f"{'p' if number < 128 else 'd'}-node-{number:03}" for number in range(256)])
    if wrong:
        for number, host in enumerate(case.hosts):
            for chip in case.chips():
                case.smi(host, chip).update(
                    health="Alarm" if chip % 2 else "OK",
                    processes=[{"pid": 100_000 + chip, "name": f"python3.{chip}", "memory_mb": 100}],
                )
                case.query(host, chip, "tls")["tls_switch"] = (number + chip) % 2
                case.query(host, chip, "link")["link"] = "DOWN" if chip % 3 else "UP"
                case.query(host, chip, "gateway")["gateway"] = "99.0.0.1"
    return preflight.render_html(case.judge())


@pytest.mark.parametrize("wrong", [False, True], ids=["good", "nearly everything wrong"])
def test_256_hosts_of_16_chips_stay_below_a_mebibyte(wrong: bool) -> None:
    text = large(wrong)
    assert len(text.encode()) < MEBIBYTE
    data = data_of(text)
    assert len(data["hosts"]) == 256
    assert sum(len(row[1]) for row in data["chips"]) == 4096
    assert (len(data["verdicts"]) > 5000) == wrong


def test_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    report = demo.faulty().judge()
    whole = Reader(preflight.render_html(report)).data
    monkeypatch.setattr(page, "DATA_LIMIT", len(whole.encode()) - 300)
    data = data_of(preflight.render_html(report))
    assert 0 < data["trimmed"] < len(report.verdicts)
    assert len(data["verdicts"]) + data["trimmed"] == len(report.verdicts)


# Colours --------------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def colours() -> dict[str, str]:
    style = (page.PAGE / "report.css").read_text(encoding="utf-8")
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", style))


@pytest.mark.parametrize("name", sorted(name.removesuffix("-back") for name in colours() if name.endswith("-back")))
def test_text_can_be_read_on_its_ground(name: str) -> None:
    known = colours()
    assert contrast(known[f"{name}-back"], known[f"{name}-text"]) >= 4.5


def test_contrast_is_computed_as_the_standard_says() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_soft_text_and_lines_can_be_seen_on_the_page() -> None:
    known = colours()
    assert contrast(known["soft-text"], known["page-back"]) >= 4.5
    # Borders of controls need 3:1.
    assert contrast(known["line"], known["page-back"]) >= 3


def test_no_severity_is_told_by_colour_alone() -> None:
    script = (page.PAGE / "report.js").read_text(encoding="utf-8")
    signs = dict(re.findall(r'"?([oiwueb -])"?: \["([a-z]+)", "', script))
    letters = re.findall(r'\["(error|warning|unknown|info|ok)", "(.)"\]', script)
    assert set(signs.values()) >= {"error", "warning", "unknown", "info", "ok", "blocked", "skipped"}
    assert len({letter for _name, letter in letters}) == len(letters) == 5


def test_both_languages_have_the_same_texts() -> None:
    script = (page.PAGE / "report.js").read_text(encoding="utf-8")
    english, chinese = (script.split(f"    {language}: {{", 1)[1].split("\n    }", 1)[0] for language in ("en", "zh"))
    keys = [re.findall(r'(?:^|[,\s])(\w+): "', part) for part in (english, chinese)]
    assert keys[0] and keys[0] == keys[1]
