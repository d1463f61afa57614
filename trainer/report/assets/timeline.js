// What happened to the runs, along one line of time.
function timelineOption(report, chart) {
  const { over, rows } = chart;
  const events = rows.flatMap(({ run, row }, place) =>
    report.runs[run].events.filter((event) => event.row === row).map((event) => ({ event, place })),
  );
  const tones = { good: css("--good"), bad: css("--bad"), neutral: css("--neutral") };
  const data = events.map(({ event, place }) => {
    const [from, to] = event[over];
    return [from, to === null ? from : to, place, to === null ? 0 : 1];
  });
  return {
    animation: false,
    grid: { left: 8, right: 18, top: 8, bottom: 6, containLabel: true },
    xAxis: axisStyle({
      type: "value",
      min: 0,
      max: "dataMax",
      axisLabel: { color: css("--quiet"), hideOverlap: true, showMaxLabel: false, formatter: over === "time" ? duration : short },
    }),
    yAxis: axisStyle({
      type: "category",
      inverse: true,
      data: rows.map((row) => row.name),
      axisLabel: { color: css("--quiet"), width: 130, overflow: "truncate" },
    }),
    tooltip: {
      trigger: "item",
      ...tipStyle(),
      formatter: (item) => tip(events[item.dataIndex].event.text, []),
    },
    series: [
      {
        type: "custom",
        data,
        encode: { x: [0, 1], y: 2 },
        renderItem: (params, api) => {
          const tone = tones[events[params.dataIndex].event.tone];
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
