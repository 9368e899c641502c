// Asks the companion for its history and status while the page is visible, and keeps the last answers when it doesn't answer.

const TIMEOUT_MS = 5_000;
const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 15_000;
/** The time after a sample until the next one is asked for, beside the companion's interval. */
const SLACK_MS = 300;

/** `changed` is called after each answer and each failure. */
export const createSource = changed => {
  const source = {
    /** The samples of the picked pool, oldest first: `{time, pool, unrouted, restarted}`. */
    samples: [],
    status: undefined,
    pool: "",
    token: "",
    intervalMs: 5_000,
    spanMs: 900_000,
    bands: ["critical", "default", "sheddable"],
    /** When the last answer came, and how old its last sample was then. */
    answeredAt: undefined,
    ageThenMs: 0,
    failure: undefined,
    failures: 0,
    nextTryAt: 0,
  };
  let instance;
  let last = 0;
  let timer;
  let round = 0;

  const get = async path => {
    const headers = source.token ? {authorization: `Bearer ${source.token}`} : {};
    const answer = await fetch(path, {headers, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS)});
    if (!answer.ok) throw new Error(`${path.split("?")[0]} answers ${answer.status}`);
    return answer.json();
  };

  const adopt = (history, pool) => {
    const isOther = instance !== undefined && history.instance !== instance;
    const added = history.samples
      .map(({time_ms, unrouted, pools}) => ({time: time_ms, unrouted, pool: pools.find(known => known.name === pool)}));
    if (isOther && added.length) {
      // Another companion answers: its first sample begins anew, and what came before stays in the charts.
      added[0].restarted = true;
      source.samples = source.samples.filter(sample => sample.time < added[0].time);
    }
    source.samples.push(...added);
    const newest = source.samples.at(-1)?.time ?? 0;
    source.spanMs = history.interval_ms * history.samples_max;
    source.samples = source.samples.filter(sample => sample.time > newest - source.spanMs);
    source.intervalMs = history.interval_ms;
    source.bands = history.bands;
    source.ageThenMs = history.age_ms ?? 0;
    [instance, last] = [history.instance, history.last];
  };

  const ask = async () => {
    clearTimeout(timer);
    if (document.visibilityState !== "visible") return;
    const mine = ++round;
    try {
      const status = await get("status");
      const names = status.pools.map(pool => pool.name);
      if (mine !== round) return;
      if (!names.includes(source.pool)) source.show(names[0] ?? "");
      const pool = source.pool;
      const query = new URLSearchParams({since: last, pool});
      if (instance !== undefined) query.set("instance", instance);
      const history = await get(`history?${query}`);
      // The pool was changed meanwhile, or a later question was asked.
      if (mine !== round || pool !== source.pool) return;
      adopt(history, pool);
      source.status = status;
      source.answeredAt = Date.now();
      source.failure = undefined;
      source.failures = 0;
      timer = setTimeout(ask, Math.max(SLACK_MS, Math.min(source.intervalMs, source.intervalMs - source.ageThenMs + SLACK_MS)));
    } catch (error) {
      if (mine !== round) return;
      source.failures += 1;
      source.failure = error.name === "TimeoutError" ? `no answer within ${TIMEOUT_MS / 1000} s` : error.message;
      const pause = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** (source.failures - 1));
      source.nextTryAt = Date.now() + pause;
      timer = setTimeout(ask, pause);
    }
    changed();
  };

  /** Shows another pool, whose samples are asked for from the start. */
  source.show = pool => {
    if (pool === source.pool) return;
    source.pool = pool;
    source.samples = [];
    [instance, last] = [undefined, 0];
  };
  source.reload = () => {
    source.samples = [];
    [instance, last] = [undefined, 0];
    return ask();
  };
  source.ask = ask;
  /** The age of the last sample in milliseconds; undefined: there is none. */
  source.age = () => source.answeredAt === undefined ? undefined : source.ageThenMs + Math.max(0, Date.now() - source.answeredAt);
  document.addEventListener("visibilitychange", ask);
  return source;
};
