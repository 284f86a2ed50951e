// The status page: it asks the JSON API once a second and shows the answer. No text of the API is ever taken for HTML.
"use strict";

const $ = (selector, at = document) => at.querySelector(selector);

// el makes an element: attributes that begin with "on" are listeners.
function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== undefined && v !== null) e.setAttribute(k, v);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

function number(n) {
  return Math.round(n).toLocaleString("en");
}

function rate(n) {
  return n < 10 ? (Math.round(n * 10) / 10).toString() : number(n);
}

function scaled(n, unit) {
  for (const p of ["", "k", "M", "G"]) {
    if (n < 1000) return `${n < 10 && p ? n.toFixed(1) : Math.round(n)} ${p}${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} T${unit}`;
}

const percent = (x) => `${Math.round(100 * x)} %`;

let token = sessionStorage.getItem("token") || "";

async function api(method, path, body) {
  const headers = {};
  if (token) headers.Authorization = "Bearer " + token;
  if (method !== "GET") headers["Content-Type"] = "application/json";
  const r = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  const text = await r.text();
  let v;
  try {
    v = JSON.parse(text);
  } catch {
    throw new Error(`status ${r.status}`);
  }
  if (r.status === 401) {
    ask(token ? "The token is wrong." : "");
    throw new Error("");
  }
  if (!r.ok) throw new Error(v.error || `status ${r.status}`);
  return v;
}

function ask(why) {
  token = "";
  sessionStorage.removeItem("token");
  $("#main").hidden = true;
  $("#login").hidden = false;
  $("#state").textContent = why || "token wanted";
  $("#state").className = "badge warn";
}

$("#login").addEventListener("submit", (e) => {
  e.preventDefault();
  token = $("#token").value.trim();
  sessionStorage.setItem("token", token);
  $("#login").hidden = true;
  $("#main").hidden = false;
  tick();
});

function say(text) {
  $("#live").textContent = text;
}

// Charts.
const perSecond = (n) => rate(n) + "/s";
const charts = {
  sessions: new Chart($("#c-sessions"), "New sessions", perSecond, [""]),
  open: new Chart($("#c-open"), "Open sessions", number, [""]),
  bits: new Chart($("#c-bits"), "Traffic", (n) => scaled(n, "bit/s"), ["from clients", "to clients"]),
  drops: new Chart($("#c-drops"), "Dropped packets", perSecond, [""]),
};

let last = null;

// delta is how much a counter grew per second since the last answer.
function delta(now, before, seconds) {
  return before === undefined || seconds <= 0 || now < before ? 0 : (now - before) / seconds;
}

const sum = (list, f) => (list || []).reduce((n, x) => n + f(x), 0);

function show(s) {
  const before = last && last.started === s.started ? last : null;
  const seconds = before ? (new Date(s.now) - new Date(before.now)) / 1000 : 0;
  const serviceBefore = new Map((before ? before.services : []).map((x) => [x.name, x.traffic]));
  const nodeBefore = new Map();
  for (const f of before ? before.farms : []) for (const n of f.nodes || []) nodeBefore.set(f.name + "/" + n.name, n.traffic);

  const state = $("#state");
  state.textContent = s.draining ? "draining" : s.ready ? "ready" : "not ready";
  state.className = "badge " + (s.draining ? "warn" : s.ready ? "good" : "bad");
  $("#about").textContent = `${s.configuration.file}, in force since ${new Date(s.configuration.loaded).toLocaleString()}; version ${s.version}; ${s.device.type}${s.device.name ? " " + s.device.name : ""}, ${s.device.queues} queue${s.device.queues > 1 ? "s" : ""}`;
  const warnings = $("#warnings");
  warnings.hidden = !s.warnings;
  const texts = s.warnings || [];
  if (texts.join("\n") !== warnings.dataset.text) {
    warnings.dataset.text = texts.join("\n");
    warnings.replaceChildren(...texts.map((w) => el("li", {}, w)));
  }

  const services = s.services || [];
  const grew = (f) => sum(services, (x) => delta(f(x.traffic), serviceBefore.get(x.name) && f(serviceBefore.get(x.name)), seconds));
  const started = grew((t) => t.sessions);
  const inBits = 8 * grew((t) => t.in.bytes);
  const outBits = 8 * grew((t) => t.out.bytes);
  const dropped = delta(s.totals.dropped, before && before.totals.dropped, seconds);
  $("#totals").replaceChildren(
    ...[
      [number(s.totals.sessions), `open of ${number(s.totals.maxSessions)} sessions`],
      [perSecond(started), "new sessions"],
      [scaled(inBits, "bit/s"), "from clients"],
      [scaled(outBits, "bit/s"), "to clients"],
      [perSecond(dropped), `dropped, ${number(s.totals.dropped)} in all`],
    ].map(([value, label]) => el("div", { class: "total" }, el("b", {}, value), el("span", {}, label))),
  );
  if (before) {
    charts.sessions.push(started);
    charts.bits.push(inBits, outBits);
    charts.drops.push(dropped);
  }
  charts.open.push(s.totals.sessions);

  $("#services tbody").replaceChildren(
    ...services.map((x) => {
      const b = serviceBefore.get(x.name);
      const cls = x.disabled ? "badge" : x.usableNodes === 0 ? "badge bad" : "badge good";
      return el("tr", {},
        el("th", { scope: "row" }, x.name), el("td", {}, x.match), el("td", {}, x.farm),
        el("td", { class: "n" }, el("span", { class: cls }, x.disabled ? "disabled" : `${x.usableNodes} of ${x.nodes}`)),
        el("td", { class: "n" }, rate(delta(x.traffic.sessions, b && b.sessions, seconds))),
        el("td", { class: "n" }, scaled(8 * delta(x.traffic.in.bytes, b && b.in.bytes, seconds), "bit/s")),
        el("td", { class: "n" }, scaled(8 * delta(x.traffic.out.bytes, b && b.out.bytes, seconds), "bit/s")),
        el("td", { class: "n" }, number(x.traffic.refused)));
    }),
  );
  farms(s.farms || [], nodeBefore, seconds);

  const dropsBefore = new Map(((before && before.drops) || []).map((d) => [d.reason, d.packets]));
  const drops = s.drops || [];
  $("#drops tbody").replaceChildren(
    ...(drops.length ? drops.map((d) => el("tr", {}, el("th", { scope: "row" }, d.reason), el("td", { class: "n" }, number(d.packets)), el("td", { class: "n" }, rate(delta(d.packets, dropsBefore.get(d.reason) || 0, seconds)))))
      : [el("tr", {}, el("td", { colspan: "3" }, "none"))]),
  );
  choices($("#sessions [name=service]"), services.map((x) => x.name));
  choices($("#sessions [name=node]"), (s.farms || []).flatMap((f) => (f.nodes || []).map((n) => f.name + "/" + n.name)));
  last = s;
}

function choices(select, names) {
  if (select.dataset.names === names.join("\n")) return;
  select.dataset.names = names.join("\n");
  const value = select.value;
  select.replaceChildren(el("option", { value: "" }, "all"), ...names.map((n) => el("option", {}, n)));
  select.value = names.includes(value) ? value : "";
}

const cards = new Map();

// farms keeps the cards of nodes that stay, so that the keyboard's focus stays where it is.
function farms(list, before, seconds) {
  const at = $("#farms > div");
  const shape = list.map((f) => f.name + ":" + (f.nodes || []).map((n) => n.name).join(",")).join(";");
  if (at.dataset.shape !== shape) {
    at.dataset.shape = shape;
    cards.clear();
    at.replaceChildren(...list.flatMap((f) => {
      const nodes = (f.nodes || []).map((n) => card(f.name, n.name));
      return [el("h3", { id: "farm-" + f.name }, `${f.name} `, el("span", { class: "soft" })), el("ul", { class: "nodes", "aria-labelledby": "farm-" + f.name }, ...nodes)];
    }));
  }
  for (const f of list) {
    $("span", document.getElementById("farm-" + f.name)).textContent = `${f.metric}, ${f.usableNodes} of ${(f.nodes || []).length} usable`;
    const grown = (f.nodes || []).map((n) => {
      const b = before.get(f.name + "/" + n.name);
      return delta(n.traffic.sessions, b && b.sessions, seconds);
    });
    (f.nodes || []).forEach((n, i) => fill(cards.get(f.name + "/" + n.name), n, grown[i], before.get(f.name + "/" + n.name), seconds));
  }
}

function card(farm, name) {
  const c = { farm, name };
  const button = (text, admin) => el("button", { type: "button", onclick: () => wish(c, admin, text), "aria-label": `${text} node ${name} of farm ${farm}` }, text);
  c.badge = el("span", { class: "badge" });
  c.reason = el("p", { class: "soft" });
  c.bar = el("div", { class: "share", role: "img" });
  c.bar.innerHTML = '<svg viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true"><rect class="got" height="10"/><rect class="due" width="0.8" height="10"/></svg>';
  c.list = el("dl", {});
  c.enable = button("Enable", "enabled");
  c.drain = button("Drain", "draining");
  c.disable = button("Disable", "disabled");
  cards.set(farm + "/" + name, c);
  return el("li", { class: "node" }, el("h4", {}, el("span", {}, name), c.badge), c.reason, c.bar, c.list, c.enable, c.drain, c.disable);
}

function fill(c, n, started, before, seconds) {
  const text = n.state === "available" ? (n.pressure === "normal" ? "up" : `up, pressure ${n.pressure}`) : n.state;
  c.badge.textContent = text;
  c.badge.className = "badge " + (n.state === "available" ? (n.pressure === "normal" ? "good" : "warn") : n.state === "down" ? "bad" : "warn");
  c.reason.textContent = `${n.address}: ${n.reason}`;
  $(".got", c.bar).setAttribute("width", 100 * n.got);
  $(".due", c.bar).setAttribute("x", Math.min(99.2, 100 * n.share));
  c.bar.setAttribute("aria-label", `got ${percent(n.got)} of the sessions; its weight gives it ${percent(n.share)} of new ones`);
  const rows = [
    ["Share, due", `${percent(n.got)}, ${percent(n.share)} by weight ${n.weight}`],
    ["Sessions", number(n.sessions) + (n.maxSessions ? ` of ${number(n.maxSessions)}` : "") + `, ${rate(started)} new/s`],
    ["From, to clients", `${scaled(8 * delta(n.traffic.in.bytes, before && before.in.bytes, seconds), "bit/s")}, ${scaled(8 * delta(n.traffic.out.bytes, before && before.out.bytes, seconds), "bit/s")}`],
    ["Pressure", n.pressure],
  ];
  if (n.health.checked && n.health.probes) rows.push(["Check", `${(1000 * n.health.latencySeconds).toFixed(1)} ms, ${number(n.health.failures)} of ${number(n.health.probes)} failed`]);
  c.list.replaceChildren(...rows.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
  c.enable.hidden = n.admin === "enabled";
  c.drain.hidden = n.admin === "draining";
  c.disable.hidden = n.admin === "disabled";
}

async function wish(c, admin, verb) {
  if (admin === "disabled" && !confirm(`Disable ${c.farm}/${c.name}? Its sessions end.`)) return;
  try {
    const n = await api("PUT", `/api/v1/nodes/${encodeURIComponent(c.farm)}/${encodeURIComponent(c.name)}`, { admin });
    const focused = document.activeElement;
    say(`${verb} ${c.farm}/${c.name}: ${n.state}, ${n.reason}`);
    await tick();
    if (focused && focused.hidden) (admin === "enabled" ? c.drain : c.enable).focus();
  } catch (e) {
    say(`${verb} ${c.farm}/${c.name}: ${e.message}`);
  }
}

// query makes the query of a form's fields that are filled in.
function query(form) {
  const q = new URLSearchParams();
  for (const [k, v] of new FormData(form)) if (v) q.set(k, v);
  return q.toString();
}

$("#sessions form").addEventListener("submit", async (e) => {
  e.preventDefault();
  const out = $("#sessions [role=status]");
  const table = $("#sessions table");
  try {
    const r = await api("GET", "/api/v1/sessions?" + query(e.target));
    out.textContent = `${number(r.matched)} sessions match` + (r.matched > r.sessions.length ? `; the first ${r.sessions.length}:` : "");
    table.hidden = r.sessions.length === 0;
    $("tbody", table).replaceChildren(...r.sessions.map((x) => el("tr", {}, ...[x.protocol, x.client, x.vip, x.nodeName, x.service, x.phase].map((v) => el("td", {}, v)), ...[x.in.bytes, x.out.bytes].map((v) => el("td", { class: "n" }, scaled(v, "B"))))));
  } catch (err) {
    out.textContent = err.message;
    table.hidden = true;
  }
});

$("#explain form").addEventListener("submit", async (e) => {
  e.preventDefault();
  const verdict = $("#explain .verdict");
  const pre = $("#explain pre");
  try {
    const r = await api("GET", "/api/v1/explain?" + query(e.target));
    verdict.textContent = r.verdict === "dropped" ? `dropped: ${r.reason}` : r.verdict + (r.node ? ` to ${r.node}` : "") + (r.service ? `, service ${r.service}` : "");
    pre.textContent = r.text;
    pre.hidden = false;
  } catch (err) {
    verdict.textContent = err.message;
    pre.hidden = true;
  }
});

// Trace: packets as they are forwarded, the last ones first, each with its whole explanation.
const mostTraced = 50;
let tracing = null;

$("#trace .stop").addEventListener("click", () => tracing && tracing.abort());

$("#trace form").addEventListener("submit", async (e) => {
  e.preventDefault();
  if (tracing) tracing.abort();
  const mine = (tracing = new AbortController());
  const out = $("#trace [role=status]");
  const list = $("#trace ol");
  const stop = $("#trace .stop");
  const show = (x) => {
    const what = x.verdict === "dropped" ? `dropped: ${x.reason}` : x.verdict + (x.node ? ` to ${x.node}` : "");
    const at = new Date(x.time).toLocaleTimeString([], { hour12: false, fractionalSecondDigits: 3 });
    list.prepend(el("li", {}, el("details", {}, el("summary", {}, `${at} ${what}${x.service ? `, service ${x.service}` : ""}`), el("pre", { tabindex: "0" }, x.text))));
    // What somebody reads stays.
    for (const old of [...list.children].slice(mostTraced)) if (!old.firstChild.open) old.remove();
  };
  let seen = 0;
  try {
    const headers = token ? { Authorization: "Bearer " + token } : {};
    const r = await fetch("/api/v1/trace?" + query(e.target), { headers, signal: mine.signal });
    if (!r.ok) throw new Error((await r.json()).error);
    list.replaceChildren();
    out.textContent = "tracing";
    stop.hidden = false;
    const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        show(JSON.parse(line));
        seen++;
      }
    }
    out.textContent = `ended after ${number(seen)} packets`;
  } catch (err) {
    out.textContent = mine.signal.aborted ? `stopped after ${number(seen)} packets` : err.message;
  }
  if (tracing === mine) {
    stop.hidden = true;
    tracing = null;
  }
});

// Links carry no token, so the page fetches for them.
for (const id of ["api", "metrics"]) {
  $("#" + id).addEventListener("click", async (e) => {
    if (!token) return;
    e.preventDefault();
    const r = await fetch(e.target.getAttribute("href"), { headers: { Authorization: "Bearer " + token } });
    $("#explain .verdict").textContent = e.target.textContent;
    const pre = $("#explain pre");
    pre.textContent = await r.text();
    pre.hidden = false;
    pre.focus();
  });
}

let asking = false;

async function tick() {
  if (asking || !$("#login").hidden) return;
  asking = true;
  try {
    show(await api("GET", "/api/v1/status"));
    if ($("#live").dataset.lost) {
      delete $("#live").dataset.lost;
      say("connected again");
    }
  } catch (e) {
    if (e.message && !$("#live").dataset.lost) {
      $("#live").dataset.lost = "1";
      say(`no answer from the balancer: ${e.message}`);
      $("#state").textContent = "no answer";
      $("#state").className = "badge bad";
    }
  } finally {
    asking = false;
  }
}

tick();
setInterval(() => {
  if (!document.hidden) tick();
}, 1000);
