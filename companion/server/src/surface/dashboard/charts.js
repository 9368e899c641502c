// The charts of the dashboard: what each of them shows of the samples.

import {chart, columns} from "./chart.js";
import {el} from "./dom.js";
import {buckets, each, endpointIn, endpointsOf, mean, most, moving, sum, tenantIn, tenantsOf} from "./series.js";

const MINUTE_MS = 60_000;
const REFUSED_STEP_MS = 30_000;
/** Lines of tenants or endpoints in one chart; a picked one is always among them. */
const LINES = 5;
/** Endpoints with a chart of their own. */
const ENDPOINTS = 8;

const REASONS = {
  rejected_queue_full: "queue full", rejected_too_many_flows: "queue full, new tenant", rejected_flow_capacity: "tenant's limit",
  rejected_class_capacity: "class's limit", rejected_policy: "policy", rejected_unmeetable: "deadline unmeetable",
  rejected_budget: "tenant's budget",
  rejected_invalid: "invalid request", displaced: "displaced by a more critical one",
  evicted: "evicted for a critical one", expired_ttl: "waited too long (ttl)",
  deadline_exceeded: "client's deadline", no_endpoints: "no endpoint", shutting_down: "shutting down",
  gateway_unavailable: "companion unavailable", internal: "internal error",
};

const byBand = (view, field, ofTenant) => {
  const read = pool => ofTenant ? tenantIn(pool, view.tenant)[field] : pool[field];
  const bands = view.bands.map((name, band) => ({
    name, className: name, style: "area", values: each(view.samples, pool => read(pool)[band]),
  }));
  const all = {name: "all", values: each(view.samples, pool => sum(read(pool)))};
  return [...bands, all];
};

const waiting = view => ({
  title: view.tenant ? `Waiting: ${view.tenant}` : "Waiting",
  note: "requests in the queue, by band", axis: "requests", format: "count", isWhole: true,
  series: byBand(view, "waiting", view.tenant), rowHead: "band",
});

const inFlight = view => {
  if (view.endpoint) {
    const values = each(view.samples, pool => endpointIn(pool, view.endpoint)?.stock ?? null);
    const series = [{name: view.endpoint, className: "c0", style: "area", values}];
    return {title: `In flight: ${view.endpoint}`, note: `${view.unit} at this endpoint`, axis: view.unit, format: "count", isWhole: true, series, rowHead: "endpoint"};
  }
  return {
    title: view.tenant ? `In flight: ${view.tenant}` : "In flight",
    note: "requests at the endpoints, by band", axis: "requests", format: "count", isWhole: true,
    series: byBand(view, "in_flight", view.tenant), rowHead: "band",
  };
};

const tenantButton = (view, name) => el("button", {
  type: "button", "data-pick": name, "aria-pressed": String(view.tenant === name), onclick: () => view.pick("tenant", view.tenant === name ? "" : name),
}, name);

/** Shares of the last minute as lines, each beside its due share, and the sums of the whole time as a table. */
const shares = view => {
  const {tenants, other, otherShare, all} = tenantsOf(view.samples);
  const total = moving(view.samples, MINUTE_MS, pool => pool.other.served + sum(pool.tenants.map(tenant => tenant.served)));
  const share = read => moving(view.samples, MINUTE_MS, read).map((value, at) => value === null || !total[at] ? null : value / total[at]);
  const leaders = tenants.slice(0, LINES).map(({name}) => name);
  const drawn = view.tenant ? [view.tenant] : leaders;
  const series = [];
  tenants.forEach((tenant, place) => {
    const {name} = tenant;
    const className = place < 7 ? `c${place}` : "c7";
    const isDrawn = drawn.includes(name);
    series.push({
      ...tenant, className, style: isDrawn && "line", label: tenantButton(view, name), quiet: Boolean(view.tenant) && !isDrawn,
      values: share(pool => tenantIn(pool, name).served), waitingNow: each(view.samples, pool => sum(tenantIn(pool, name).waiting)),
      inFlightNow: each(view.samples, pool => sum(tenantIn(pool, name).in_flight)),
    });
    if (isDrawn && tenant.due !== null) {
      series.push({name: `${name}, by weight`, className, style: "dashed", hidden: true, values: each(view.samples, () => tenant.due)});
    }
  });
  const values = share(pool => pool.other.served);
  if (other > 0) {
    series.push({
      name: "all others", className: "plain", style: !view.tenant && "thin", quiet: Boolean(view.tenant), served: other, share: otherShare, weight: null,
      due: null, values, waitingNow: each(view.samples, pool => sum(pool.other.waiting)), inFlightNow: each(view.samples, pool => sum(pool.other.in_flight)),
    });
  }
  return {
    title: "Share of served tokens, by tenant", axis: "share of the tokens served in the minute before",
    note: `solid: share of the last minute; dashed: share by weight${drawn.length < tenants.length ? `; lines of ${drawn.length} of ${tenants.length} tenants` : ""}`,
    format: "percent", least: 0.1, series, rowHead: "tenant", wide: true, emptyText: all ? undefined : "no tokens were served",
    columns: [
      {head: "weight", cell: ({weight}) => [weight, "count"]},
      {head: "due share", cell: ({due}) => [due, "percent"]},
      {head: "share, 15 min", cell: series => [series.share, "percent"]},
      {head: "share", isNow: true, cell: (series, at) => [series.values[at], "percent"]},
      {head: "tokens, 15 min", cell: ({served}) => [served, "whole"]},
      {head: "waiting", cell: ({waitingNow}, at) => [waitingNow[at], "whole"]},
      {head: "in flight", cell: ({inFlightNow}, at) => [inFlightNow[at], "whole"]},
    ],
  };
};

