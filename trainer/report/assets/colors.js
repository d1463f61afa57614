"use strict";
// Colors that people with any color vision can tell apart (Okabe and Ito, 2008), and their lighter kin for dark paper.
const PALETTE = {
  light: ["#0072b2", "#d55e00", "#00805e", "#b0568e", "#8a6d00", "#3a86b8", "#7a4fbf", "#444b54"],
  dark: ["#56b4e9", "#ff9f4d", "#2fc79f", "#e59ac7", "#f0e442", "#8fd0ff", "#c3a6ff", "#c9d1d9"],
};
const DASHES = ["solid", "dashed", "dotted", [9, 3, 2, 3]];
const DARK = window.matchMedia("(prefers-color-scheme: dark)");
let chosenTheme = "auto";

function theme() {
  return chosenTheme === "auto" ? (DARK.matches ? "dark" : "light") : chosenTheme;
}

function applyTheme() {
  document.documentElement.dataset.theme = theme();
}

function color(place) {
  const colors = PALETTE[theme()];
  return colors[place % colors.length];
}

function dash(place) {
  return DASHES[place % DASHES.length];
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
