// Turns samples into series of numbers: pure functions without the page.

/** Numbers with a unit. `kind` is one of the keys of FORMATS. */
const short = value => {
  const size = Math.abs(value);
  if (size >= 1e9) return `${Number((value / 1e9).toPrecision(3))} G`;
  if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))} M`;
  if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))} k`;
  return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
};
const FORMATS = {
  count: short,
  whole: value => value < 1e6 ? Math.round(value).toLocaleString("en") : short(value),
  ratio: value => value.toFixed(2),
  percent: value => `${Number((value * 100).toFixed(value < 0.1 ? 1 : 0))} %`,
  seconds: value => value === 0 ? "0 ms" : value < 1 ? `${Number((value * 1000).toPrecision(3))} ms` : `${Number(value.toPrecision(3))} s`,
  millis: value => `${Number(value.toPrecision(3))} ms`,
};
export const format = (value, kind) => value === null || value === undefined || Number.isNaN(value) ? "–" : FORMATS[kind](value);

export const clock = time => new Date(time).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});

/** Durations as people say them. */
export const since = seconds => {
  const s = Math.round(seconds);
  return s < 120 ? `${s} s` : s < 7200 ? `${Math.floor(s / 60)} min` : s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
};

const known = values => values.filter(value => value !== null && value !== undefined);
export const sum = values => known(values).reduce((total, value) => total + value, 0);
export const mean = values => known(values).length ? sum(values) / known(values).length : null;
export const most = values => known(values).length ? Math.max(...known(values)) : null;

/** The value of `read(pool)` at each sample; null where the sample lacks the pool. */
export const each = (samples, read) => samples.map(({pool}) => pool ? read(pool) ?? null : null);

const NOBODY = {waiting: [0, 0, 0], in_flight: [0, 0, 0], served: 0, weight: null};

/** The tenant in a sample; one that is idle, or beyond the limit, is absent there and has nothing. */
export const tenantIn = (pool, name) => pool.tenants.find(tenant => tenant.name === name) ?? NOBODY;
export const endpointIn = (pool, address) => pool.endpoints.find(endpoint => endpoint.address === address);

/** All tenants of the samples with their sums, those with the most served tokens first, and the rest as one. */
export const tenantsOf = samples => {
  const tenants = new Map();
  let other = 0;
  for (const {pool} of samples) {
    if (!pool) continue;
    other += pool.other.served;
    for (const {name, weight, served, waiting, in_flight: inFlight} of pool.tenants) {
      const tenant = tenants.get(name) ?? {name, served: 0, busy: 0};
      tenant.served += served;
      tenant.busy += sum(waiting) + sum(inFlight);
      tenant.weight = weight ?? tenant.weight ?? null;
      tenants.set(name, tenant);
    }
  }
  const sorted = [...tenants.values()].sort((a, b) => b.served - a.served || b.busy - a.busy || a.name.localeCompare(b.name));
  const all = sum(sorted.map(tenant => tenant.served)) + other;
  const weights = sum(sorted.map(tenant => tenant.weight));
  for (const tenant of sorted) {
    tenant.share = all ? tenant.served / all : null;
    tenant.due = weights && tenant.weight !== null ? tenant.weight / weights : null;
  }
  return {tenants: sorted, other, otherShare: all ? other / all : null, all};
};

/** The endpoints of the samples, those of the last one first. */
export const endpointsOf = samples => {
  const addresses = new Set();
  for (const {pool} of [...samples].reverse()) pool?.endpoints.forEach(({address}) => addresses.add(address));
  return [...addresses];
};

/** At each sample, the sum of `read(pool)` over the samples of the last `spanMs`. */
export const moving = (samples, spanMs, read) => {
  const values = each(samples, read);
  let [from, total] = [0, 0];
  return samples.map(({time}, at) => {
    total += values[at] ?? 0;
    while (samples[from].time <= time - spanMs) total -= values[from++] ?? 0;
    return values[at] === null ? null : total;
  });
};

/** Sums by interval of `widthMs`, the last of which ends with the last sample: `[{time, sums}]`, `sums` by key of `read(pool)`. */
export const buckets = (samples, widthMs, read) => {
  const found = new Map();
  const end = samples.at(-1)?.time ?? 0;
  for (const sample of samples) {
    const time = end - Math.floor((end - sample.time) / widthMs) * widthMs;
    const sums = found.get(time) ?? {};
    for (const [key, value] of Object.entries(read(sample))) sums[key] = (sums[key] ?? 0) + value;
    found.set(time, sums);
  }
  return [...found].map(([time, sums]) => ({time, sums})).sort((a, b) => a.time - b.time);
};

/** Ticks of an axis from 0: at most five, at round numbers. A ratio has hundredths. */
export const ticks = (top, isWhole) => {
  const rough = Math.max(top, isWhole ? 1 : 1e-9) / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const factor = [1, 2, 2.5, 5, 10].find(candidate => candidate * size >= rough * 0.999);
  const step = isWhole ? Math.max(1, Math.ceil(factor * size)) : factor * size;
  const count = Math.max(1, Math.ceil(top / step - 1e-9));
  return Array.from({length: count + 1}, (_, at) => at * step);
};
