"use strict";
// Whatever comes from the API becomes a text node or the value of an attribute here, never markup; the page's policy enforces it.
(() => {
  const every = 2000, searchDelay = 250, limit = 50, newest = 10;
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

  // table makes a table; on a narrow screen, each cell is after the name of its column.
  const table = (heads, rows) => el("table", {}, el("thead", {}, el("tr", {}, ...heads.map(text => el("th", {scope: "col"}, text)))), el("tbody", {}, ...rows.map(cells =>
    el("tr", {}, ...cells.map((c, i) => el("td", {"data-label": c.label ? heads[i] : undefined, class: c.style}, c.text))))));

  // command matches a command in a sentence: it follows a colon, a quotation mark or a parenthesis.
  const command = /(?<=: |"|\()(?:ip|iptables-save|kube-nftproxy|kubectl|modprobe|nft|ss|sysctl) [^"()]+?(?=\. | shows | prints |["()]|\.?$)/g;

  // sentence returns a text, with a button after each command that copies it.
  function sentence(text) {
    const parts = [];
    let end = 0;
    for (const match of text.matchAll(command)) {
      const button = el("button", {type: "button", class: "copy", "aria-label": "Copy " + match[0]});
      button.addEventListener("click", () => navigator.clipboard.writeText(match[0]).then(() => button.classList.add("done")));
      parts.push(text.slice(end, match.index), el("code", {}, match[0]), button);
      end = match.index + match[0].length;
    }
    return [...parts, text.slice(end)];
  }

  const number = n => String(n).replace(/\B(?=(\d{3})+$)/g, "\u202f");
  const count = (n, word) => number(n) + " " + word + (n === 1 ? "" : "s");
  // three rounds to three digits, and leaves out zeros at the end.
  const three = n => String(Number(n.toPrecision(3)));
  const micros = n => n < 1000 ? n + "\u00a0µs" : n < 1e6 ? three(n / 1e3) + "\u00a0ms" : three(n / 1e6) + "\u00a0s";
  function span(ms) {
    const s = ms / 1000;
    if (s < 1) return "less than a second";
    if (s < 90) return Math.round(s) + "\u00a0s";
    if (s < 5400) return Math.round(s / 60) + "\u00a0min";
    return s < 172800 ? Math.round(s / 3600) + "\u00a0h" : Math.round(s / 86400) + "\u00a0days";
  }
  // since is by the program's clock: the browser's may be wrong.
  const since = (status, time) => span(Math.max(0, new Date(status.time) - new Date(time)));
  const clock = time => new Date(time).toLocaleTimeString([], {hour12: false});

  async function ask(path) {
    const answer = await fetch(path, {cache: "no-store", credentials: "omit"});
    if (!answer.ok) throw new Error(answer.status + " " + (await answer.text()).slice(0, 300));
    return answer.json();
  }

  // The node and the program

  let shownFindings = "";
  function showHealth(s) {
    const warnings = s.findings.some(f => f.severity === "warning");
    id("health").className = !s.healthy ? "bad" : warnings ? "warn" : "good";
    // An equal text is not set again, so that a screen reader says it once.
    if (id("state").textContent !== s.health) id("state").textContent = s.health;
    document.title = (s.healthy && !warnings ? "" : "! ") + s.node + " – kube-nftproxy";
    id("node").textContent = "on " + s.node;
    const last = s.loop && s.loop.last, sent = s.loop && s.loop.lastSent;
    const rules = [sent ? "rules updated " + since(s, sent.time) + " ago" : "", last && !(sent && sent.time === last.time) ? "checked " + since(s, last.time) + " ago" : ""].filter(text => text);
    id("facts").textContent = [count(s.counts.services, "Service") + " with " + count(s.counts.endpoints, "endpoint"), (s.families || []).join(" and "),
      last ? rules.join(", ") : "this process has written no rules yet" + (s.loop && s.loop.waits ? ": waiting " + s.loop.waits : "")].join(" · ");
    const notes = s.findings.filter(f => f.severity === "note"), others = s.findings.filter(f => f.severity !== "note");
    const text = JSON.stringify(s.findings);
    if (text === shownFindings) return; // so that a button keeps the keyboard focus
    shownFindings = text;
    id("findings").replaceChildren(...others.map(finding));
    id("notes").hidden = notes.length === 0;
    id("notes-count").textContent = count(notes.length, "note") + " about this node";
    id("notes-list").replaceChildren(...notes.map(finding));
  }

  // Only a fix has commands: other texts may quote a tenant.
  const facts = list => el("dl", {class: "facts"}, ...list.filter(([, text]) => text).map(([name, text]) =>
    el("div", {}, el("dt", {}, name), el("dd", {}, ...(name === "Fix" ? sentence(text) : [text])))));

  const reasons = "https://github.com/kube-nftproxy/kube-nftproxy/blob/main/docs/findings.md#:~:text=";
  const styles = {wrong: "bad", warning: "warn", note: "dim"};
  const finding = f => el("article", {class: "card " + f.severity, "data-reason": f.reason},
    el("h3", {}, el("span", {class: "tag " + styles[f.severity]}, f.severity), f.what),
    el("p", {class: "dim"}, el("a", {href: reasons + f.reason, rel: "noreferrer"}, el("code", {}, f.reason)), " – " + f.object),
    facts([["Impact", f.impact], ["Fix", f.fix], ["Affects", f.affects]]));

  function showNumbers(s) {
    const l = s.loop || {}, list = [];
    const add = (name, value, small, style) => {
      const term = [...id("terms").children].find(d => d.firstChild.textContent === name);
      list.push(el("div", {class: style}, el("dt", {title: term && term.lastChild.textContent}, name), el("dd", {}, value, small ? el("small", {}, small) : undefined)));
    };
    add("Waiting changes", number(l.pending || 0), l.oldestChange ? "the oldest for " + since(s, l.oldestChange) : "");
    add("Rejected parts", number(s.counts.problems), "Services with such parts", s.counts.problems > 0 ? "warn" : undefined);
    add("Address conflicts", number(s.counts.conflicts), "", s.counts.conflicts > 0 ? "warn" : undefined);
    const elements = Object.entries(s.counts.elements || {});
    add("Entries in the kernel", number(elements.reduce((sum, [, n]) => sum + n, 0)), elements.map(([family, n]) => family + " " + number(n)).join(", "));
    add("Rule updates", number(l.syncs || 0), "in " + span(new Date(s.time) - new Date(s.started)));
    add("Repairs", number(l.repairsTotal || 0), "since the start");
    if (l.leaseEnds) {
      const left = new Date(l.leaseEnds) - new Date(s.time);
      add("Lease", left > 0 ? "for " + span(left) : "expired", "renewed " + since(s, l.leaseRenewed) + " ago", left > 0 ? undefined : "bad");
    }
    add("Objects from", s.api.source, s.api.error || (!s.api.answers ? "does not answer" : s.api.answerMicroseconds ? "answers in " + micros(s.api.answerMicroseconds) : ""), s.api.answers && !s.api.error ? "long" : "long bad");
    add("Program", s.version, "as kube-proxy’s mode " + s.mode + ", Linux " + s.kernel, "long");
    id("numbers").replaceChildren(...list);
  }

  function showRepairs(s) {
    const list = (s.loop && s.loop.repairs || []).slice().reverse();
    id("repairs").hidden = list.length === 0;
    id("repairs-count").textContent = list.length ? number(s.loop.repairsTotal) : "";
    id("repairs-list").replaceChildren(...list.map(r => el("li", {}, clock(r.time) + ", " + since(s, r.time) + " ago: " + r.message + (r.by ? "; the ruleset was last changed by " + r.by : ""))));
  }

  const entries = n => number(n) + (n === 1 ? " entry" : " entries");
  const names = sync => (sync.services || []).join(", ") + (sync.more ? " and " + number(sync.more) + " more" : "");
  const kinds = {full: "all rules written", adopted: "checked, all rules correct", partial: "changed Services", nothing: "nothing to change"};
  const kind = sync => (kinds[sync.kind] || sync.kind) + (sync.message ? " (" + sync.message + ")" : "");

  function showSyncs(s, syncs) {
    const last = syncs[syncs.length - 1];
    const failure = s.loop && s.loop.failure;
    id("last").textContent = failure ? "Updates have failed for " + since(s, failure.since) + ", " + count(failure.times, "time") + ": " + failure.error
      : !last ? "None yet." : "The last one, " + since(s, last.time) + " ago: " + kind(last) + (names(last) ? ": " + names(last) : "") + ", " +
      entries(last.elements) + ", in " + micros(last.totalMicroseconds) + " (kernel " + micros(last.commitMicroseconds) + ").";
    id("last").className = failure ? "bad" : "";
    id("syncs-table").replaceChildren(table(["Time", "What", "Duration", "Kernel’s part", "Entries", "Services"], syncs.slice(-newest).reverse().map(y =>
      [clock(y.time), kind(y), micros(y.totalMicroseconds), micros(y.commitMicroseconds), number(y.elements), names(y)].map((text, i) => ({text, style: i === 1 || i === 5 ? "wide" : undefined})))));
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
      mark.append(svg("title", {}, clock(sync.time) + " " + kind(sync) + "\n" + names(sync) + "\n" + entries(sync.elements) + ", " + micros(sync.totalMicroseconds) +
        " (kernel " + micros(sync.commitMicroseconds) + ")"));
      parts.push(svg("line", {class: "stem", x1: a, x2: a, y1: b, y2: sync.commitMicroseconds ? y(sync.commitMicroseconds) : b}));
      return mark;
    });
    if (syncs.length > 0) {
      parts.push(svg("text", {x: left, y: height - 4}, clock(syncs[0].time)));
      parts.push(svg("text", {x: right, y: height - 4, "text-anchor": "end"}, clock(syncs[syncs.length - 1].time)));
    }
    box.replaceChildren(svg("svg", {role: "img", "aria-label": "The durations of the last " + count(syncs.length, "update"), viewBox: `0 0 ${width} ${height}`}, ...parts, ...marks));
  }

  // The Services

  const query = {find: "", wrong: false, offset: 0};
  const open = new Set();

  function endpointLine(e) {
    const used = e.cluster || e.local;
    const where = e.onThisNode ? "on this node" : e.node ? "on " + e.node : "on an unknown node";
    return el("li", {}, el("span", {class: used ? "good" : "warn"}, (used ? "+ " : "− ") + e.address), " " + e.conditions + ", " + where, e.message ? " – " + e.message : undefined);
  }

  const failed = (n, how) => n > 0 ? number(n) + " " + how : "";

  function portPart(name, p, nodes) {
    const rows = p.frontends.map(f => {
      const notes = [];
      if (f.message) notes.push(f.message);
      if (f.allowedSources) notes.push("allowed sources: " + f.allowedSources.join(", "));
      if (f.deniedSources) notes.push("denied sources: " + f.deniedSources.join(", "));
      return [
        {text: f.kind === "NodePort" ? ":" + f.address + (nodes ? " on " + nodes : "") : f.address, style: "wide"}, {text: p.protocol}, {text: f.kind},
        {text: f.policy, label: true},
        {text: f.endpoints === p.endpointCount ? String(f.endpoints) : f.endpoints + " of " + p.endpointCount,
          label: true, style: f.endpoints === 0 && !f.normal ? "bad" : undefined},
        {text: f.connections === undefined ? "" : [number(f.connections), failed(f.refused - (f.dropped || 0), "refused"), failed(f.dropped, "dropped")].filter(text => text).join(", "), label: true},
        {text: notes.join("; "), style: f.message && !f.normal ? "wide warn" : "wide dim"}];
    });
    const part = el("div", {class: "port"}, table(["Address", "Protocol", "Kind", "Policy", "Endpoints", "Connections", "Note"], rows));
    if (p.moreFrontends) part.append(el("p", {class: "dim"}, "and " + number(p.moreFrontends) + " more addresses"));
    if (p.affinitySeconds) part.append(el("p", {class: "dim"}, "session affinity for " + p.affinitySeconds + " s"));
    if (p.endpointCount === 0) {
      part.append(el("p", {class: "bad"}, "no endpoints: " + (p.message || "")));
    } else {
      part.append(el("p", {class: "dim"}, count(p.endpointCount, "endpoint") + (p.name ? " of port " + p.name : "") + ", " + p.family),
        el("ul", {}, ...p.endpoints.map(endpointLine), p.moreEndpoints ? el("li", {class: "dim"}, "and " + number(p.moreEndpoints) + " more: kube-nftproxy services " + name) : undefined));
    }
    return part;
  }

  // inside has all details of a Service.
  function inside(s, name, nodes) {
    const part = el("div", {class: "inside"}, ...s.ports.map(p => portPart(name, p, nodes.filter(a => a.includes(":") === (p.family === "IPv6")).join(", "))));
    if (s.ports.length === 0 && !s.morePorts) {
      part.append(el("p", {class: "dim"}, "Not served on this node: it has no cluster IP, or none of its ports can be served."));
    }
    if (s.morePorts) part.append(el("p", {class: "dim"}, "and " + number(s.morePorts) + " more ports: kube-nftproxy services " + name));
    if (s.unusable) part.append(el("div", {class: "port"}, el("p", {class: "dim"}, "endpoints that cannot be used for any port:"), el("ul", {}, ...s.unusable.map(endpointLine))));
    if (s.healthCheckNodePort) {
      const ready = Object.entries(s.localReady || {}).map(([family, n]) => n + " " + family).join(", ");
      part.append(el("p", {class: "dim"}, "health check node port " + s.healthCheckNodePort + ", ready endpoints on this node: " + ready));
    }
    return part;
  }

  // expandable makes an element with details that stay open or closed.
  function expandable(name, attributes, summary, content) {
    const e = el("details", {...attributes, open: open.has(name)}, el("summary", {id: "service " + name}, ...summary), content);
    e.addEventListener("toggle", () => { if (e.open) open.add(name); else open.delete(name); });
    return e;
  }

  // card shows a Service with a problem: its name, each cause with its fix, and all details.
  function card(s, nodes) {
    const name = s.namespace + "/" + s.name;
    return el("article", {class: "card wrong", "data-name": name}, el("h4", {}, name),
      el("ul", {class: "causes"}, ...s.causes.map(c => el("li", {}, facts([["Cause", c.what], ["Fix", c.fix]])))),
      expandable(name, {}, ["Addresses and endpoints"], inside(s, name, nodes)));
  }

  // row shows another Service in one line.
  function row(s, nodes) {
    const name = s.namespace + "/" + s.name, fronts = s.ports.flatMap(p => p.frontends.map(f => (f.kind === "NodePort" ? ":" : "") + f.address));
    const most = Math.max(0, ...s.ports.flatMap(p => p.frontends.map(f => f.endpoints)));
    const total = s.ports.flatMap(p => p.frontends).reduce((sum, f) => sum + (f.connections || 0), 0);
    const line = fronts.length === 0 ? [el("span", {class: "where"}, s.morePorts ? "many ports" : "not served here")] : [
      el("span", {class: "where"}, fronts[0] + (fronts.length > 1 ? " +" + (fronts.length - 1) + " more" : "")), el("span", {class: "end"}, count(most, "endpoint")),
      el("span", {class: "end more"}, count(total, "connection"))];
    return expandable(name, {class: "row", "data-name": name}, [el("span", {class: "name"}, name), ...line], inside(s, name, nodes));
  }

  let shown = "";
  function showServices(v) {
    const from = v.services.length ? v.offset + 1 : 0, to = v.offset + v.services.length;
    id("where").textContent = v.matching === 0 ? (v.withProblem < 0 ? "" : v.total === 0 ? "no Services" : "none of " + number(v.total)) : number(from) + " to " + number(to) + " of " + number(v.matching) +
      (v.matching < v.total ? " (of " + number(v.total) + ")" : "");
    id("before").disabled = query.offset === 0;
    id("after").disabled = to >= v.matching;
    id("before").hidden = id("after").hidden = query.offset === 0 && to >= v.matching;
    const text = JSON.stringify(v);
    if (text === shown) return;
    shown = text;
    // The element that has the keyboard focus keeps it.
    const at = document.activeElement && document.activeElement.id, nodes = v.nodePortAddresses || [];
    const wrong = v.services.filter(s => s.wrong), good = v.services.filter(s => !s.wrong);
    const problems = Math.max(0, v.withProblem), unknown = v.withProblem < 0;
    id("unread").hidden = !v.unread;
    id("unread").textContent = v.unread ? "Not read yet: " + v.unread.join(", ") + ". This list is incomplete, and does not describe the kernel’s rules." : "";
    id("wrong-count").textContent = unknown ? "" : number(problems);
    id("good-count").textContent = unknown ? "" : number(v.matching - problems);
    id("good").hidden = query.wrong;
    const none = unknown ? "Searching for problems…" : problems ? "On an earlier page." : query.find ? "None of the Services found has a problem on this node." : "No Service has a problem on this node.";
    id("wrong-services").replaceChildren(...wrong.length ? wrong.map(s => card(s, nodes)) : [el("p", {class: unknown || problems ? "dim" : "good"}, none)]);
    id("good-services").replaceChildren(...good.length ? good.map(s => row(s, nodes)) : [el("p", {class: "dim"}, v.matching > problems ? "On a later page." : "None.")]);
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
      showHealth(status);
      showNumbers(status);
      showSyncs(status, syncs);
      showRepairs(status);
      if (wanted === path()) showServices(services);
      id("age").textContent = "Updated at " + clock(status.time) + ", every " + every / 1000 + " s";
      id("age").className = "dim";
    } catch (e) {
      id("age").textContent = (answers ? "No answer for " + span(performance.now() - heard) + ". The data below is old: " : "No answer: ") + e.message;
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
