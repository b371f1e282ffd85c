// The page's data: its ops and steps by name, and the rulers of its charts.
const data = JSON.parse(document.getElementById("data").textContent);

function opText(op) {
  return `op ${op} (${data.ops[op][0]}, ${data.ops[op][1]})`;
}

function isCompute(action) {
  return data.actions[action].endsWith("compute");
}

function stepText(at) {
  const [action, target] = data.steps[at];
  const what = isCompute(action) ? opText(target) : `tensor ${target} (${data.names[target]})`;
  return `${data.actions[action]} ${what}`;
}

// The two rulers: slots count instructions, seconds are the clock's.
const RULERS = {
  slots: { end: data.steps.length, unit: 1, title: "instruction" },
  seconds: (() => {
    const [unit, name] = scaleOf(data.seconds, SECOND_UNITS);
    return { end: data.seconds, unit, title: `time in ${name}` };
  })(),
};

function axisLayout(ruler, look) {
  return {
    title: { text: ruler.title, standoff: 8 },
    range: [0, (ruler.end || 1) / ruler.unit],
    gridcolor: look.grid,
    linecolor: look.soft,
    zeroline: false,
    tickformat: ruler.unit === 1 && ruler.title === "instruction" ? "," : "",
    minallowed: 0,
    maxallowed: (ruler.end || 1) / ruler.unit,
  };
}

function baseLayout(look) {
  return {
    font: { family: "system-ui, sans-serif", size: 12, color: look.ink },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    showlegend: false,
    dragmode: isNarrow() ? false : "zoom",
    hoverlabel: { bgcolor: look.ground, bordercolor: look.soft, font: { color: look.ink }, align: "left" },
  };
}

const CHART_CONFIG = {
  responsive: true,
  displaylogo: false,
  displayModeBar: "hover",
  modeBarButtonsToRemove: ["select2d", "lasso2d", "zoomIn2d", "zoomOut2d", "autoScale2d"],
};
