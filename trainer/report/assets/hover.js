// Elements and texts. Whatever comes from a run becomes text, never markup.
function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (typeof value === "boolean") made[name] = value;
    else if (value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function exact(value) {
  return value === null || value === undefined ? "unknown" : String(value);
}

const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

function short(value) {
  if (value === 0) return "0";
  return Math.abs(value) < 0.001 ? value.toExponential(2).replace(/\.?0+e/, "e") : SHORT.format(value);
}

function duration(seconds) {
  const sign = seconds < 0 ? "-" : "";
  const whole = Math.abs(seconds);
  if (whole < 120) return `${sign}${Math.round(whole * 1000) / 1000} s`;
  if (whole < 7200) return `${sign}${Math.round(whole / 6) / 10} min`;
  return `${sign}${Math.round(whole / 360) / 10} h`;
}

function swatch(ink, style) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.borderTopColor = ink;
  made.style.borderTopStyle = Array.isArray(style) ? "dashed" : style || "solid";
  return made;
}

// What a chart shows while a pointer is over it: rows of {ink, style, name, value, where}.
function tip(head, rows) {
  const lines = rows.map((row) =>
    element(
      "div",
      {},
      row.ink ? swatch(row.ink, row.style) : null,
      element("span", {}, row.name, row.where ? element("span", { class: "quiet" }, ` ${row.where}`) : null),
      element("b", {}, row.value),
    ),
  );
  return element("div", { class: "tip" }, head ? element("div", {}, head) : null, ...lines);
}

function tipStyle() {
  return {
    confine: true,
    transitionDuration: 0,
    backgroundColor: css("--panel"),
    borderColor: css("--rule"),
    textStyle: { color: css("--ink") },
  };
}

function axisStyle(extra) {
  return {
    axisLabel: { color: css("--quiet"), hideOverlap: true, formatter: short },
    axisLine: { show: true, lineStyle: { color: css("--rule") } },
    axisTick: { show: false },
    splitLine: { lineStyle: { color: css("--grid") } },
    nameTextStyle: { color: css("--quiet") },
    ...extra,
  };
}
