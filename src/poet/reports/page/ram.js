// RAM over the step: a stack by role under the budget, with the peak marked.
"use strict";

// The level of each kind after each change, along one ruler. Of what happens at one place only the
// highest level and the last are kept: dips that last no time would be drawn as scratches.
function levels(axis) {
  const order = axis === "seconds" ? data.in_time : data.changes.map((_, n) => n);
  const now = data.kinds.map(() => 0);
  const found = { x: [], kinds: data.kinds.map(() => []), total: [], instruction: [] };
  const lists = [found.x, found.total, found.instruction, ...found.kinds];
  const put = (x, instruction) => {
    const total = now.reduce((a, b) => a + b, 0);
    const last = found.x.length - 1;
    if (last >= 1 && found.x[last] === x && found.x[last - 1] === x) {
      const lower = found.total[last - 1] < found.total[last] ? last - 1 : last;
      for (const list of lists) list.splice(lower, 1);
    }
    found.x.push(x);
    found.total.push(total);
    found.instruction.push(instruction);
    now.forEach((level, kind) => found.kinds[kind].push(level));
  };
  for (const n of order) {
    const [slot, seconds, instruction, deltas] = data.changes[n];
    for (let d = 0; d < deltas.length; d += 2) now[deltas[d]] += deltas[d + 1];
    put(axis === "seconds" ? seconds : slot, instruction);
  }
  put(RULERS[axis].end, null);
  return found;
}

const levelsBy = { slots: levels("slots"), seconds: levels("seconds") };

function ramTraces(axis, look) {
  const found = levelsBy[axis];
  const ruler = RULERS[axis];
  const [size] = scaleOf(data.peak_bytes, BYTE_UNITS);
  const x = found.x.map((each) => each / ruler.unit);
  const below = found.total.map(() => 0);
  const traces = [];
  data.kinds.forEach((paint, kind) => {
    if (!found.kinds[kind].some((level) => level > 0)) return;
    found.kinds[kind].forEach((level, n) => (below[n] += level));
    const color = look.paint(paint);
    traces.push({
      type: "scatter",
      mode: "lines",
      name: paint.label,
      x,
      y: below.map((level) => level / size),
      line: { shape: "hv", width: 0.6, color: look.ground },
      fill: traces.length ? "tonexty" : "tozeroy",
      fillcolor: color,
      fillpattern: paint.pattern
        ? { shape: paint.pattern, bgcolor: color, fgcolor: look.ground, fgopacity: 0.55, size: 7, solidity: 0.16 }
        : undefined,
      hoverinfo: "skip",
    });
  });
  traces.push({
    type: "scatter",
    mode: "lines",
    name: "total",
    x,
    y: found.total.map((level) => level / size),
    line: { shape: "hv", width: x.length > 1500 ? 0.7 : 1.2, color: look.ink },
    hoverinfo: "text",
    hovertext: found.total.map((level, n) => {
      const at = found.instruction[n];
      const what = at === null ? (n ? "end of the step" : "start of the step") : `${at}: ${stepText(at)}`;
      return `${plain(shortened(what, isNarrow() ? 40 : 80))}<br>${bytesText(level)} in RAM`;
    }),
  });
  return traces;
}

function ramLayout(axis, look, cursorX) {
  const found = levelsBy[axis];
  const ruler = RULERS[axis];
  const [size, unit] = scaleOf(data.peak_bytes, BYTE_UNITS);
  const peak = Math.max(...found.total);
  const at = found.total.indexOf(peak);
  const budget = data.ram_bytes;
  const budgetFits = budget !== null && budget <= 2 * peak;
  const most = Math.max(peak, budgetFits ? budget : 0) * 1.3 || 1;
  const peakX = found.x[at] / ruler.unit;
  const isRight = found.x[at] > ruler.end / 2;
  const instruction = found.instruction[at];
  const step = instruction === null ? "the start" : stepText(instruction);
  const annotations = [
    {
      x: peakX,
      y: peak / size,
      text: `<b>peak ${bytesText(peak)}</b><br>${plain(shortened(step, isNarrow() ? 22 : 60))}`,
      showarrow: true,
      arrowcolor: look.ink,
      arrowwidth: 1,
      ax: isRight ? -24 : 24,
      ay: -40,
      xanchor: isRight ? "right" : "left",
      align: isRight ? "right" : "left",
      bgcolor: look.ground,
      bordercolor: look.soft,
      borderpad: 3,
      opacity: 0.92,
      font: { size: 11 },
    },
  ];
  const shapes = [cursorLine(cursorX, look)];
  if (budget !== null) {
    annotations.push({
      xref: "paper",
      x: isRight ? 0 : 1,
      xanchor: isRight ? "left" : "right",
      yref: budgetFits ? "y" : "paper",
      y: budgetFits ? budget / size : 1,
      yanchor: budgetFits ? "bottom" : "top",
      text: budgetFits
        ? `<b>budget ${bytesText(budget)}</b>`
        : `<b>budget ${bytesText(budget)}: far above this chart</b>`,
      showarrow: false,
      font: { color: look.alarm, size: 12 },
    });
    if (budgetFits) {
      shapes.push({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: budget / size, y1: budget / size,
        line: { color: look.alarm, width: 2, dash: "dash" },
      });
    }
  }
  return {
    ...baseLayout(look),
    height: isNarrow() ? 300 : 380,
    margin: { l: isNarrow() ? 48 : mapMargin(), r: 12, t: 8, b: 44 },
    hovermode: "x",
    xaxis: axisLayout(ruler, look),
    yaxis: {
      title: { text: `RAM in ${unit}`, standoff: 6 },
      range: [0, most / size],
      gridcolor: look.grid,
      zeroline: false,
      fixedrange: true,
    },
    annotations,
    shapes,
  };
}

function cursorLine(x, look) {
  return {
    type: "line", name: "cursor", yref: "paper", y0: 0, y1: 1, x0: x, x1: x,
    line: { color: look.ink, width: 1, dash: "dot" },
  };
}

// What is in RAM at a place on the ruler, largest first.
function liveAt(axis, place) {
  const inRam = data.states.map((_, n) => n !== STATE_STORE);
  const live = [];
  for (const row of data.rows) {
    const spans = row[axis];
    for (let s = 0; s < spans.length; s += 3) {
      if (spans[s + 1] <= place && place < spans[s + 2]) {
        if (inRam[spans[s]]) live.push([row, spans[s]]);
        break;
      }
    }
  }
  return live.sort((a, b) => b[0].nbytes - a[0].nbytes);
}

const STATE_STORE = data.states.findIndex((paint) => paint.label === "in the store");
