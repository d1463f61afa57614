// Builds the page from its document, and draws it again whenever the reader, or on a live page the run, changes something.
const KINDS = {
  lines: { option: lineOption, facts: lineFacts, head: ["line", "first", "last", "smallest", "largest"], note: lineNote },
  bars: { option: barOption, facts: barFacts, head: (chart) => ["bar", ...chart.stacks.map((stack) => stack.name)] },
  timeline: { option: timelineOption },
  points: { option: pointsOption, facts: pointsFacts, head: (chart) => ["trial", "state", chart.x.name, chart.y.name] },
  parallel: { option: parallelOption, facts: parallelFacts, head: (chart) => ["trial", ...chart.axes.map((axis) => axis.name)] },
};
const WIDE = new Set(["bars", "timeline", "parallel"]);
const state = { axis: "samples", extent: [0, 1], log: false, range: [null, null], runs: new Set(), showRange: () => {} };
let report = JSON.parse(document.getElementById("data").textContent);
let drawn = []; // {chart, figure, canvas}, and an instance once it was near the screen
const near = new IntersectionObserver(
  (seen) => {
    const shown = seen.filter((each) => each.isIntersecting).map((each) => each.target);
    drawn.filter((each) => shown.includes(each.canvas)).forEach(start);
    document.documentElement.dataset.drawn = drawn.filter((each) => each.instance).length;
  },
  { rootMargin: "300px" },
);
let zooming = false;

function slug(text) {
  return text.replace(/[^\w.-]+/g, "-");
}

function figure(chart) {
  const kind = KINDS[chart.kind];
  chart.off = chart.off || new Set();
  const canvas = element("div", { class: "chart", role: "img", "aria-label": `${chart.title}${chart.unit ? `, in ${chart.unit}` : ""}` });
  const made = element(
    "figure",
    { id: `chart-${slug(chart.key)}`, class: WIDE.has(chart.kind) ? "wide" : "" },
    element(
      "figcaption",
      {},
      element("h3", {}, chart.title),
      chart.unit ? element("span", { class: "unit" }, chart.unit) : null,
      element("button", { type: "button", "aria-label": `Save ${chart.title} as a picture`, onclick: () => save(chart) }, "PNG"),
    ),
    chart.kind === "lines" ? toggles(chart) : null,
    canvas,
    kind.note && kind.note(chart) ? element("p", { class: "note" }, kind.note(chart)) : null,
    kind.facts
      ? element(
          "details",
          { id: `numbers-${slug(chart.key)}` },
          element("summary", {}, "numbers"),
          grid(chart.title, typeof kind.head === "function" ? kind.head(chart) : kind.head, kind.facts(report, chart)),
        )
      : null,
  );
  const bars = chart.kind === "bars" ? chart.categories : chart.kind === "timeline" ? chart.rows : null;
  if (chart.kind === "parallel") canvas.style.height = "26rem";
  if (bars) canvas.style.height = `${70 + 34 * bars.length}px`;
  return { chart, figure: made, canvas };
}

// A button for each name of a line; with one name there is nothing to choose.
function toggles(chart) {
  const names = [...new Set(chart.lines.map((line) => line.name))];
  const buttons = names.map((name) => {
    const look = looks(report, chart, chart.lines.find((line) => line.name === name));
    const button = element(
      "button",
      {
        type: "button",
        "aria-pressed": String(!chart.off.has(name)),
        onclick: () => {
          chart.off.has(name) ? chart.off.delete(name) : chart.off.add(name);
          button.setAttribute("aria-pressed", String(!chart.off.has(name)));
          draw(drawn.find((each) => each.chart === chart));
        },
      },
      swatch(report.runs.length > 1 ? css("--quiet") : look.ink, look.style),
      name,
    );
    return element("li", {}, button);
  });
  return element("ul", { class: "lines" }, ...buttons);
}

function save(chart) {
  const { instance } = start(drawn.find((each) => each.chart === chart));
  const url = instance.getDataURL({ type: "png", pixelRatio: 2, backgroundColor: css("--paper"), excludeComponents: ["toolbox"] });
  element("a", { href: url, download: `${slug(chart.key)}.png` }).click();
}

