// The residency map: a row a tensor, a bar for each stretch in which it is somewhere.
"use strict";

const LABEL_PIXELS = 13;
const MAP_MARGINS = { t: 6, b: 44 };

function mapMargin() {
  return isNarrow() ? 84 : 190;
}

function chosenRows(filter) {
  return data.rows.filter(
    (row) =>
      filter.kinds.has(row.kind) &&
      row.nbytes >= filter.leastBytes &&
      data.names[row.tensor].toLowerCase().includes(filter.name),
  );
}

function mapHeight(count) {
  const most = isNarrow() ? 480 : 760;
  return MAP_MARGINS.t + MAP_MARGINS.b + Math.max(120, Math.min(most, count * LABEL_PIXELS));
}

function placeText(axis, from, to) {
  if (axis === "seconds") return `from ${secondsText(from)} to ${secondsText(to)}`;
  return to - from === 1 ? `at instruction ${from}` : `instructions ${from} to ${to - 1}`;
}

function mapTraces(axis, rows, look) {
  const unit = RULERS[axis].unit;
  const gap = rows.length > 90 ? 0 : 0.16;
  const traces = data.states.map((paint) => ({
    type: "bar",
    orientation: "h",
    name: paint.label,
    x: [],
    base: [],
    y: [],
    width: 1 - gap,
    hovertext: [],
    hoverinfo: "text",
    textposition: "none",
    marker: {
      color: look.paint(paint),
      line: { width: 0 },
      pattern: paint.pattern
        ? { shape: paint.pattern, fgcolor: look.ground, fgopacity: 0.6, size: 5, solidity: 0.2, fillmode: "overlay" }
        : undefined,
    },
  }));
  rows.forEach((row, y) => {
    const spans = row[axis];
    const title = `${plain(shortened(data.names[row.tensor], isNarrow() ? 34 : 70))}<br>tensor ${row.tensor}, ${
      data.kinds[row.kind].label}, ${bytesText(row.nbytes)}`;
    for (let s = 0; s < spans.length; s += 3) {
      const [state, from, to] = [spans[s], spans[s + 1], spans[s + 2]];
      const trace = traces[state];
      trace.base.push(from / unit);
      trace.x.push((to - from) / unit);
      trace.y.push(y);
      trace.hovertext.push(`${title}<br><b>${data.states[state].label}</b> ${placeText(axis, from, to)}`);
    }
  });
  return traces.filter((trace) => trace.y.length);
}

// Labels for as many rows as there is room for: all when rows are thick, every n-th when thin.
function rowTicks(rows, range, height) {
  const [low, high] = [Math.min(...range), Math.max(...range)];
  const first = Math.max(0, Math.ceil(low));
  const last = Math.min(rows.length - 1, Math.floor(high));
  const room = Math.max(1, Math.floor((height - MAP_MARGINS.t - MAP_MARGINS.b) / LABEL_PIXELS));
  const every = Math.max(1, Math.ceil((last - first + 1) / room));
  const most = isNarrow() ? 12 : 25;
  const tickvals = [];
  for (let y = first; y <= last; y += every) tickvals.push(y);
  return {
    tickvals,
    ticktext: tickvals.map((y) => plain(shortened(data.names[rows[y].tensor], most))),
  };
}

function mapLayout(axis, rows, look, cursorX) {
  const height = mapHeight(rows.length);
  const range = [Math.max(rows.length, 1) - 0.5, -0.5];
  return {
    ...baseLayout(look),
    height,
    margin: { l: mapMargin(), r: 12, ...MAP_MARGINS },
    barmode: "overlay",
    hovermode: "closest",
    xaxis: axisLayout(RULERS[axis], look),
    yaxis: {
      range,
      minallowed: -0.5,
      maxallowed: Math.max(rows.length, 1) - 0.5,
      tickmode: "array",
      ...rowTicks(rows, range, height),
      tickfont: { size: 10, family: "ui-monospace, monospace" },
      ticks: "",
      showgrid: false,
      zeroline: false,
      title: isNarrow() ? undefined : { text: "tensor, by first use", standoff: 4 },
    },
    shapes: [cursorLine(cursorX, look)],
  };
}
