"use strict";
// Whatever comes from the API becomes a text node or the value of an attribute here, never markup; the page's policy enforces it.
(() => {
  const every = 2000, searchDelay = 250, limit = 20, newest = 10;
  const id = name => document.getElementById(name);

  // el makes an element; strings among the children become text.
  function el(tag, attributes, ...children) {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) if (value !== undefined && value !== false) e.setAttribute(name, value === true ? "" : value);
    e.append(...children.filter(c => c !== undefined && c !== null));
    return e;
  }
  function svg(tag, attributes, ...children) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
    e.append(...children);
    return e;
  }

  const number = n => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const count = (n, word) => number(n) + " " + word + (n === 1 ? "" : "s");
  // three rounds to three digits, and leaves out zeros at the end.
  const three = n => String(Number(n.toPrecision(3)));
  const micros = n => n < 1000 ? n + " µs" : n < 1e6 ? three(n / 1e3) + " ms" : three(n / 1e6) + " s";
  function span(ms) {
    const s = ms / 1000;
    if (s < 1) return "less than a second";
    if (s < 90) return Math.round(s) + " s";
    if (s < 5400) return Math.round(s / 60) + " min";
    return s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " days";
  }
  // since is by the program's clock: the browser's may be wrong.
  const since = (status, time) => span(Math.max(0, new Date(status.time) - new Date(time)));
  const clock = time => new Date(time).toLocaleTimeString([], {hour12: false});

  async function ask(path) {
    const answer = await fetch(path, {cache: "no-store", credentials: "omit"});
    if (!answer.ok) throw new Error(answer.status + " " + (await answer.text()).slice(0, 300));
    return answer.json();
  }

  // The program

  function showState(s) {
    const state = id("state"), wrong = s.findings.filter(f => f.severity === "wrong"), warnings = s.findings.filter(f => f.severity === "warning");
    state.className = !s.healthy ? "bad" : warnings.length ? "warn" : "good";
    state.textContent = (s.healthy ? "healthy" : "unhealthy") + (warnings.length ? ", " + count(warnings.length, "warning") : "");
    document.title = (state.className === "good" ? "" : "! ") + s.node + " – kube-nftproxy";
    id("node").textContent = "on " + s.node;
    id("why").replaceChildren(...wrong.map(f => el("li", {}, f.what)));
  }

  function showNumbers(s) {
    const l = s.loop || {};
    const list = [];
    const add = (name, value, small, bad) => list.push(el("div", {class: bad ? "bad" : undefined}, el("dt", {}, name), el("dd", {}, value, small ? el("small", {}, small) : undefined)));
    add("Services", number(s.counts.services));
    add("Endpoints", number(s.counts.endpoints));
    for (const [family, n] of Object.entries(s.counts.elements || {})) add("Elements " + family, number(n));
    add("Pending", number(l.pending || 0), l.oldestChange ? "oldest for " + since(s, l.oldestChange) : "");
    add("Problems", number(s.counts.problems), "objects not fully programmed", s.counts.problems > 0);
    add("Conflicts", number(s.counts.conflicts), "addresses claimed twice", s.counts.conflicts > 0);
    add("Repairs", number(l.repairsTotal || 0), "since the start", l.repairsTotal > 0);
    add("Syncs", number(l.syncs || 0), "in " + span(new Date(s.time) - new Date(s.started)));
    list.push(el("div", {class: s.api.answers ? "long" : "long bad"}, el("dt", {}, "Objects from"), el("dd", {}, s.api.source, el("small", {}, s.api.answers ? (s.api.answerMicroseconds ? "answers in " + micros(s.api.answerMicroseconds) : "") : s.api.error || "does not answer"))));
    list.push(el("div", {class: "long"}, el("dt", {}, "Program"), el("dd", {}, s.version, el("small", {}, "kernel " + s.kernel + ", mode " + s.mode))));
    if (l.leaseEnds) {
      const left = new Date(l.leaseEnds) - new Date(s.time);
      add("Lease", left > 0 ? "for " + span(left) : "expired", "renewed " + since(s, l.leaseRenewed) + " ago", left <= 0);
    }
    id("numbers").replaceChildren(...list);
  }

  const finding = f => el("div", {class: "finding"},
    el("p", {}, el("strong", {class: f.severity === "wrong" ? "bad" : f.severity === "warning" ? "warn" : "dim"}, f.severity), " " + f.what),
    f.impact ? el("p", {class: "dim"}, "impact: " + f.impact) : undefined,
    f.fix ? el("p", {class: "dim"}, "fix: ", el("code", {}, f.fix)) : undefined,
    f.affects ? el("p", {class: "dim"}, "affects: " + f.affects) : undefined);

  function showFindings(s) {
    const notes = s.findings.filter(f => f.severity === "note"), others = s.findings.filter(f => f.severity !== "note");
    id("findings").hidden = others.length === 0;
    id("findings-list").replaceChildren(...others.map(finding));
    id("notes").hidden = notes.length === 0;
    id("notes-count").textContent = count(notes.length, "note") + " about this node";
    id("notes-list").replaceChildren(...notes.map(finding));
  }

  function showRepairs(s) {
    const list = (s.loop && s.loop.repairs || []).slice().reverse();
    id("repairs").hidden = list.length === 0;
    id("repairs-list").replaceChildren(...list.map(r => el("div", {class: "finding"}, clock(r.time) + ", " + since(s, r.time) + " ago: " + r.why + (r.by ? "; the ruleset was last changed by " + r.by : ""))));
  }

  const names = sync => (sync.services || []).join(", ") + (sync.more ? " and " + number(sync.more) + " more" : "");
  const kinds = {full: "full rewrite", adopted: "tables adopted, equal to the plan", partial: "changes", nothing: "nothing to send"};
  const kind = sync => (kinds[sync.kind] || sync.kind) + (sync.why ? " (" + sync.why + ")" : "");

  function showSyncs(s, syncs) {
    const last = syncs[syncs.length - 1];
    const failure = s.loop && s.loop.failure;
    id("last").textContent = failure ? "Failing for " + since(s, failure.since) + ", " + count(failure.times, "time") + ": " + failure.error
      : !last ? "None yet." : "The last sync, " + since(s, last.time) + " ago: " + kind(last) + (names(last) ? " for " + names(last) : "") + ", " +
      count(last.elements, "element") + ", in " + micros(last.totalMicroseconds) + " (kernel " + micros(last.commitMicroseconds) + ").";
    id("last").className = failure ? "bad" : "";
    const rows = syncs.slice(-newest).reverse().map(y => el("tr", {}, ...[clock(y.time), kind(y), micros(y.totalMicroseconds), micros(y.commitMicroseconds),
      number(y.elements), names(y)].map(text => el("td", {}, text))));
    id("syncs-table").replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...["Time", "What", "Took", "Kernel", "Elements", "Services"].map(text =>
      el("th", {scope: "col"}, text)))), el("tbody", {}, ...rows)));
    plot(syncs);
  }

  function plot(syncs) {
    const box = id("plot"), width = Math.max(box.clientWidth, 260), height = box.clientHeight || 230;
    const left = 56, right = width - 12, top = 10, bottom = height - 24;
    const times = syncs.map(y => Math.max(1, y.totalMicroseconds));
    let low = Math.floor(Math.log10(Math.min(...times, 1e6))), high = Math.ceil(Math.log10(Math.max(...times, 1)));
    if (syncs.length === 0) [low, high] = [2, 4];
    while (high - low < 2) high++;
    const x = i => syncs.length < 2 ? (left + right) / 2 : left + 8 + (right - left - 16) * i / (syncs.length - 1);
    const y = t => bottom - (bottom - top) * Math.min(1, Math.max(0, (Math.log10(Math.max(1, t)) - low) / (high - low)));
    const parts = [];
    for (let power = low; power <= high; power++) {
      const at = y(10 ** power);
      parts.push(svg("line", {class: "grid", x1: left, x2: right, y1: at, y2: at}), svg("text", {x: left - 8, y: at + 4, "text-anchor": "end"}, micros(10 ** power)));
    }
    const marks = syncs.map((sync, i) => {
      const full = sync.kind === "full" || sync.kind === "adopted", a = x(i), b = y(times[i]);
      const mark = full ? svg("path", {d: `M${a} ${b - 6}L${a + 6} ${b}L${a} ${b + 6}L${a - 6} ${b}Z`}) : svg("circle", {cx: a, cy: b, r: sync.kind === "nothing" ? 3 : 3.5});
      mark.setAttribute("class", "sync " + sync.kind);
      mark.append(svg("title", {}, clock(sync.time) + " " + kind(sync) + "\n" + names(sync) + "\n" + count(sync.elements, "element") + ", " + micros(sync.totalMicroseconds) +
        " (kernel " + micros(sync.commitMicroseconds) + ")"));
      parts.push(svg("line", {class: "stem", x1: a, x2: a, y1: b, y2: sync.commitMicroseconds ? y(sync.commitMicroseconds) : b}));
      return mark;
    });
    if (syncs.length > 0) {
      parts.push(svg("text", {x: left, y: height - 4}, clock(syncs[0].time)));
      parts.push(svg("text", {x: right, y: height - 4, "text-anchor": "end"}, clock(syncs[syncs.length - 1].time)));
    }
    box.replaceChildren(svg("svg", {role: "img", "aria-label": count(syncs.length, "sync") + " and how long each took", viewBox: `0 0 ${width} ${height}`}, ...parts, ...marks));
  }

  // The Services

  const query = {find: "", wrong: false, offset: 0};
  const open = new Map();

  function endpointLine(e) {
    const used = e.cluster || e.local;
    const where = e.onThisNode ? "on this node" : e.node ? "on " + e.node : "on an unknown node";
    return el("li", {}, el("span", {class: used ? "good" : "warn"}, (used ? "+ " : "− ") + e.address), " " + e.conditions + ", " + where,
      e.whyNot ? el("span", {class: "warn"}, " – " + e.whyNot) : undefined);
  }

  const opensAt = p => p.endpoints.some(e => !e.cluster && !e.local) || p.endpointCount <= 3;

  function portPart(name, p, nodes) {
    const rows = p.frontends.map(f => {
      const notes = [];
      if (f.lostTo) notes.push("not programmed: already used by " + f.lostTo);
      if (f.does) notes.push(f.does);
      if (f.allowedSources) notes.push("allowed sources: " + f.allowedSources.join(", "));
      const cell = (label, text, style) => el("td", {"data-label": label, class: style}, text);
      return el("tr", {},
        cell("", f.kind === "NodePort" ? ":" + f.address + (nodes ? " on " + nodes : "") : f.address), cell("", p.protocol), cell("", f.kind), cell("policy", f.policy),
        cell("endpoints", f.endpoints === p.endpointCount ? String(f.endpoints) : f.endpoints + " of " + p.endpointCount, f.endpoints === 0 ? "bad" : undefined),
        cell("connections", f.connections === undefined ? "" : number(f.connections) + (f.refused ? ", " + number(f.refused) + " refused" : "")),
        cell("", notes.join("; "), "warn"));
    });
    const heads = ["Address", "Protocol", "Kind", "Policy", "Endpoints", "Connections", ""];
    const parts = [el("table", {}, el("thead", {}, el("tr", {}, ...heads.map(text => el("th", {scope: "col"}, text)))), el("tbody", {}, ...rows))];
    if (p.moreFrontends) parts.push(el("p", {class: "dim"}, "and " + number(p.moreFrontends) + " more addresses"));
    if (p.affinitySeconds) parts.push(el("p", {class: "dim"}, "session affinity for " + p.affinitySeconds + " s"));
    if (p.endpointCount === 0) return [...parts, el("p", {class: "bad"}, "no endpoints: " + (p.why || ""))];
    const key = name + " " + (p.name || "") + " " + p.protocol + " " + p.family;
    const label = count(p.endpointCount, "endpoint") + (p.name ? " of port " + p.name : "") + ", " + p.family;
    const details = el("details", {open: open.has(key) ? open.get(key) : opensAt(p)}, el("summary", {id: "endpoints of " + key}, label),
      el("ul", {class: "endpoints"}, ...p.endpoints.map(endpointLine), p.moreEndpoints ? el("li", {class: "dim"}, "and " + number(p.moreEndpoints) + " more: kube-nftproxy services " + name) : undefined));
    details.addEventListener("toggle", () => open.set(key, details.open));
    return [...parts, details];
  }

  function servicePart(s, nodes) {
    const name = s.namespace + "/" + s.name;
    const part = el("article", {class: "service" + (s.wrong ? " wrong" : ""), "data-name": name}, el("h3", {}, name));
    if (s.ports.length === 0 && !s.morePorts) {
      part.append(el("p", {class: "dim"}, "Not served on this node: it is headless, of type ExternalName, without a cluster IP, or labelled for another proxy; or none of its ports can be served."));
    }
    for (const text of s.problems || []) part.append(el("p", {class: "bad"}, "problem: " + text));
    for (const p of s.ports) part.append(...portPart(name, p, nodes.filter(a => a.includes(":") === (p.family === "IPv6")).join(", ")));
    if (s.morePorts) part.append(el("p", {class: "dim"}, "and " + number(s.morePorts) + " more ports: kube-nftproxy services " + name));
    if (s.unusable) part.append(el("p", {}, "endpoints that cannot be used for any port:"), el("ul", {class: "endpoints"}, ...s.unusable.map(endpointLine)));
    if (s.healthCheckNodePort) {
      const ready = Object.entries(s.localReady || {}).map(([family, n]) => n + " " + family).join(", ");
      part.append(el("p", {class: "dim"}, "health check node port " + s.healthCheckNodePort + ", ready endpoints on this node: " + ready));
    }
    return part;
  }

  let shown = "";
  function showServices(v) {
    const from = v.services.length ? v.offset + 1 : 0, to = v.offset + v.services.length;
    id("where").textContent = v.matching === 0 ? (v.total === 0 ? "no Services" : "none of " + number(v.total)) : number(from) + " to " + number(to) + " of " + number(v.matching) +
      (v.matching < v.total ? " (of " + number(v.total) + ")" : "");
    id("before").disabled = query.offset === 0;
    id("after").disabled = to >= v.matching;
    const text = JSON.stringify(v);
    if (text === shown) return;
    shown = text;
    // The element that has the keyboard focus keeps it.
    const at = document.activeElement && document.activeElement.id;
    id("services").replaceChildren(...v.services.map(s => servicePart(s, v.nodePortAddresses || [])));
    if (at && document.activeElement.id !== at && id(at)) id(at).focus({preventScroll: true});
  }

  const path = () => "status/services?" + new URLSearchParams({find: query.find, wrong: query.wrong ? "1" : "0", offset: query.offset, limit: limit});

  // Refreshing

  let timer, running = false, again = false, heard = 0, answers = 0, latest = [];

  async function refresh() {
    clearTimeout(timer);
    if (running) { again = true; return; }
    running = true;
    again = false;
    const wanted = path();
    try {
      const [status, syncs, services] = await Promise.all([ask("status/data"), ask("status/syncs").catch(() => latest), ask(wanted)]);
      latest = syncs; // the earlier ones if the loop is too busy to answer
      heard = performance.now();
      document.documentElement.dataset.answers = ++answers;
      showState(status);
      showNumbers(status);
      showFindings(status);
      showSyncs(status, syncs);
      showRepairs(status);
      if (wanted === path()) showServices(services);
      id("age").textContent = "as of " + clock(status.time) + ", updated every " + every / 1000 + " s";
      id("age").className = "dim";
    } catch (e) {
      id("age").textContent = (answers ? "no answer for " + span(performance.now() - heard) + "; the data below is old: " : "no answer: ") + e.message;
      id("age").className = "bad";
    }
    running = false;
    if (again) return refresh();
    if (!document.hidden) timer = setTimeout(refresh, every);
  }

  function startSearch(offset) {
    query.find = id("find").value.trim();
    query.wrong = id("wrong").checked;
    query.offset = Math.max(0, offset);
    const kept = new URLSearchParams();
    if (query.find) kept.set("find", query.find);
    if (query.wrong) kept.set("wrong", "1");
    if (query.offset) kept.set("offset", query.offset);
    history.replaceState(null, "", "#" + kept);
    refresh();
  }

  function fromAddress() {
    const kept = new URLSearchParams(location.hash.slice(1));
    id("find").value = query.find = kept.get("find") || "";
    id("wrong").checked = query.wrong = kept.get("wrong") === "1";
    query.offset = Math.max(0, parseInt(kept.get("offset"), 10) || 0);
    refresh();
  }

  let typing;
  id("find").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(() => startSearch(0), searchDelay); });
  id("wrong").addEventListener("change", () => startSearch(0));
  id("search").addEventListener("submit", event => { event.preventDefault(); startSearch(0); });
  id("before").addEventListener("click", () => startSearch(query.offset - limit));
  id("after").addEventListener("click", () => startSearch(query.offset + limit));
  document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(timer); else refresh(); });
  window.addEventListener("resize", () => { plot(latest); });
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
})();
