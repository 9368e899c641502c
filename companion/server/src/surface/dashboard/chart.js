// Draws one chart: a figure with a title, a drawing, and a table of its values that is also its legend.
//
// A model is {title, note, axis, format, times, series, columns, marks}. A series is {name, values, className, style, row}:
// `style` is line, dashed, thin, area (stacked on the areas before it) or bar (stacked likewise). `columns` are
// {head, cell(series, at)}; `at` is the place of the time that is chosen with the cursor.

import {el, svg, setText} from "./dom.js";
import {clock, format, mean, most, ticks} from "./series.js";

const MARGIN = {top: 10, right: 12, bottom: 22, left: 54};
const MINUTES = [15, 10, 5, 0];
/** Samples further apart than this many intervals aren't joined. */
const GAP = 3.5;

/** The time whose values all charts show; null: the latest. */
const cursor = {time: null, charts: new Set()};
const moveCursor = time => {
  if (cursor.time === time) return;
  cursor.time = time;
  cursor.charts.forEach(redraw => redraw());
};

export const columns = {
  now: kind => ({head: "now", isNow: true, cell: ({values}, at) => [values[at], kind]}),
  mean: kind => ({head: "mean", cell: ({values}) => [mean(values), kind]}),
  most: kind => ({head: "highest", cell: ({values}) => [most(values), kind]}),
};

/** The lower and upper ends of stacked values, each where the stack before ends. */
const stack = (series, length) => {
  const ground = Array(length).fill(0);
  return series.map(({values}) => values.map((value, at) => {
    const from = ground[at];
    ground[at] += value ?? 0;
    return [from, ground[at]];
  }));
};

const isStacked = ({style}) => style === "area" || style === "bar";

