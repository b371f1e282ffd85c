// The page's controls: axis, theme, cursor, filters, zoom. The charts are drawn by the other files.
"use strict";

const ramBox = document.getElementById("ram");
const mapBox = document.getElementById("map");
const cursorInput = document.getElementById("cursor");
const themeButton = document.getElementById("theme");

// By time RAM is what a meter would show; by instruction the map shows what lasts no time at all.
const chosen = {
  axis: { ram: "seconds", map: "slots" },
  cursor: Number(cursorInput.value),
  filter: { kinds: new Set(data.rows.map((row) => row.kind)), leastBytes: data.fold_bytes, name: "" },
};
let rows = chosenRows(chosen.filter);

function cursorPlace(axis) {
  return axis === "seconds" ? data.steps[chosen.cursor][2] : chosen.cursor;
}

function cursorX(axis) {
  return (cursorPlace(axis) + (axis === "slots" ? 0.5 : 0)) / RULERS[axis].unit;
}

function drawRam() {
  const look = theme();
  const axis = chosen.axis.ram;
  Plotly.react(ramBox, ramTraces(axis, look), ramLayout(axis, look, cursorX(axis)), CHART_CONFIG);
  const note = document.getElementById("ram-note");
  note.textContent =
    data.overlap && axis === "slots"
      ? "Transfers overlap here, so that RAM is a matter of time: by instruction, in the order of the list, it is only roughly so high."
      : "";
}

function drawMap() {
  const look = theme();
  const axis = chosen.axis.map;
  Plotly.react(mapBox, mapTraces(axis, rows, look), mapLayout(axis, rows, look, cursorX(axis)), CHART_CONFIG);
  const hidden = data.rows.filter((row) => !rows.includes(row));
  const small = hidden.filter((row) => row.nbytes < chosen.filter.leastBytes);
  const sum = (some) => some.reduce((total, row) => total + row.nbytes, 0);
  const texts = [`${rows.length} of ${data.rows.length} tensors shown.`];
  if (small.length) {
    texts.push(`${small.length} smaller than ${bytesText(chosen.filter.leastBytes)} are folded (${bytesText(sum(small))} in all).`);
  }
  if (hidden.length > small.length) texts.push(`${hidden.length - small.length} do not match the filter.`);
  document.getElementById("folded").textContent = texts.join(" ");
}

function draw() {
  drawRam();
  drawMap();
  showReadout();
}

// The cursor: one instruction, marked in both charts, with what is in RAM there.

function showReadout() {
  const live = liveAt(chosen.axis.ram, cursorPlace(chosen.axis.ram));
  const box = document.getElementById("readout");
  const at = chosen.cursor;
  const [, , start, end] = data.steps[at];
  const total = live.reduce((sum, [row]) => sum + row.nbytes, 0);
  const title = document.createElement("p");
  const strong = document.createElement("b");
  strong.textContent = `instruction ${at}: ${stepText(at)}`;
  const when = end > start ? `from ${secondsText(start)} for ${secondsText(end - start)}` : `at ${secondsText(start)}`;
  title.append(strong, `, ${when}. ${live.length} tensors live, ${bytesText(total)}:`);
  const list = document.createElement("ul");
  for (const [row] of live.slice(0, 8)) {
    const item = document.createElement("li");
    item.textContent = `${shortened(data.names[row.tensor], 40)} ${bytesText(row.nbytes)}`;
    const paint = data.kinds[row.kind];
    item.style.setProperty("--light", paint.light);
    item.style.setProperty("--dark", paint.dark);
    item.title = paint.label;
    list.append(item);
  }
  if (live.length > 8) {
    const rest = document.createElement("li");
    rest.className = "rest";
    rest.textContent = `and ${live.length - 8} more`;
    list.append(rest);
  }
  box.replaceChildren(title, list);
  cursorInput.setAttribute("aria-valuetext", strong.textContent);
}

let moving = false;
function moveCursor(at) {
  if (at === chosen.cursor) return;
  chosen.cursor = at;
  cursorInput.value = String(at);
  if (moving) return;
  moving = true;
  requestAnimationFrame(() => {
    moving = false;
    for (const [box, axis] of [[ramBox, chosen.axis.ram], [mapBox, chosen.axis.map]]) {
      Plotly.relayout(box, { "shapes[0].x0": cursorX(axis), "shapes[0].x1": cursorX(axis) });
    }
    showReadout();
  });
}

// Both charts show the same stretch of the step, even by different rulers.

