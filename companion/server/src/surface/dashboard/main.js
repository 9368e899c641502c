// The dashboard: asks for the history while the page is visible, and draws what is picked.

import {createActions} from "./actions.js";
import {createCharts} from "./charts.js";
import {details} from "./details.js";
import {byId, el, setOptions, setText} from "./dom.js";
import {clock, endpointsOf, since, tenantsOf} from "./series.js";
import {createSource} from "./source.js";

/** Data is old if its last sample is older than this many intervals. */
const OLD_INTERVALS = 3;

// The picks are in the address, so that a reload and a link keep them.
const picks = new URLSearchParams(location.hash.slice(1));
const pick = (name, value) => {
  if (value) picks.set(name, value);
  else picks.delete(name);
  history.replaceState(null, "", `#${picks}`);
  if (name === "pool") {
    source.show(value);
    source.ask();
  }
  draw();
};

const isOld = () => {
  const age = source.age();
  return source.failure !== undefined || (age !== undefined && age > OLD_INTERVALS * source.intervalMs);
};

const showAge = () => {
  const age = source.age();
  document.body.classList.toggle("old", isOld());
  setText(byId("age"), age === undefined ? "no data yet" : `data is ${since(age / 1000)} old`);
  const notice = byId("notice");
  if (source.failure !== undefined) {
    // Without the seconds, so that a screen reader reads it once.
    const from = source.answeredAt === undefined ? "" : ` since ${clock(source.answeredAt)}; the charts show the data of then`;
    setText(notice, `No answer from the companion${from} (${source.failure}). It is asked again.`);
    document.title = "Penstock: no answer";
  } else if (age !== undefined && isOld()) {
    setText(notice, "The companion answers, but its last sample is old: it is very busy, or was suspended.");
  } else if (source.answeredAt !== undefined) {
    setText(notice, "");
    const waiting = source.status.pools.reduce((sum, pool) => sum + pool.waiting, 0);
    document.title = `Penstock: ${waiting} waiting`;
  }
};

const role = replicas => {
  if (!replicas?.role) return "";
  if (replicas.role === "leader") return `leader${replicas.term ? ` of term ${replicas.term}` : ""}`;
  return replicas.leader ? `standby; the leader is ${replicas.leader}` : "standby; no companion leads";
};

const showFacts = () => {
  const {status} = source;
  const open = status.sessions.filter(session => session.open).length;
  const facts = [`version ${status.version}`, `up ${since(status.uptime_s)}`, `${open} sessions`];
  if (status.replicas) facts.push(role(status.replicas) || `one of ${status.replicas.companions.length} companions`);
  if (status.config) facts.push(`configuration ${status.config.source} (${status.config.digest.slice(0, 12)})`);
  if (status.draining) facts.push("draining");
  setText(byId("facts"), facts.join(" · "));
};

const adviceOf = () => {
  const {status} = source;
  const lines = status.advice.map(line => ({line}));
  for (const pool of status.pools) for (const line of pool.advice) lines.push({pool: status.pools.length > 1 ? pool.name : "", line});
  return lines;
};

const showAdvice = () => {
  const lines = adviceOf();
  const node = byId("advice");
  const key = JSON.stringify(lines);
  if (node.dataset.lines === key) return;
  node.dataset.lines = key;
  node.replaceChildren(...lines.length ? [el("div", {class: "advice"}, el("h2", {}, "Advice"),
    el("ul", {}, lines.map(({pool, line}) => el("li", {}, pool ? `pool ${pool}: ${line}` : line))))] : []);
};

const row = (head, ...cells) => el("tr", {}, el("th", {scope: "row"}, head), cells.map(cell => el("td", {class: "words"}, cell)));

const showCompanions = () => {
  const {status} = source;
  const rows = [];
  if (status.replicas) {
    rows.push(row("this companion", role(status.replicas) || "a leader for each pool"));
    rows.push(row("companions", status.replicas.companions.join(", ")));
    for (const pool of status.pools) if (pool.replicas) rows.push(row(`pool ${pool.name}`, role(pool.replicas)));
  } else {
    rows.push(row("companions", "this one alone; there is no standby"));
  }
  const waiting = status.sessions.reduce((sum, session) => sum + session.waiting, 0);
  const running = status.sessions.reduce((sum, session) => sum + session.running, 0);
  const open = status.sessions.filter(session => session.open).length;
  const lost = status.sessions.length - open;
  rows.push(row("sessions of Envoy's workers", `${open} open${lost ? `, ${lost} lost` : ""}; ${waiting} requests wait, ${running} run`));
  byId("companions-body").replaceChildren(el("table", {}, el("tbody", {}, rows)));
};

const options = (names, picked, all) => {
  const listed = picked && !names.includes(picked) ? [picked, ...names] : names;
  return [...all === undefined ? [] : [{value: "", text: all}], ...listed.map(name => ({value: name, text: name}))];
};

const showPicks = view => {
  const pools = source.status.pools.map(pool => pool.name);
  setOptions(byId("pick-pool"), options(pools), source.pool);
  setOptions(byId("pick-tenant"), options(tenantsOf(view.samples).tenants.map(({name}) => name).sort(), view.tenant, "all"), view.tenant);
  const endpoints = view.statusPool?.endpoints.map(({address}) => address) ?? endpointsOf(view.samples);
  setOptions(byId("pick-endpoint"), options(endpoints, view.endpoint, "all"), view.endpoint);
  byId("pick-none").disabled = !view.tenant && !view.endpoint;
};

const draw = () => {
  showAge();
  if (source.answeredAt === undefined) return;
  const view = {
    samples: source.samples, bands: source.bands, intervalMs: source.intervalMs, spanMs: source.spanMs, pick,
    tenant: picks.get("tenant") ?? "", endpoint: picks.get("endpoint") ?? "",
    unit: source.samples.findLast(({pool}) => pool)?.pool.unit ?? "requests",
    statusPool: source.status.pools.find(pool => pool.name === source.pool),
  };
  showFacts();
  showAdvice();
  showPicks(view);
  drawCharts(view);
  byId("details-body").replaceChildren(...details(view.statusPool));
  showCompanions();
  actions.update(view);
};

const source = createSource(draw);
const drawCharts = createCharts(byId("charts"));
const actions = createActions(byId("admin"), source);
for (const name of ["pool", "tenant", "endpoint"]) byId(`pick-${name}`).addEventListener("change", event => pick(name, event.target.value));
byId("pick-none").addEventListener("click", () => {
  pick("tenant", "");
  pick("endpoint", "");
});
source.show(picks.get("pool") ?? "");
setText(byId("notice"), "Asking the companion.");
setInterval(showAge, 1_000);
source.ask();