/** The path through the points; it is interrupted where a value is missing or time is. */
const path = (points, gapPx) => {
  let [d, before] = ["", null];
  for (const point of points) {
    if (point === null) { before = null; continue; }
    const joined = before !== null && point[0] - before[0] <= gapPx;
    d += `${joined ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
    // A single sample is a dot.
    if (!joined) d += "h.01";
    before = point;
  }
  return d;
};

/** Runs of samples without a gap, as [first, last]. */
const runs = (times, present, gapMs) => {
  const found = [];
  times.forEach((time, at) => {
    if (!present(at)) return;
    const open = found.at(-1);
    if (open && open[1] === at - 1 && time - times[at - 1] <= gapMs) open[1] = at;
    else found.push([at, at]);
  });
  return found;
};

const area = (spans, times, x, y, gapMs) =>
  runs(times, () => true, gapMs).map(([first, last]) => {
    const places = Array.from({length: last - first + 1}, (_, at) => first + at);
    const upper = places.map(at => `${x(times[at]).toFixed(1)} ${y(spans[at][1]).toFixed(1)}`);
    const lower = places.reverse().map(at => `${x(times[at]).toFixed(1)} ${y(spans[at][0]).toFixed(1)}`);
    return `M${upper.join("L")}L${lower.join("L")}Z`;
  }).join("");

const swatch = ({className, style}) => svg("svg", {class: `swatch ${className}`, viewBox: "0 0 22 10", "aria-hidden": "true"},
  isStacked({style}) ? svg("rect", {class: "mark bar", width: 22, height: 10, rx: 2})
    : svg("path", {class: `mark ${style}`, d: "M1 5H21"}));

/** A figure whose `update(model)` draws it anew. */
export const chart = (id, height = 170) => {
  const title = el("h2", {id: `${id}-title`});
  const note = el("p");
  const drawing = svg("svg", {class: "plot", role: "img", tabindex: 0, "aria-labelledby": `${id}-title`, "aria-describedby": `${id}-table`, height});
  const table = el("table", {id: `${id}-table`, "aria-labelledby": `${id}-title`});
  const figure = el("figure", {id}, el("figcaption", {}, title, note), drawing, el("div", {class: "scroll"}, table));
  let model;

  const placeOfCursor = () => {
    const {times} = model;
    if (cursor.time === null || !times.length) return times.length - 1;
    let best = 0;
    times.forEach((time, at) => { if (Math.abs(time - cursor.time) < Math.abs(times[best] - cursor.time)) best = at; });
    return best;
  };

  const drawTable = () => {
    const at = placeOfCursor();
    const shown = model.columns ?? [columns.now(model.format), columns.mean(model.format), columns.most(model.format)];
    const latest = document.body.classList.contains("old") ? "then" : "now";
    const nowHead = cursor.time === null || !model.times.length ? latest : `at ${clock(model.times[at])}`;
    const head = el("tr", {}, el("th", {scope: "col"}, model.rowHead ?? ""),
      shown.map(column => el("th", {scope: "col"}, !column.isNow ? column.head : column.head === "now" ? nowHead : `${column.head} ${nowHead}`)));
    const rows = model.series.filter(({hidden}) => !hidden).map(series => el("tr", {"data-series": series.name, class: series.quiet && "quiet"},
      el("th", {scope: "row"}, el("span", {class: "name"}, series.style && swatch(series), series.label ?? series.name)),
      shown.map(column => {
        const [value, kind] = column.cell(series, at);
        return el("td", {"data-column": column.head, "data-value": value ?? ""}, typeof value === "string" ? value : format(value, kind));
      })));
    // The button that has the focus keeps it.
    const focused = table.contains(document.activeElement) ? document.activeElement.dataset.pick : undefined;
    table.replaceChildren(el("thead", {}, head), el("tbody", {}, rows));
    if (focused !== undefined) [...table.querySelectorAll("button")].find(({dataset}) => dataset.pick === focused)?.focus();
  };

  const draw = () => {
    if (!model) return;
    setText(title, model.title);
    setText(note, model.note ?? "");
    drawTable();
    const width = Math.max(240, drawing.clientWidth || figure.clientWidth - 24);
    const {times, span, end, intervalMs} = model;
    const drawn = model.series.filter(({style}) => style);
    const stacked = drawn.filter(isStacked);
    const spans = stack(stacked, times.length);
    const flat = drawn.filter(series => !isStacked(series)).flatMap(({values}) => values);
    const top = Math.max(model.least ?? 0, most(flat) ?? 0, most(spans.flat(2)) ?? 0);
    const marks = ticks(top, model.isWhole);
    const [right, bottom] = [width - MARGIN.right, height - MARGIN.bottom];
    const x = time => right - (end - time) / span * (right - MARGIN.left);
    const y = value => bottom - value / marks.at(-1) * (bottom - MARGIN.top);
    const gapMs = GAP * (model.stepMs ?? intervalMs);
    drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const parts = [];
    for (const mark of marks) {
      parts.push(svg("line", {class: mark ? "grid" : "axis", x1: MARGIN.left, x2: right, y1: y(mark), y2: y(mark)}),
        svg("text", {x: MARGIN.left - 6, y: y(mark) + 4, "text-anchor": "end"}, format(mark, model.format)));
    }
    for (const minutes of MINUTES) {
      const time = end - minutes * span / 15;
      parts.push(svg("line", {class: "axis", x1: x(time), x2: x(time), y1: bottom, y2: bottom + 4}),
        svg("text", {x: x(time), y: height - 6, "text-anchor": minutes === 15 ? "start" : minutes ? "middle" : "end"},
          minutes ? `−${minutes} min` : "latest"));
    }
    stacked.forEach((series, place) => {
      const shape = series.style === "area" ? area(spans[place], times, x, y, gapMs)
        : spans[place].map(([from, to], at) => to > from
          ? `M${(x(times[at] - model.stepMs) + 1).toFixed(1)} ${y(from).toFixed(1)}V${y(to).toFixed(1)}H${x(times[at]).toFixed(1)}V${y(from).toFixed(1)}Z` : "").join("");
      parts.push(svg("path", {class: `mark ${series.style} ${series.className}`, d: shape}));
    });
    const gapPx = gapMs / span * (right - MARGIN.left);
    for (const series of drawn.filter(candidate => !isStacked(candidate))) {
      const points = series.values.map((value, at) => value === null ? null : [x(times[at]), y(value)]);
      parts.push(svg("path", {class: `mark ${series.style} ${series.className}`, d: path(points, gapPx)}));
    }
    for (const time of model.restarts) {
      parts.push(svg("line", {class: "restart", x1: x(time), x2: x(time), y1: MARGIN.top, y2: bottom}),
        svg("text", {class: "restart-text", x: Math.min(x(time) + 4, right - 60), y: MARGIN.top + 8}, "restart"));
    }
    if (!drawn.some(({values}) => values.some(value => value !== null))) {
      parts.push(svg("text", {class: "empty", x: (MARGIN.left + right) / 2, y: (MARGIN.top + bottom) / 2, "text-anchor": "middle"},
        model.emptyText ?? "no data yet"));
    }
    if (cursor.time !== null && times.length) {
      const time = times[placeOfCursor()];
      parts.push(svg("line", {class: "cursor", x1: x(time), x2: x(time), y1: MARGIN.top, y2: bottom}));
    }
    drawing.replaceChildren(svg("title", {}, `${model.title}; ${model.axis}, over ${Math.round(span / 60_000)} minutes. The table below has the values.`), ...parts);
  };

  const timeAt = event => {
    const box = drawing.getBoundingClientRect();
    const inner = box.width - MARGIN.left - MARGIN.right;
    const time = model.end - (box.right - MARGIN.right - event.clientX) / inner * model.span;
    const times = model.times;
    return times.reduce((best, candidate) => Math.abs(candidate - time) < Math.abs(best - time) ? candidate : best, times[0]);
  };
  drawing.addEventListener("pointermove", event => { if (model?.times.length) moveCursor(timeAt(event)); });
  drawing.addEventListener("pointerleave", () => moveCursor(null));
  drawing.addEventListener("blur", () => moveCursor(null));
  drawing.addEventListener("keydown", event => {
    const last = model.times.length - 1;
    const places = {ArrowLeft: placeOfCursor() - 1, ArrowRight: placeOfCursor() + 1, Home: 0, End: last};
    if (event.key === "Escape") moveCursor(null);
    else if (event.key in places && last >= 0) moveCursor(model.times[Math.max(0, Math.min(last, places[event.key]))]);
    else return;
    event.preventDefault();
  });
  let width = 0;
  new ResizeObserver(([{contentRect}]) => {
    if (contentRect.width === width) return;
    ({width} = contentRect);
    draw();
  }).observe(figure);
  cursor.charts.add(draw);
  return {
    figure,
    update: next => { model = next; draw(); },
    remove: () => { cursor.charts.delete(draw); figure.remove(); },
  };
};
