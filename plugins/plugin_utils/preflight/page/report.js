/* SPDX-License-Identifier: GPL-3.0-or-later
   Copyright: the ascend.pd_serving contributors
   Shows the report that is embedded in the page. Everything goes in as text, never as markup. */
(function () {
  "use strict";
  var D = JSON.parse(document.getElementById("data").textContent);
  var SEVERITIES = ["ok", "info", "warning", "unknown", "error"];
  var SHOWN = [4, 3, 2, 1];
  var SIGNS = { o: ["ok", "·"], i: ["info", "i"], w: ["warning", "W"], u: ["unknown", "?"], e: ["error", "E"], b: ["blocked", "?"], "-": ["skipped", "–"], " ": ["none", ""] };
  var LETTERS = "oiwue";
  var PAGE = 200, WIDE = 48;
  var T = {
    en: {
      skip: "To the findings", severity: "Severity", host: "Host", chip: "Chip", check: "Check", clear: "Clear filters", all: "all",
      onlyBad: "Only hosts with findings", chipsTitle: "Hosts and chips", checksTitle: "Hosts and checks", findings: "Findings",
      chipsHelp: "The worst finding of each chip. Arrow keys move, Enter shows the findings of a cell.",
      pings: "Pings between hosts", expected: "expected", found: "found", usual: "the others have", copy: "Copy", copied: "Copied", odd: "odd one out",
      ok: "good", info: "note", warning: "warning", unknown: "unknown", error: "error", blocked: "could not be judged because of another finding",
      skipped: "not judged: needs hosts that were not asked", none: "does not apply", alsoAt: "also", more: "Show {n} more", shown: "{n} of {all} findings shown",
      nothing: "No findings.", notAsked: "Not asked (outside --limit)", silent: "Did not answer", notJudged: "Not judged",
      pingHelp: "Mode {mode}: row pings column. Each cell: how many pings failed, or a dot when all passed; then the average time in microseconds.", noPings: "No pings were made.",
      from: "from", to: "to", tests: "pings", failed: "failed", loss: "worst loss", average: "average", peers: "hosts", trimmed: "{n} findings are left out here to keep the page small; report.json has all of them.",
      foot: "Read-only preflight. The page needs no network. report.json beside it has the same content for programs.",
      peer_cap: "{pairs} pairs of hosts were not pinged (preflight_ping_peers)", budget: "{host}: {pairs} pings left out for lack of time, chips {chips}",
      no_address: "{host}: chips {chips} have no known address and were not pinged", no_other_host: "there is no other host to ping", no_ping: "this fabric has no ping",
      times: "{n} checks of hosts"
    },
    zh: {
      skip: "跳到问题列表", severity: "级别", host: "主机", chip: "芯片", check: "检查项", clear: "清除筛选", all: "全部",
      onlyBad: "仅显示有问题的主机", chipsTitle: "主机与芯片", checksTitle: "主机与检查项", findings: "问题列表",
      chipsHelp: "每个芯片最严重的问题。方向键移动，回车查看该格的问题。",
      pings: "主机间 ping", expected: "期望", found: "实际", usual: "其他为", copy: "复制", copied: "已复制", odd: "与众不同",
      ok: "正常", info: "提示", warning: "警告", unknown: "未知", error: "错误", blocked: "因其他问题无法判定",
      skipped: "未判定：需要本次未检查的主机", none: "不适用", alsoAt: "同时涉及", more: "再显示 {n} 条", shown: "显示 {n} / {all} 条",
      nothing: "没有问题。", notAsked: "未检查（不在 --limit 内）", silent: "没有应答", notJudged: "未判定",
      pingHelp: "模式 {mode}：行 ping 列。每格为失败次数，全部通过为圆点；其后为平均时延（微秒）。", noPings: "没有执行 ping。",
      from: "源", to: "目标", tests: "次数", failed: "失败", loss: "最大丢包", average: "平均", peers: "主机数", trimmed: "为控制页面大小，此处省略 {n} 条；完整内容见 report.json。",
      foot: "只读检查。本页面无需网络。同目录的 report.json 含相同内容，供程序读取。",
      peer_cap: "有 {pairs} 对主机未互 ping（preflight_ping_peers）", budget: "{host}：因时间不足省略 {pairs} 次 ping，芯片 {chips}",
      no_address: "{host}：芯片 {chips} 没有已知地址，未 ping", no_other_host: "没有其他主机可 ping", no_ping: "此网络没有 ping",
      times: "主机检查项"
    }
  };
  var lang = /^zh/i.test(navigator.language || "") ? "zh" : "en";
  var limit = PAGE;
  var badHosts = {}, chipFlags = {};

  function $(id) { return document.getElementById(id); }
  function fill(text, values) {
    return text.replace(/\{(\w+)\}/g, function (whole, name) { return name in values ? values[name] : whole; });
  }
  function t(key, values) { return fill(T[lang][key], values || {}); }
  function make(tag, text, attributes) {
    var node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    Object.keys(attributes || {}).forEach(function (name) { node.setAttribute(name, attributes[name]); });
    return node;
  }
  function title(check) { return D.checks[check][lang === "zh" ? 3 : 2]; }
  function where(host, chip) { return D.hosts[host] + (chip === null ? "" : " " + t("chip").toLowerCase() + " " + chip); }

  /* A verdict: [check, severity, host, chip, words, values, expected, found, also, odd]. */
  function texts(v) {
    var words = D.words[v[4]];
    var values = { host: D.hosts[v[2]], chip: v[3] === null ? "" : String(v[3]), expected: v[6], found: v[7] };
    words[4].forEach(function (name, place) { values[name] = v[5][place]; });
    var at = lang === "zh" ? 2 : 0;
    return [fill(words[at], values), fill(words[at + 1], values)];
  }
  function places(v) { return [[v[2], v[3]]].concat(v[8]); }

  D.verdicts.forEach(function (v) {
    places(v).forEach(function (place) {
      badHosts[place[0]] = true;
      if (v[9]) chipFlags[place[0] + "/" + (place[1] === null ? "" : place[1])] = true;
    });
  });

  function wanted() {
    var host = $("by-host").value.trim().toLowerCase();
    return {
      severities: SHOWN.filter(function (s) { return $("severity-" + s).checked; }),
      host: host,
      exact: D.hosts.some(function (name) { return name.toLowerCase() === host; }),
      chip: $("by-chip").value.trim(),
      check: $("by-check").value,
      onlyBad: $("only-bad").checked
    };
  }
  function hostFits(filter, host) {
    var name = D.hosts[host].toLowerCase();
    return !filter.host || (filter.exact ? name === filter.host : name.indexOf(filter.host) >= 0);
  }
  function fits(filter, v) {
    if (filter.severities.indexOf(v[1]) < 0) return false;
    if (filter.check !== "" && String(v[0]) !== filter.check) return false;
    return places(v).some(function (place) {
      return hostFits(filter, place[0]) && (filter.chip === "" || String(place[1]) === filter.chip);
    });
  }
  function rowFits(filter, host) { return hostFits(filter, host) && (!filter.onlyBad || badHosts[host]); }

  /* A grid that is one stop for the Tab key; arrows move inside. */
  function grid(label) {
    var table = make("table", null, { class: "grid", role: "grid", "aria-label": label });
    table.addEventListener("keydown", function (event) {
      var cell = event.target.closest("td[tabindex]");
      if (!cell) return;
      var row = cell.parentNode, index = cell.cellIndex, next = null;
      if (event.key === "ArrowRight") next = cell.nextElementSibling;
      else if (event.key === "ArrowLeft") next = cell.previousElementSibling;
      else if (event.key === "ArrowDown") next = row.nextElementSibling && row.nextElementSibling.cells[index];
      else if (event.key === "ArrowUp") next = row.previousElementSibling && row.previousElementSibling.cells[index];
      else if (event.key === "Home") next = row.cells[1];
      else if (event.key === "End") next = row.cells[row.cells.length - 1];
      else if (event.key === "Enter" || event.key === " ") { event.preventDefault(); cell.click(); return; }
      else return;
      event.preventDefault();
      if (next && next.tagName === "TD") move(table, next);
    });
    return table;
  }
  function move(table, cell) {
    var old = table.querySelector('td[tabindex="0"]');
    if (old) old.setAttribute("tabindex", "-1");
    cell.setAttribute("tabindex", "0");
    cell.focus();
  }
  function cell(sign, label, odd, action) {
    var look = SIGNS[sign] || SIGNS[" "];
    var node = make("td", look[1], { class: look[0] + (odd ? " odd" : ""), role: "gridcell", tabindex: "-1", "aria-label": label + ": " + t(look[0]) + (odd ? ", " + t("odd") : ""), title: label + ": " + t(look[0]) });
    node.addEventListener("click", action);
    return node;
  }
  function put(id, table, filled) {
    var first = table.querySelector("td[tabindex]");
    if (first) first.setAttribute("tabindex", "0");
    $(id).replaceChildren(filled ? table : make("p", t("nothing"), { style: "margin:.5rem 1rem" }));
  }
  function show(host, chip, check) {
    $("by-host").value = D.hosts[host];
    $("by-chip").value = chip === null ? "" : chip;
    $("by-check").value = check === null ? "" : String(check);
    limit = PAGE;
    list();
    $("findings").focus();
    $("findings").scrollIntoView({ block: "start" });
  }

  function chips(filter) {
    var columns = [], seen = {};
    D.chips.forEach(function (row) { if (row) D.chipSets[row[0]].forEach(function (chip) { if (!seen[chip]) { seen[chip] = true; columns.push(chip); } }); });
    columns.sort(function (a, b) { return a - b; });
    var table = grid(t("chipsTitle")), head = make("tr"), body = make("tbody"), rows = 0;
    head.append(make("th", t("host"), { scope: "col" }));
    columns.forEach(function (chip) { head.append(make("th", chip, { scope: "col" })); });
    D.chips.forEach(function (row, host) {
      if (!row || !rowFits(filter, host)) return;
      rows += 1;
      var tr = make("tr"), ids = D.chipSets[row[0]];
      tr.append(make("th", D.hosts[host], { scope: "row" }));
      columns.forEach(function (chip) {
        var at = ids.indexOf(chip), label = where(host, chip);
        tr.append(cell(at < 0 ? " " : row[1][at], label, chipFlags[host + "/" + chip], function () { show(host, chip, null); }));
      });
      body.append(tr);
    });
    var top = make("thead"); top.append(head); table.append(top, body);
    put("chips", table, rows && columns.length);
  }

  function checks(filter) {
    var table = grid(t("checksTitle")), head = make("tr"), body = make("tbody"), rows = 0;
    head.append(make("th", t("host"), { scope: "col" }));
    var columns = D.checks.map(function (_check, number) { return number; }).filter(function (number) {
      return (filter.check === "" || String(number) === filter.check) && D.cells[number].trim() !== "";
    });
    columns.forEach(function (number) {
      var th = make("th", null, { scope: "col", class: "tall", title: title(number) });
      th.append(make("span", D.checks[number][0])); head.append(th);
    });
    D.hosts.forEach(function (name, host) {
      if (!rowFits(filter, host)) return;
      rows += 1;
      var tr = make("tr");
      tr.append(make("th", name, { scope: "row" }));
      columns.forEach(function (number) {
        var odd = D.odd[number] && D.odd[number].indexOf(host) >= 0;
        tr.append(cell(D.cells[number][host], name + ", " + title(number), odd, function () { show(host, null, number); }));
      });
      body.append(tr);
    });
    var top = make("thead"); top.append(head); table.append(top, body);
    put("checks", table, rows && columns.length);
  }

  function copy(text, button) {
    function done() { button.textContent = t("copied"); setTimeout(function () { button.textContent = t("copy"); }, 1500); }
    function old() {
      var area = make("textarea"); area.value = text; document.body.append(area); area.select();
      document.execCommand("copy"); area.remove(); button.focus(); done();
    }
    if (navigator.clipboard && navigator.clipboard.writeText) navigator.clipboard.writeText(text).then(done, old); else old();
  }
  function command(parent, text) {
    parent.append(make("code", text));
    var button = make("button", t("copy"), { type: "button", class: "copy", "aria-label": t("copy") + ": " + text });
    button.addEventListener("click", function () { copy(text, button); });
    parent.append(button);
  }
  /* Commands stand between backquotes. */
  function fix(text) {
    var line = make("p"), parts = text.split("`");
    parts.forEach(function (part, place) { if (place % 2 && place < parts.length - 1) command(line, part); else line.append(part); });
    return line;
  }

  function item(v) {
    var severity = SEVERITIES[v[1]], said = texts(v);
    var node = make("li", null, { class: "is-" + severity, "data-check": D.checks[v[0]][0], "data-severity": severity });
    var head = make("div");
    head.append(make("span", SIGNS[LETTERS[v[1]]][1] + " " + t(severity), { class: "badge " + severity }));
    if (v[9]) head.append(make("span", t("odd"), { class: "badge odd" }));
    head.append(make("b", where(v[2], v[3])), " · ", make("span", t("check") + ": " + title(v[0]), { class: "soft" }), " ", make("code", D.checks[v[0]][0]));
    node.append(head, make("p", said[0]));
    var values = make("div", null, { class: "values" });
    [[v[9] ? "usual" : "expected", v[6]], ["found", v[7]]].forEach(function (pair) {
      if (!pair[1]) return;
      var one = make("span", t(pair[0]) + " "); one.append(make("code", pair[1])); values.append(one);
    });
    node.append(values, fix(said[1]));
    if (v[8].length) {
      var names = v[8].map(function (place) { return where(place[0], place[1]); });
      node.append(make("p", t("alsoAt") + ": " + names.slice(0, 16).join(", ") + (names.length > 16 ? " +" + (names.length - 16) : ""), { class: "soft" }));
    }
    return node;
  }
  function list() {
    var filter = wanted();
    var found = D.verdicts.filter(function (v) { return fits(filter, v); });
    $("findings-list").replaceChildren.apply($("findings-list"), found.slice(0, limit).map(item));
    var text = D.verdicts.length ? t("shown", { n: Math.min(found.length, limit), all: D.verdicts.length }) : t("nothing");
    if (D.trimmed) text += " " + t("trimmed", { n: D.trimmed });
    $("shown").textContent = text;
    $("more").hidden = found.length <= limit;
    $("more").textContent = t("more", { n: Math.min(PAGE, found.length - limit) });
  }

  function pings(filter) {
    var P = D.pings;
    $("pings-help").textContent = P.rows.length ? t("pingHelp", { mode: P.mode }) : t("noPings");
    if (!P.rows.length) { $("pings").hidden = true; return; }
    $("pings").hidden = false;
    var involved = {};
    P.rows.forEach(function (row) { involved[row[0]] = involved[row[1]] = true; });
    var hosts = Object.keys(involved).map(Number).sort(function (a, b) { return a - b; });
    if (hosts.length <= WIDE) wide(P, hosts, filter); else tall(P, hosts, filter);
  }
  /* A row: [from, to, pings, failed, worst loss, average or null]. */
  function wide(P, hosts, filter) {
    var at = {};
    P.rows.forEach(function (row) { at[row[0] + "/" + row[1]] = row; });
    var table = grid(t("pings")), head = make("tr"), body = make("tbody");
    head.append(make("th", t("from") + " \\ " + t("to"), { scope: "col" }));
    hosts.forEach(function (host) { var th = make("th", null, { scope: "col", class: "tall" }); th.append(make("span", D.hosts[host])); head.append(th); });
    hosts.forEach(function (from) {
      if (!rowFits(filter, from)) return;
      var tr = make("tr");
      tr.append(make("th", D.hosts[from], { scope: "row" }));
      hosts.forEach(function (to) {
        var row = at[from + "/" + to], sign = !row ? " " : row[3] ? (row[3] === row[2] && row[4] >= 100 ? "e" : "w") : "o";
        var label = D.hosts[from] + " → " + D.hosts[to];
        if (row) label += ", " + row[2] + " " + t("tests") + ", " + row[3] + " " + t("failed") + ", " + row[4] + " %" + (row[5] === null ? "" : ", " + row[5] + " µs");
        var node = cell(sign, label, false, function () { show(from, null, null); });
        if (row) { node.textContent = (row[3] ? SIGNS[sign][1] + row[3] : "·") + (row[5] === null ? "" : " " + row[5]); node.style.padding = "0 .35rem"; node.style.whiteSpace = "nowrap"; }
        tr.append(node);
      });
      body.append(tr);
    });
    var top = make("thead"); top.append(head); table.append(top, body);
    put("pings", table, true);
  }
  function tall(P, hosts, filter) {
    var sums = {};
    P.rows.forEach(function (row) {
      var sum = sums[row[0]] = sums[row[0]] || [0, 0, 0, 0, 0, 0];
      sum[0] += 1; sum[1] += row[2]; sum[2] += row[3]; sum[3] = Math.max(sum[3], row[4]);
      if (row[5] !== null) { sum[4] += row[5]; sum[5] += 1; }
    });
    var table = make("table", null, { class: "plain", "aria-label": t("pings") }), head = make("tr"), body = make("tbody");
    ["from", "peers", "tests", "failed", "loss", "average"].forEach(function (key) { head.append(make("th", t(key), { scope: "col" })); });
    hosts.forEach(function (host) {
      var sum = sums[host];
      if (!sum || !rowFits(filter, host)) return;
      var tr = make("tr");
      tr.append(make("th", D.hosts[host], { scope: "row" }));
      [sum[0], sum[1], sum[2] ? "E " + sum[2] : "0", sum[3] + " %", sum[5] ? Math.round(sum[4] / sum[5]) + " µs" : "–"].forEach(function (value, place) {
        tr.append(make("td", value, place === 2 && sum[2] ? { class: "error" } : {}));
      });
      body.append(tr);
    });
    var top = make("thead"); top.append(head); table.append(top, body);
    $("pings").replaceChildren(table);
    /* Nothing in this table takes the focus, so the box that scrolls does. */
    $("pings").setAttribute("tabindex", "0");
    $("pings").setAttribute("role", "region");
    $("pings").setAttribute("aria-labelledby", "pings-title");
  }

  function legend() {
    $("legend").replaceChildren.apply($("legend"), ["e", "u", "w", "i", "o", "b", "-"].map(function (sign) {
      var node = make("li"); node.append(make("b", SIGNS[sign][1], { class: SIGNS[sign][0], "aria-hidden": "true" }), t(SIGNS[sign][0])); return node;
    }).concat([(function () { var node = make("li"); node.append(make("b", "E", { class: "odd", "aria-hidden": "true" }), t("odd")); return node; }())]));
  }
  function tiles() {
    $("tiles").replaceChildren.apply($("tiles"), ["error", "unknown", "warning", "info", "ok"].map(function (severity) {
      var node = make("li", null, { class: severity });
      node.append(make("b", D.counts[severity]), t(severity) + (severity === "ok" ? " (" + t("times", { n: "" }).trim() + ")" : "")); return node;
    }));
    var lines = [];
    if (D.notAsked.length) lines.push(t("notAsked") + ": " + D.notAsked.join(", "));
    if (D.silent.length) lines.push(t("silent") + ": " + D.silent.join(", "));
    if (D.notJudged.length) lines.push(t("notJudged") + ": " + D.notJudged.map(title).join(", "));
    D.leftOut.forEach(function (one) { if (T[lang][one.why]) lines.push(t(one.why, { host: one.host, pairs: one.pairs, chips: (one.chips || []).join(", ") })); });
    $("gaps").replaceChildren.apply($("gaps"), lines.map(function (line) { return make("p", line); }));
  }
  function controls() {
    $("severities").replaceChildren.apply($("severities"), SHOWN.map(function (s) {
      var label = make("label"), old = $("severity-" + s);
      var box = make("input", null, { type: "checkbox", id: "severity-" + s });
      box.checked = box.defaultChecked = old ? old.checked : true;
      label.append(box, " " + SIGNS[LETTERS[s]][1] + " " + t(SEVERITIES[s])); return label;
    }));
    var chosen = $("by-check").value, used = {};
    D.verdicts.forEach(function (v) { used[v[0]] = true; });
    $("by-check").replaceChildren(make("option", t("all"), { value: "" }));
    D.checks.forEach(function (check, number) { if (used[number] || D.cells[number].trim()) $("by-check").append(make("option", check[0] + " · " + title(number), { value: number })); });
    $("by-check").value = chosen;
  }
  function tables() { var filter = wanted(); chips(filter); checks(filter); pings(filter); list(); }
  function all() {
    document.documentElement.lang = lang;
    document.querySelectorAll("[data-t]").forEach(function (node) { node.textContent = t(node.getAttribute("data-t")); });
    document.querySelectorAll("[data-lang]").forEach(function (node) { node.setAttribute("aria-pressed", String(node.getAttribute("data-lang") === lang)); });
    controls(); legend(); tiles(); tables();
  }

  D.hosts.forEach(function (name) { $("host-names").append(make("option", null, { value: name })); });
  $("only-bad").checked = $("only-bad").defaultChecked = D.hosts.length > 40 && D.verdicts.length > 0;
  document.querySelectorAll("[data-lang]").forEach(function (node) {
    node.addEventListener("click", function () { lang = node.getAttribute("data-lang"); all(); });
  });
  $("filters").addEventListener("input", function () { limit = PAGE; tables(); });
  $("filters").addEventListener("submit", function (event) { event.preventDefault(); });
  $("filters").addEventListener("reset", function () { limit = PAGE; setTimeout(tables, 0); });
  $("more").addEventListener("click", function () { limit += PAGE; list(); });
  all();
}());
