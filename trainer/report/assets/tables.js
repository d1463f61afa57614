// What a report says in words and tables.
function scroll(label, ...children) {
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);
}

function grid(label, head, rows) {
  return scroll(
    label,
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element(
        "tbody",
        {},
        ...rows.map(([first, ...rest]) =>
          element("tr", {}, element("th", { scope: "row" }, first), ...rest.map((value) => element("td", { class: "value" }, exact(value)))),
        ),
      ),
    ),
  );
}

function glance(report) {
  const names = [...new Set(report.runs.flatMap((run) => run.facts.map(([name]) => name)))];
  const facts = report.runs.map((run) => new Map(run.facts));
  const rows = names.map((name) => [name, ...facts.map((each) => each.get(name) || "–")]);
  rows.push(["folder", ...report.runs.map((run) => run.folder)]);
  const table = report.runs.length ? [grid("Runs", ["run", ...report.runs.map((run) => run.name)], rows)] : [];
  return [...table, ...report.runs.filter((run) => run.problems.length).map(problems)];
}

function problems(run) {
  return element(
    "div",
    { class: "problems" },
    element("p", {}, `${run.name}: not everything could be used`),
    element("ul", {}, ...run.problems.map((text) => element("li", {}, text))),
  );
}

function history(report) {
  return report.runs
    .filter((run) => run.events.length)
    .map((run) =>
      element(
        "details",
        { id: `events-${report.runs.indexOf(run)}`, open: run.events.length <= 12 },
        element("summary", {}, `${run.name}: ${run.events.length < run.happened ? `${run.events.length} of ` : ""}${run.happened} events`),
        grid(
          `What happened to ${run.name}`,
          ["update", "when", "what"],
          run.events.map((event) => [event.update[1] === null ? exact(event.update[0]) : `${event.update[0]} to ${event.update[1]}`, event.moment || "", event.text]),
        ),
      ),
    );
}

function texts(report) {
  return report.runs
    .filter((run) => run.texts.length)
    .map((run) => {
      const shown = element("pre", { tabindex: "0", role: "region", "aria-label": `Text sampled from ${run.name}` });
      const select = element(
        "select",
        { onchange: () => (shown.textContent = run.texts[select.selectedIndex].text) },
        ...run.texts.map((sample) => element("option", {}, `update ${sample.update}`)),
      );
      select.selectedIndex = run.texts.length - 1;
      shown.textContent = run.texts[run.texts.length - 1].text;
      return element("div", {}, element("label", {}, `${run.name}, at`, select), shown);
    });
}

function configuration(report) {
  const rows = report.configuration;
  if (!rows.length) return [];
  const several = report.runs.length > 1;
  const differing = rows.filter((row) => row.differs);
  const head = ["key", ...report.runs.map((run) => run.name)];
  const cells = (chosen) => chosen.map((row) => [row.key, ...row.values.map((value) => (value === null ? "–" : value))]);
  const all = element(
    "details",
    { id: "all-keys" },
    element("summary", {}, `all ${rows.length} keys`),
    grid("All keys", head, cells(rows)),
  );
  if (!several) return [all];
  const text = differing.length ? `The runs differ in ${differing.length} of ${rows.length} keys.` : "The runs have the same configuration.";
  return [element("p", {}, text), ...(differing.length ? [grid("Where the runs differ", head, cells(differing))] : []), all];
}