function draw(each) {
  if (!each.instance) return;
  each.instance.setOption(KINDS[each.chart.kind].option(report, each.chart, state), { notMerge: true });
  if (each.chart.kind !== "lines") return;
  if (!window.matchMedia("(pointer: coarse)").matches) {
    each.instance.dispatchAction({ type: "takeGlobalCursor", key: "dataZoomSelect", dataZoomSelectActive: true });
  }
  if (state.range.some((side) => side !== null)) show(each);
}

function show({ instance, chart }) {
  if (chart.kind !== "lines") return;
  const [from, to] = state.range;
  const ends = { ...(from === null ? { start: 0 } : { startValue: from }), ...(to === null ? { end: 100 } : { endValue: to }) };
  zooming = true;
  instance.dispatchAction({ type: "dataZoom", dataZoomId: "zoom", ...ends });
  zooming = false;
}

function zoom(from, to) {
  state.range = [from, to];
  state.showRange();
  drawn.filter((each) => each.instance).forEach(show);
}

function zoomed(instance) {
  if (zooming) return;
  const { start, end, startValue, endValue } = instance.getOption().dataZoom.find((each) => each.id === "zoom");
  const range = [start <= 0 ? null : startValue, end >= 100 ? null : endValue];
  if (range.some((each, side) => each !== state.range[side])) zoom(...range);
}

// Draws a chart for the first time: charts far from the screen wait for that.
function start(made) {
  if (made.instance) return made;
  near.unobserve(made.canvas);
  made.instance = echarts.init(made.canvas);
  new ResizeObserver(() => made.instance.resize()).observe(made.canvas);
  if (made.chart.kind === "lines") {
    made.instance.on("datazoom", () => zoomed(made.instance));
    made.instance.getZr().on("dblclick", () => zoom(null, null));
  }
  draw(made);
  return made;
}

function fill(id, children) {
  const section = document.getElementById(id);
  section.replaceChildren(section.querySelector("h2"), ...children);
  section.hidden = !children.length;
}

function build() {
  applyTheme();
  if (!has(report, state.axis)) state.axis = Object.keys(AXES).find((axis) => has(report, axis)) || "samples";
  state.extent = extent(report, state.axis);
  document.getElementById("title").textContent = report.title;
  document.getElementById("controls").replaceChildren(...controls(report, state, redraw, zoom));
  near.disconnect();
  drawn.forEach((each) => each.instance?.dispose());
  const charts = report.charts.filter((chart) => chart.kind !== "timeline").map(figure);
  const times = report.charts.filter((chart) => chart.kind === "timeline").map(figure);
  fill("glance", glance(report));
  fill("charts", charts.length ? [element("div", { class: "grid" }, ...charts.map((each) => each.figure))] : []);
  fill("history", [...times.map((each) => each.figure), ...history(report)]);
  fill("texts", texts(report));
  fill("configuration", configuration(report));
  drawn = [...charts, ...times];
  drawn.forEach((each) => near.observe(each.canvas));
}

function redraw() {
  applyTheme();
  state.extent = extent(report, state.axis);
  document.querySelectorAll("nav .run").forEach((label) => {
    label.querySelector(".swatch").style.borderTopColor = color(Number(label.dataset.run));
  });
  drawn.forEach((each) => {
    if (each.chart.kind === "lines") each.figure.querySelector(".lines").replaceWith(toggles(each.chart));
    draw(each);
  });
  state.showRange();
}

// A newer document in the place of this one: lines that were switched off stay off.
function renew(newer) {
  const off = new Map(report.charts.map((chart) => [chart.key, chart.off]));
  newer.charts.forEach((chart) => (chart.off = off.get(chart.key)));
  const focused = document.activeElement.id;
  const open = new Map([...document.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const at = window.scrollY;
  report = newer;
  build();
  open.forEach((was, id) => document.getElementById(id) && (document.getElementById(id).open = was));
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  window.scrollTo(0, at);
}

build();
if (document.documentElement.dataset.live === "live") follow(renew);
DARK.addEventListener("change", redraw);
window.addEventListener("beforeprint", () => drawn.forEach(start));
