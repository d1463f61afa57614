// What the reader chooses: the axis, a logarithmic scale, a range, runs, colors.
function controls(report, state, redraw, zoom) {
  const made = [];
  if (report.charts.some((chart) => chart.kind === "lines")) {
    made.push(axisChoice(report, state, redraw), logChoice(state, redraw), rangeChoice(state, zoom));
  }
  if (report.runs.length > 1) made.push(runChoice(report, state, redraw));
  made.push(themeChoice(redraw));
  return made;
}

function fieldset(title, ...children) {
  return element("fieldset", {}, element("legend", {}, title), ...children);
}

function has(report, axis) {
  return report.runs.some((run) => run.positions[axis].some((value) => value !== null));
}

function axisChoice(report, state, redraw) {
  const radios = Object.entries(AXES).map(([axis, title]) =>
    element(
      "label",
      {},
      element("input", {
        type: "radio",
        name: "axis",
        value: axis,
        checked: axis === state.axis,
        disabled: !has(report, axis),
        onchange: () => {
          state.axis = axis;
          state.range = [null, null];
          redraw();
        },
      }),
      title,
    ),
  );
  return fieldset("over", ...radios);
}

function logChoice(state, redraw) {
  const box = element("input", {
    type: "checkbox",
    id: "log",
    checked: state.log,
    onchange: () => {
      state.log = box.checked;
      redraw();
    },
  });
  return element("label", {}, box, "logarithmic");
}

function rangeChoice(state, zoom) {
  const value = (input) => (input.value === "" ? null : Number(input.value));
  const change = () => zoom(value(from), value(to));
  const from = element("input", { type: "number", id: "from", step: "any", placeholder: "start", "aria-label": "from", onchange: change });
  const to = element("input", { type: "number", id: "to", step: "any", placeholder: "end", "aria-label": "to", onchange: change });
  const reset = element("button", { type: "button", id: "reset", onclick: () => zoom(null, null) }, "all");
  state.showRange = () => {
    [from.value, to.value] = state.range.map((each) => (each === null ? "" : String(Number(each.toPrecision(6)))));
  };
  state.showRange();
  return fieldset("range", from, "to", to, reset);
}

function runChoice(report, state, redraw) {
  const boxes = report.runs.map((run, place) => {
    const box = element("input", {
      type: "checkbox",
      checked: !state.runs.has(place),
      onchange: () => {
        box.checked ? state.runs.delete(place) : state.runs.add(place);
        redraw();
      },
    });
    const made = element("label", { class: "run" }, box, swatch(color(place)), run.name);
    made.dataset.run = place;
    return made;
  });
  return fieldset("runs", ...boxes);
}

function themeChoice(redraw) {
  const select = element(
    "select",
    {
      id: "theme",
      onchange: () => {
        chosenTheme = select.value;
        redraw();
      },
    },
    ...["auto", "light", "dark"].map((name) => element("option", { value: name }, name)),
  );
  select.value = chosenTheme;
  return element("label", {}, "colors", select);
}
