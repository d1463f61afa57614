// Charts that are not over the progress of runs: stacked bars, points, parallel coordinates.
function barOption(report, chart) {
  return {
    animation: false,
    grid: { left: 8, right: 18, top: 34, bottom: 6, containLabel: true },
    legend: { top: 0, left: 0, textStyle: { color: css("--ink") }, selectedMode: false },
    xAxis: axisStyle({ type: "value" }),
    yAxis: axisStyle({
      type: "category",
      inverse: true,
      data: chart.categories,
      axisLabel: { color: css("--quiet"), width: 130, overflow: "truncate" },
    }),
    tooltip: {
      trigger: "item",
      ...tipStyle(),
      formatter: (bar) => tip(chart.categories[bar.dataIndex], [{ ink: bar.color, name: bar.seriesName, value: exact(bar.value) }]),
    },
    series: chart.stacks.map((stack, place) => ({
      type: "bar",
      name: stack.name,
      stack: "all",
      barMaxWidth: 34,
      data: stack.values,
      itemStyle: { color: color(place) },
      emphasis: { disabled: true },
    })),
  };
}

function barFacts(report, chart) {
  return chart.categories.map((name, place) => [name, ...chart.stacks.map((stack) => exact(stack.values[place]))]);
}

function pointsAxis(axis, extra) {
  const own = axis.type === "category" ? { data: axis.categories, axisLabel: { color: css("--quiet"), hideOverlap: true } } : { scale: true };
  return axisStyle({ type: axis.type, name: axis.name, nameLocation: "middle", ...own, ...extra });
}

function place(axis, value) {
  return axis.type === "category" ? String(value) : value;
}

function pointsOption(report, chart) {
  const marks = ["circle", "diamond", "triangle", "rect"];
  return {
    animation: false,
    grid: { left: 34, right: 18, top: 34, bottom: 26, containLabel: true },
    legend: { top: 0, left: 0, type: "scroll", textStyle: { color: css("--ink") } },
    xAxis: pointsAxis(chart.x, { nameGap: 28 }),
    yAxis: pointsAxis(chart.y, { nameGap: 46 }),
    tooltip: {
      trigger: "item",
      ...tipStyle(),
      formatter: (item) => {
        const [x, y, name] = chart.groups[item.seriesIndex].points[item.dataIndex];
        return tip(name, [
          { name: chart.x.name, value: exact(x) },
          { name: chart.y.name, value: exact(y) },
        ]);
      },
    },
    series: chart.groups.map((group, number) => ({
      type: group.line ? "line" : "scatter",
      step: group.line ? "end" : undefined,
      name: group.name,
      data: group.points.map(([x, y]) => [place(chart.x, x), place(chart.y, y)]),
      symbol: marks[number % marks.length],
      symbolSize: group.line ? 4 : 8,
      itemStyle: { color: color(number) },
      lineStyle: { color: color(number), width: 1.6 },
      emphasis: { disabled: true },
    })),
  };
}

function pointsFacts(report, chart) {
  return chart.groups.flatMap((group) => group.points.map(([x, y, name]) => [name, group.name, exact(x), exact(y)]));
}

// Colors from bad to good, which differ in lightness as well.
function parallelOption(report, chart) {
  const values = chart.rows.map((row) => row.values[chart.color]);
  const [low, high] = extremes(values);
  const scale = theme() === "dark" ? ["#5b3a8c", "#2fc79f", "#f0e442"] : ["#d8b365", "#2f8f7f", "#2b1a5e"];
  return {
    animation: false,
    parallel: { left: 50, right: 70, top: 40, bottom: 46 },
    parallelAxis: chart.axes.map((axis, dim) => ({
      dim,
      ...pointsAxis(axis, { nameLocation: "end", nameTextStyle: { color: css("--ink"), width: 110, overflow: "truncate" } }),
    })),
    visualMap: {
      show: true,
      orient: "horizontal",
      left: "center",
      bottom: 0,
      itemHeight: 90,
      itemWidth: 12,
      dimension: chart.color,
      min: low,
      max: high > low ? high : low + 1,
      calculable: false,
      formatter: short,
      textStyle: { color: css("--quiet") },
      inRange: { color: chart.minimize ? [...scale].reverse() : scale },
    },
    tooltip: {
      trigger: "item",
      ...tipStyle(),
      formatter: (item) => {
        const row = chart.rows[item.dataIndex];
        return tip(row.name, chart.axes.map((axis, dim) => ({ name: axis.name, value: exact(row.values[dim]) })));
      },
    },
    series: {
      type: "parallel",
      lineStyle: { width: 1.6, opacity: 0.8 },
      data: chart.rows.map((row) => ({ name: row.name, value: row.values.map((value, dim) => place(chart.axes[dim], value)) })),
    },
  };
}

function parallelFacts(report, chart) {
  return chart.rows.map((row) => [row.name, ...row.values.map(exact)]);
}
