// What happened to the runs, along one line of time.
const ROWS = { training: "training", lost: "done again", snapshots: "snapshots", journal: "journal", decisions: "decisions" };

function timelineOption(report, chart) {
  const axis = chart.axis;
  const rows = chart.rows;
  const tones = { good: css("--good"), bad: css("--bad"), neutral: css("--neutral") };
  const data = chart.events.map(({ run, event }) => {
    const [from, to] = event[axis];
    return [from, to === null ? from : to, rows.findIndex((row) => row.run === run && row.row === event.row), to === null ? 0 : 1];
  });
  return {
    animation: false,
    grid: { left: 8, right: 18, top: 8, bottom: 6, containLabel: true },
    xAxis: axisStyle({
      type: "value",
      min: 0,
      max: "dataMax",
      axisLabel: { color: css("--quiet"), hideOverlap: true, formatter: axis === "time" ? duration : short },
    }),
    yAxis: axisStyle({
      type: "category",
      inverse: true,
      data: rows.map((row) => row.label),
      axisLabel: { color: css("--quiet"), width: 130, overflow: "truncate" },
    }),
    tooltip: {
      trigger: "item",
      ...tipStyle(),
      formatter: (item) => tip(chart.events[item.dataIndex].event.text, []),
    },
    series: [
      {
        type: "custom",
        data,
        encode: { x: [0, 1], y: 2 },
        renderItem: (params, api) => {
          const tone = tones[chart.events[params.dataIndex].event.tone];
          const begin = api.coord([api.value(0), api.value(2)]);
          const end = api.coord([api.value(1), api.value(2)]);
          const height = Math.min(api.size([0, 1])[1] * 0.5, 16);
          if (!api.value(3)) {
            return { type: "circle", shape: { cx: begin[0], cy: begin[1], r: 5 }, style: { fill: tone, stroke: css("--panel"), lineWidth: 1 } };
          }
          return {
            type: "rect",
            shape: { x: begin[0], y: begin[1] - height / 2, width: Math.max(end[0] - begin[0], 2), height },
            style: { fill: tone, stroke: css("--panel"), lineWidth: 1 },
          };
        },
      },
    ],
  };
}

// One time line for all runs: over time where every event has one, else over updates.
function timelineOf(report) {
  const events = report.runs.flatMap((run, place) => run.events.map((event) => ({ run: place, event })));
  if (!events.length) return null;
  const axis = events.every(({ event }) => event.time[0] !== null) ? "time" : "update";
  const rows = report.runs.flatMap((run, place) =>
    Object.entries(ROWS)
      .filter(([row]) => run.events.some((event) => event.row === row))
      .map(([row, label]) => ({ run: place, row, label: report.runs.length > 1 ? `${run.name}: ${label}` : label })),
  );
  return { kind: "timeline", key: "timeline", title: "Starts, snapshots, journal", unit: axis === "time" ? "time since the first start" : "updates", axis, rows, events };
}