function translated(place, from, to) {
  if (from === to) return place;
  if (from === "slots") {
    const at = Math.round(place);
    return at >= data.steps.length ? data.seconds : data.steps[Math.max(0, at)][2];
  }
  const later = data.steps.findIndex(([action, , , end]) => isCompute(action) && end > place);
  return later < 0 ? data.steps.length : later;
}

let following = false;
function follow(from, to, name, other) {
  from.on("plotly_relayout", (event) => {
    if (from === mapBox) retick();
    const touched = Object.keys(event).some((key) => key.startsWith("xaxis"));
    if (following || !touched) return;
    following = true;
    const [mine, theirs] = [chosen.axis[name], chosen.axis[other]];
    const range = from.layout.xaxis.range.map(
      (x) => translated(x * RULERS[mine].unit, mine, theirs) / RULERS[theirs].unit,
    );
    Plotly.relayout(to, { "xaxis.range": range }).then(() => (following = false));
  });
}

let reticking = false;
function retick() {
  if (reticking) return;
  const ticks = rowTicks(rows, mapBox.layout.yaxis.range, mapHeight(rows.length));
  if (String(ticks.tickvals) === String(mapBox.layout.yaxis.tickvals)) return;
  reticking = true;
  Plotly.relayout(mapBox, { "yaxis.tickvals": ticks.tickvals, "yaxis.ticktext": ticks.ticktext }).then(
    () => (reticking = false),
  );
}

function zoomRows(factor) {
  const [bottom, top] = mapBox.layout.yaxis.range;
  const middle = (bottom + top) / 2;
  const half = Math.max(1, (Math.abs(bottom - top) / 2) * factor);
  const most = rows.length - 0.5;
  Plotly.relayout(mapBox, { "yaxis.range": [Math.min(most, middle + half), Math.max(-0.5, middle - half)] });
}

function press(buttons, pressed) {
  for (const button of buttons) button.setAttribute("aria-pressed", String(button === pressed));
}

function refilter() {
  rows = chosenRows(chosen.filter);
  drawMap();
}

function showTheme() {
  document.documentElement.style.colorScheme = isDark() ? "dark" : "light";
  themeButton.textContent = isDark() ? "Light" : "Dark";
}

function showThemeAs(dark) {
  chosenTheme = dark ? "dark" : "light";
  showTheme();
  draw();
}

function start() {
  showTheme();
  themeButton.hidden = false;
  themeButton.addEventListener("click", () => showThemeAs(!isDark()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    showTheme();
    draw();
  });
  for (const chart of ["ram", "map"]) {
    const buttons = [...document.querySelectorAll(`[data-chart=${chart}]`)];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        chosen.axis[chart] = button.dataset.axis;
        press(buttons, button);
        draw();
      });
    }
  }
  for (const button of document.querySelectorAll("[data-reset]")) button.addEventListener("click", draw);
  cursorInput.addEventListener("input", () => moveCursor(Number(cursorInput.value)));
  for (const box of document.querySelectorAll("[name=kind]")) {
    box.addEventListener("change", () => {
      chosen.filter.kinds[box.checked ? "add" : "delete"](Number(box.value));
      refilter();
    });
  }
  document.getElementById("sizes").addEventListener("change", (event) => {
    chosen.filter.leastBytes = Number(event.target.value);
    refilter();
  });
  document.getElementById("name").addEventListener("input", (event) => {
    chosen.filter.name = event.target.value.toLowerCase();
    refilter();
  });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoomRows(Number(button.dataset.zoom)));
  }
  const lists = [...document.querySelectorAll("[data-show]")];
  for (const button of lists) {
    button.addEventListener("click", () => {
      press(lists, button);
      for (const each of lists) document.getElementById(each.dataset.show).hidden = each !== button;
    });
  }
  addEventListener("beforeprint", () => {
    printing = true;
    draw();
  });
  addEventListener("afterprint", () => {
    printing = false;
    draw();
  });
  let wasNarrow = isNarrow();
  addEventListener("resize", () => {
    if (isNarrow() === wasNarrow) return;
    wasNarrow = isNarrow();
    draw();
  });
  draw();
  ramBox.on("plotly_hover", (event) => {
    const at = levelsBy[chosen.axis.ram].instruction[event.points[0].pointIndex];
    if (at !== null && at !== undefined) moveCursor(at);
  });
  follow(ramBox, mapBox, "ram", "map");
  follow(mapBox, ramBox, "map", "ram");
}

start();
