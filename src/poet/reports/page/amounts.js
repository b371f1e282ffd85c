// Amounts as people read them, names made harmless for Plotly, and the colours of the theme.
"use strict";

function scaleOf(most, steps) {
  // The largest unit in which the largest amount is at least one.
  return steps.find(([size]) => most >= size) || steps[steps.length - 1];
}

const BYTE_UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const SECOND_UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];

// One digit after the point, ties to even: as the command line writes it.
function oneDigit(number) {
  const tenths = number * 10;
  const floor = Math.floor(tenths);
  const isTie = tenths - floor === 0.5;
  return ((isTie ? floor + (floor % 2) : Math.round(tenths)) / 10).toFixed(1);
}

function bytesText(nbytes) {
  const [size, unit] = scaleOf(nbytes, BYTE_UNITS);
  return size === 1 ? `${nbytes} B` : `${oneDigit(nbytes / size)} ${unit}`;
}

function secondsText(seconds) {
  if (seconds === 0) return "0 s";
  const [size, unit] = scaleOf(seconds, SECOND_UNITS);
  return `${Number((seconds / size).toPrecision(4)).toLocaleString("en")} ${unit}`;
}

// Plotly reads a few tags in its texts; a name must be none.
function plain(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

// A long name without its middle.
function shortened(text, most) {
  if (text.length <= most) return text;
  const head = Math.ceil((most - 1) / 2);
  return text.slice(0, head) + "…" + text.slice(text.length - (most - 1 - head));
}

let chosenTheme = null;
let printing = false;

function isDark() {
  if (printing) return false;
  return chosenTheme ? chosenTheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function theme() {
  const dark = isDark();
  return {
    dark,
    ink: dark ? "#e8edf2" : "#17212b",
    soft: dark ? "#9fb0c0" : "#51606e",
    grid: dark ? "#2a3642" : "#e3e8ee",
    ground: dark ? "#151d25" : "#ffffff",
    alarm: dark ? "#ff8a80" : "#b3261e",
    paint: (paint) => (dark ? paint.dark : paint.light),
  };
}

function isNarrow() {
  return document.documentElement.clientWidth < 640;
}
