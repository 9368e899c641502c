// Tables of the picked pool's present state, as far as the charts don't show it: servers, learned models, classes.

import {el} from "./dom.js";
import {format} from "./series.js";

const number = value => typeof value === "number" ? format(value, "count") : value ?? "–";

/** Columns whose name ends in ":" hold words. */
const table = (title, head, rows) => {
  const kinds = head.map(name => name.endsWith(":") ? "words" : null);
  const cells = row => row.map((cell, at) => at === 0 ? el("th", {scope: "row"}, cell) : el("td", {class: kinds[at]}, number(cell)));
  return el("div", {class: "scroll"}, el("table", {}, el("caption", {}, title),
    el("thead", {}, el("tr", {}, head.map((name, at) => el("th", {scope: "col", class: kinds[at]}, name.replace(":", ""))))),
    el("tbody", {}, rows.map(row => el("tr", {}, cells(row))))));
};

// An open gate's bound is the largest number that there is.
const bound = value => value > 1e18 ? "any" : value;
const percent = value => value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`;
const labels = endpoint => Object.entries(endpoint.labels ?? {}).map(([name, value]) => `${name}=${value}`).join(" ");

/** Rows of budgets. */
const BUDGETS_MAX = 20;
const OVER = {demote: "over: goes after all others", hold: "over: waits for room", refuse: "over: refused"};
const over = (budget, window) => window.remaining > 0 ? "" : budget.shadow ? "over, only counted (shadow)" : OVER[budget.over] ?? "over";

/** The tables of a pool in `/status`. */
export const details = pool => {
  if (!pool) return [];
  const tables = [];
  if (pool.endpoints.length) {
    const head = ["endpoint:", "variant:", "in flight", "bound", "not ours", "server's queue", "kv cache", "state:", "labels:"];
    tables.push(table("Endpoints", head, pool.endpoints.map(endpoint => [endpoint.address, endpoint.variant, endpoint.stock, bound(endpoint.bound),
      endpoint.foreign, endpoint.queue, percent(endpoint.kv), endpoint.why, labels(endpoint)])));
  } else {
    tables.push(el("p", {class: "warn"}, "No endpoint is known."));
  }
  const windows = (pool.budgets ?? []).flatMap(budget => budget.windows.map(window => [budget, window])).slice(0, BUDGETS_MAX);
  if (windows.length) {
    const head = ["tenant:", "window:", "limit", "used", "left", "empty at:", "over:"];
    tables.push(table("Budgets, the tightest first", head, windows.map(([budget, window]) => [budget.flow, `${window.per} ${window.unit}`, window.limit,
      window.used + window.reserved, window.remaining, window.resets_at, over(budget, window)])));
  }
  if (pool.model.length) {
    const head = ["variant:", "model:", "alpha ms", "beta ms", "gamma ms", "takes/s each", "offered/s", "servers", "needed"];
    tables.push(table("Learned models", head, pool.model.map(variant => [variant.variant, variant.state.replaceAll("_", " "), variant.alpha, variant.beta,
      variant.gamma, variant.lambda_star, variant.demand, variant.current_replicas, variant.desired_replicas])));
  }
  if (pool.classes.length) {
    tables.push(table("Classes", ["class:", "waiting", "quantum", "deficit"], pool.classes.map(({name, waiting, quantum, deficit}) =>
      [name, waiting, quantum, deficit])));
  }
  return tables;
};