const quantiles = (view, read) => [["p50", "c0", "line"], ["p99", "c1", "line"]].map(([name, className, style]) => ({
  name, className, style, values: each(view.samples, pool => read(pool)?.[name] ?? null),
}));

const queueTime = view => ({
  title: "Queue time", note: "of requests granted in the minute before", axis: "time from arrival to grant", format: "seconds",
  least: 0.001, series: quantiles(view, pool => pool.queue_s), rowHead: "quantile", emptyText: "no request was granted",
});

const ttft = view => ({
  title: view.endpoint ? `Time to first token: ${view.endpoint}` : "Time to first token",
  note: "from arrival to the first byte, of the minute before", axis: "time", format: "seconds", least: 0.001,
  series: quantiles(view, pool => view.endpoint ? endpointIn(pool, view.endpoint)?.ttft_s : pool.ttft_s),
  rowHead: "quantile", emptyText: "no response has begun",
});

const saturation = view => ({
  title: "Saturation", note: "1.00: the servers are busy, so new requests wait, or the queue is full", axis: "saturation", format: "ratio", least: 1,
  series: [
    {name: "saturation", className: "c0", style: "line", values: each(view.samples, pool => pool.saturation)},
    {name: "full", className: "c4", style: "dashed", hidden: true, values: each(view.samples, () => 1)},
  ],
});

const bound = view => ({
  title: "Stock against bound", note: `${view.unit} at ready endpoints`, axis: view.unit, format: "count", isWhole: true,
  series: [
    {name: "stock", className: "c0", style: "area", values: each(view.samples, pool => pool.stock)},
    {name: "upper bound", className: "c4", style: "line", values: each(view.samples, pool => pool.upper)},
    {name: "lower bound", className: "c1", style: "dashed", values: each(view.samples, pool => pool.lower)},
  ],
});

/** A bar begins where the one before ends; a sample belongs to the bar that ends at it or after it. */
const refused = view => {
  const sums = buckets(view.samples, REFUSED_STEP_MS, ({pool}) => pool?.refused ?? {});
  const reasons = [...new Set(sums.flatMap(bucket => Object.keys(bucket.sums)))]
    .sort((a, b) => sum(sums.map(bucket => bucket.sums[b])) - sum(sums.map(bucket => bucket.sums[a])));
  const unrouted = sum(view.samples.map(sample => sum(Object.values(sample.unrouted))));
  const granted = sum(each(view.samples, pool => pool.granted));
  const series = reasons.map((reason, place) => ({
    name: reason, label: REASONS[reason] ?? reason, className: place < 7 ? `c${place}` : "c7", style: "bar",
    values: sums.map(bucket => bucket.sums[reason] ?? 0),
  }));
  return {
    title: "Refusals", note: `requests in 30 s, by reason; ${granted.toLocaleString("en")} granted in 15 min${unrouted ? `; ${unrouted.toLocaleString("en")} of no pool refused` : ""}`,
    axis: "requests in 30 seconds", format: "count", isWhole: true, series, times: sums.map(({time}) => time), stepMs: REFUSED_STEP_MS,
    rowHead: "reason", emptyText: "nothing was refused",
    columns: [
      columns.now("whole"),
      {head: "in 15 min", cell: ({values}) => [sum(values), "whole"]},
    ],
  };
};

