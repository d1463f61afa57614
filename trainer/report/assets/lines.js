// Lines over the progress of runs.
const AXES = { samples: "samples", tokens: "tokens", time: "time", update: "updates" };

function where(report, line, point) {
  const positions = report.runs[line.run].positions;
  const at = line.at[point];
  const seconds = positions.time[at];
  return (
    `update ${exact(positions.update[at])}, ${exact(positions.samples[at])} samples` +
    (seconds === null ? "" : `, ${duration(seconds)}`)
  );
}

// [x, value, place in the line] of each point that has a place on this axis.
function points(report, line, axis, log) {
  const positions = report.runs[line.run].positions[axis];
  const found = [];
  for (let point = 0; point < line.values.length; point++) {
    const x = positions[line.at[point]];
    const y = line.values[point];
    if (x !== null && (!log || y > 0)) found.push([x, y, point]);
  }
  return found;
}

// From where to where the lines of all charts go, so that what happened at one time stands at one place.
function extent(report, axis) {
  const all = report.runs.map((run) => extremes(run.positions[axis].filter((each) => each !== null)));
  return extremes(all.flat().filter(Number.isFinite));
}

function lineName(report, line) {
  return report.runs.length > 1 ? `${report.runs[line.run].name}: ${line.name}` : line.name;
}

// Several runs: a color for each run, a dash for each name. One run: both for each name.
function looks(report, chart, line) {
  const names = [...new Set(chart.lines.map((each) => each.name))];
  const place = names.indexOf(line.name);
  return { ink: color(report.runs.length > 1 ? line.run : place), style: dash(place) };
}

// The point of each line that is nearest to a place; lines that ended long before or begin long after have none.
function lineTip(report, chart, state, shown, series, x) {
  const margin = 0.01 * (state.extent[1] - state.extent[0]);
  const rows = shown.map((line, number) => {
    const near = nearest(series[number].data, x);
    if (near === null || (outside(series[number].data, x) && Math.abs(near[0] - x) > margin)) return null;
    return { ...looks(report, chart, line), name: lineName(report, line), where: where(report, line, near[2]), value: exact(near[1]) };
  });
  return tip("", rows.filter((row) => row !== null));
}

function outside(data, x) {
  return x < data[0][0] || x > data[data.length - 1][0];
}

function nearest(data, x) {
  if (!data.length) return null;
  let low = 0;
  let high = data.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (data[middle][0] < x) low = middle;
    else high = middle;
  }
  return x - data[low][0] <= data[high][0] - x ? data[low] : data[high];
}

function lineOption(report, chart, state) {
  const shown = chart.lines.filter((line) => !state.runs.has(line.run) && !chart.off.has(line.name));
  const series = shown.map((line) => {
    const look = looks(report, chart, line);
    const data = points(report, line, state.axis, state.log);
    return {
      type: "line",
      name: lineName(report, line),
      data,
      step: chart.step ? "end" : false,
      showSymbol: data.length < 40,
      symbolSize: 5,
      lineStyle: { color: look.ink, type: look.style, width: 1.6 },
      itemStyle: { color: look.ink },
      emphasis: { disabled: true },
    };
  });
  return {
    animation: false,
    grid: { left: 8, right: 18, top: 14, bottom: 6, containLabel: true },
    xAxis: axisStyle({
      type: "value",
      min: state.extent[0],
      max: state.extent[1],
      axisLabel: { color: css("--quiet"), hideOverlap: true, formatter: state.axis === "time" ? duration : short },
    }),
    yAxis: axisStyle({ type: state.log ? "log" : "value", scale: true }),
    tooltip: {
      trigger: "axis",
      ...tipStyle(),
      formatter: (hovered) => lineTip(report, chart, state, shown, series, hovered[0].data[0]),
    },
    toolbox: { itemSize: 0, feature: { dataZoom: { yAxisIndex: "none", filterMode: "none" } } },
    dataZoom: [
      { id: "zoom", type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", moveOnMouseMove: false, preventDefaultMouseMove: false },
    ],
    series,
  };
}

function extremes(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

// What a line chart says to people who do not see it, and in its table.
function lineFacts(report, chart) {
  return chart.lines.map((line) => {
    const [low, high] = extremes(line.values);
    const last = line.values[line.values.length - 1];
    return [lineName(report, line), line.values[0], last, low, high].map(exact);
  });
}

function lineNote(chart) {
  const drawn = chart.lines.reduce((sum, line) => sum + line.values.length, 0);
  const total = chart.lines.reduce((sum, line) => sum + line.total, 0);
  if (drawn === total) return "";
  return `${drawn.toLocaleString("en")} of ${total.toLocaleString("en")} points: of each stretch the smallest and the largest`;
}
