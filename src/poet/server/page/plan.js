// A job as it is seen: how far the search is, what came of it, what can be taken along.
"use strict";

const WAYS = [
  ["plan.json", "The plan (JSON)"],
  ["plan.csv", "The schedule (CSV)"],
  ["report", "The report (HTML)"],
];

const MOST_PIXELS = 50_000;

function element(name, attributes = {}, ...inner) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "role") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...inner);
  return made;
}

function gapText(gap) {
  if (gap === null || gap === undefined) return "nothing is proven yet";
  return gap <= 1e-4 ? "proven to be the least in this op order" : `at most ${percentText(gap, gap < 0.01 ? 2 : 1)} above the least in this op order`;
}

function joulesText(joules) {
  const [size, unit] = scaleOf(joules, [[1, "J"], [1e-3, "mJ"], [1e-6, "µJ"], [1e-9, "nJ"]]);
  return `${Number((joules / size).toPrecision(5)).toLocaleString("en")} ${unit}`;
}

// A search while it runs.
class SearchView {
  constructor() {
    this.history = [];
  }

  begin(text) {
    this.history = [];
    this.wasGood = false;
    field("progress").hidden = false;
    field("progress-text").textContent = text;
    field("progress-curve").replaceChildren();
  }

  say(text) {
    field("progress-text").textContent = text;
  }

  take(figures) {
    const { elapsed_seconds: seconds, joules = null, bound_joules: bound = null, gap = null } = figures;
    this.history.push({ seconds, value: joules, bound });
    const so = joules === null ? "No schedule yet" : `Best so far ${joulesText(joules)}`;
    const proof = gap !== null ? gapText(gap) : bound ? `no schedule in this op order takes less than ${joulesText(bound)}` : "";
    this.say(`${so}${proof ? `, ${proof}` : ""}; ${secondsText(Number(seconds.toPrecision(3)))} so far.`);
    searchChart(field("progress-curve"), this.history, "J");
  }

  end() {
    field("progress").hidden = true;
  }
}

const OUTCOMES = {
  optimal: "Optimal: no schedule in this op order takes less",
  feasible: "A plan that holds",
  infeasible: "Nothing fits these limits",
  unknown: "No plan was found in the time given",
};

function showResult(job, base, onAnother) {
  const { outcome } = job;
  field("result").hidden = false;
  const title = job.status === "cancelled" && job.joules !== null ? "Stopped: the best so far" : OUTCOMES[outcome] || "No plan";
  field("result-title").textContent = title;
  const has = job.joules !== null && job.joules !== undefined;
  field("result-text").textContent = has
    ? `${joulesText(job.joules)} a step, ${secondsText(job.seconds)}, peak ${bytesText(job.peak_bytes)}; ${gapText(job.gap)}.`
    : job.reason || job.error || "";
  const ways = [];
  if (!has && job.enough_bytes) {
    const budget = bytesText(job.enough_bytes);
    const button = element("button", { type: "button", className: "primary", id: "enough" }, `Plan with ${budget}, which is enough`);
    button.addEventListener("click", () => onAnother(job.enough_bytes));
    ways.push(button);
  }
  for (const [name, text] of WAYS) {
    if (!has && name !== "report" && name !== "plan.json") continue;
    ways.push(element("a", { href: `${base}/${name}`, download: name === "report" ? "report.html" : name }, text));
  }
  if (has && job.plan.graph.ops.some((op) => op.calls?.length)) ways.push(firmwareButton(base, job.plan.costs.device));
  const link = element("button", { type: "button", id: "link" }, "Copy a link to this");
  link.addEventListener("click", async () => {
    await navigator.clipboard?.writeText(location.href).catch(() => {});
    link.textContent = "Copied";
    setTimeout(() => (link.textContent = "Copy a link to this"), 2000);
  });
  ways.push(link);
  field("result-ways").replaceChildren(...ways);
  field("compare-section").hidden = !has;
  field("compare-table").replaceChildren();
  field("compare-progress").textContent = "";
  showReport(`${base}/report`);
}

// C is written when it is asked for, which takes a while and may be refused: a link could not say why.
function firmwareButton(base, device) {
  const text = "Firmware in C (zip)";
  const button = element("button", { type: "button", id: "firmware" }, text);
  button.addEventListener("click", async () => {
    button.disabled = true;
    button.textContent = "Writing C…";
    refuse(null);
    try {
      const target = known.targets.includes(device) ? device : "host";
      const packed = await fetched(`${base}/firmware.zip?target=${encodeURIComponent(target)}`);
      const way = element("a", { href: URL.createObjectURL(packed), download: "firmware.zip" });
      way.click();
      setTimeout(() => URL.revokeObjectURL(way.href), 60_000);
    } catch (error) {
      refuse(error);
    } finally {
      button.disabled = false;
      button.textContent = text;
    }
  });
  return button;
}

// The report is a page of its own, as the command line writes it; it runs as nobody, says how high it
// is, and is told of light and dark. Each has a frame of its own: a frame that goes from one address to
// the next would leave steps of its own in the browser's history, between those of the page.
function showReport(address) {
  const old = field("report");
  if (old.dataset.address === address) return;
  const frame = old.cloneNode();
  frame.dataset.address = address;
  frame.src = address || "about:blank";
  frame.addEventListener("load", paintReport);
  old.replaceWith(frame);
}

function paintReport() {
  field("report").contentWindow?.postMessage({ poet: "theme", dark: isDark() }, "*");
}

addEventListener("message", (event) => {
  const frame = field("report");
  if (event.source !== frame.contentWindow || event.data?.poet !== "height") return;
  const pixels = Number(event.data.pixels);
  if (pixels > 0 && pixels < MOST_PIXELS) frame.style.height = `${Math.ceil(pixels)}px`;
});

function hideResult() {
  field("result").hidden = true;
  showReport("");
}

function table(headings, rows, label, name = "") {
  const head = element("tr", {}, ...headings.map(([text, side]) => element("th", { scope: "col", className: side || "" }, text)));
  const body = rows.map((row) =>
    element("tr", {}, ...row.map((cell, n) => element("td", { className: headings[n][1] || "" }, cell))),
  );
  const inner = element("table", { className: name }, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { className: "scroll", tabindex: "0", role: "region", "aria-label": label }, inner);
}

function comparisonTable(rows) {
  const least = Math.min(...rows.filter((row) => row.joules !== null).map((row) => row.joules));
  const cells = rows.map((row) => [
    row.method,
    row.status,
    row.joules === null ? "" : joulesText(row.joules),
    row.joules === null ? "" : percentText(row.joules / least, 2),
    row.seconds === null ? "" : secondsText(row.seconds),
    row.peak_bytes === null ? "" : bytesText(row.peak_bytes),
    row.reason || "",
  ]);
  return table(
    [["method"], ["status"], ["energy", "right"], ["of the least", "right"], ["time", "right"], ["RAM peak", "right"], ["remark"]],
    cells,
    "Against other methods",
    "compared",
  );
}

function curveTable(points, keepAllJoules) {
  const cells = points.map((point) => [bytesText(point.ram_bytes), joulesText(point.joules), percentText(point.joules / keepAllJoules, 2)]);
  return table([["RAM budget", "right"], ["energy", "right"], ["of keep-all's", "right"]], cells, "Energy against memory, as a table");
}