const replicas = view => ({
  title: "Replicas", note: "servers of this pool", axis: "servers", format: "count", isWhole: true, least: 1,
  series: [
    {name: "wanted", className: "c1", style: "line", values: each(view.samples, pool => pool.replicas.wanted)},
    {name: "ready", className: "c0", style: "line", values: each(view.samples, pool => pool.replicas.ready)},
    {name: "pending", className: "plain", style: "dashed", values: each(view.samples, pool => pool.replicas.pending)},
  ],
});

const iteration = view => {
  const addresses = view.endpoint ? [view.endpoint] : endpointsOf(view.samples).slice(0, LINES);
  const series = addresses.flatMap((address, place) => [["learned", "iteration_ms", "line"], ["measured", "itl_ms", "dashed"]].map(([word, field, style]) => ({
    name: `${address}, ${word}`, className: `c${place}`, style, values: each(view.samples, pool => endpointIn(pool, address)?.[field] ?? null),
  })));
  return {
    title: "Iteration time", note: "solid: learned, for the requests in flight; dashed: measured time between tokens", axis: "milliseconds", format: "millis",
    least: 1, series, rowHead: "endpoint", emptyText: "no model is learned, and no tokens were measured",
  };
};

const endpoint = address => view => {
  const last = view.samples.at(-1)?.pool;
  const now = last && endpointIn(last, address);
  const why = view.statusPool?.endpoints.find(known => known.address === address)?.why;
  return {
    title: address, note: why ?? (now ? now.ready ? "ready" : "not ready" : "not listed"), axis: view.unit, format: "count", isWhole: true, rowHead: view.unit,
    series: [
      {name: "in flight", className: "c0", style: "area", values: each(view.samples, pool => endpointIn(pool, address)?.stock ?? null)},
      {name: "bound", className: "c4", style: "line", values: each(view.samples, pool => endpointIn(pool, address)?.bound ?? null)},
      {name: "iteration", values: each(view.samples, pool => endpointIn(pool, address)?.iteration_ms ?? null), kind: "millis"},
      {name: "time to first token, p99", values: each(view.samples, pool => endpointIn(pool, address)?.ttft_s?.p99 ?? null), kind: "seconds"},
    ],
    columns: [
      {head: "now", isNow: true, cell: ({values, kind}, at) => [values[at], kind ?? "count"]},
      {head: "mean", cell: ({values, kind}) => [mean(values), kind ?? "count"]},
      {head: "highest", cell: ({values, kind}) => [most(values), kind ?? "count"]},
    ],
  };
};

const FIXED = [
  ["waiting", waiting], ["in-flight", inFlight], ["shares", shares], ["queue-time", queueTime], ["ttft", ttft], ["saturation", saturation],
  ["bound", bound], ["refused", refused], ["replicas", replicas], ["iteration", iteration],
];

/** Puts the charts into `parent`. Returns a function that draws them for a view. */
export const createCharts = parent => {
  const fixed = FIXED.map(([id, make]) => [chart(id), make]);
  parent.append(...fixed.map(([{figure}]) => figure));
  fixed.find(([, make]) => make === shares)[0].figure.classList.add("wide");
  const endpoints = new Map();

  return view => {
    const times = view.samples.map(({time}) => time);
    const end = times.at(-1) ?? Date.now();
    const restarts = view.samples.filter(({restarted}) => restarted).map(({time}) => time);
    const common = {times, end, span: view.spanMs, intervalMs: view.intervalMs, restarts};
    const known = endpointsOf(view.samples);
    const listed = view.endpoint ? [view.endpoint] : known.slice(0, ENDPOINTS);
    for (const [address, drawn] of endpoints) {
      if (listed.includes(address)) continue;
      drawn.remove();
      endpoints.delete(address);
    }
    for (const address of listed) {
      if (endpoints.has(address)) continue;
      const drawn = chart(`endpoint-${address.replace(/[^a-zA-Z0-9]/g, "-")}`, 130);
      endpoints.set(address, drawn);
      parent.append(drawn.figure);
    }
    for (const [drawn, make] of fixed) drawn.update({...common, ...make(view)});
    for (const [address, drawn] of endpoints) drawn.update({...common, ...endpoint(address)(view)});
  };
};
