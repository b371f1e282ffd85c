// The page: the form asks, the curve asks for another budget, and one plan is shown at a time.
"use strict";

const search = new SearchView();
const curve = new EnergyCurve(field("curve"), (ram) => planFor(ram));
let showing = null; // {id, stop} of the plan that is shown or searched
let drawing = null; // the same of the curve
let drawnFor = ""; // what the curve is of

function refuse(error) {
  for (const each of document.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
  field("refusal").textContent = error ? error.message : "";
  if (error instanceof BadField) {
    field(error.id).setAttribute("aria-invalid", "true");
    field(error.id).focus();
  }
}

const waiting = (where) => (seconds) => (field(where).textContent = `The server is busy; asking again in ${seconds} s.`);

async function planFor(ram) {
  field("ram").value = String(ram);
  await plan();
}

async function plan() {
  refuse(null);
  let body;
  try {
    body = asked();
    giveUp();
    hideResult();
    search.begin("Asking…");
    if (isNarrow()) field("progress").scrollIntoView({ behavior: "smooth" });
    const job = await ask("POST", "/api/plans", body, { onWait: waiting("progress-text") });
    history.pushState({}, "", `?plan=${encodeURIComponent(job.id)}`);
    await watch(job.id, true);
  } catch (error) {
    search.end();
    refuse(error);
  }
}

// A search that was asked for here, and that nobody here waits for any more, makes room for the next.
function giveUp() {
  showing?.stop.abort();
  if (showing?.isOurs && showing.isSearched) ask("DELETE", `/api/plans/${encodeURIComponent(showing.id)}`).catch(() => {});
}

// Follows a plan to its end, whoever asked for it, from wherever it is.
async function watch(id, isOurs = false) {
  showing?.stop.abort();
  const stop = new AbortController();
  const followed = { id, stop, isOurs, isSearched: true };
  showing = followed;
  const base = `/api/plans/${encodeURIComponent(id)}`;
  field("cancel").hidden = false;
  try {
    await follow(
      `${base}/events`,
      (name, data) => {
        if (name === "progress") search.take(data);
        else if (name === "log" && !search.history.length) search.say(data);
        else if (name === "status" && data.status === "queued") search.say("Waiting for its turn…");
        else if (name === "status" && data.status === "running") search.say("Reading the model…");
        else if (name === "lost") search.say("The connection broke; trying again.");
        else if (name === "again") search.begin("Reading…");
      },
      stop.signal,
    );
    if (stop.signal.aborted) return;
    followed.isSearched = false;
    const job = await ask("GET", base, undefined, { signal: stop.signal });
    if (stop.signal.aborted) return;
    search.end();
    if (job.plan) {
      job.reason = job.plan.reason;
      showResult(job, base, planFor);
      if (job.peak_bytes && job.plan.budget.ram_bytes) curve.put(job.plan.budget.ram_bytes);
    } else refuse(new Error(job.error || (job.status === "cancelled" ? "Stopped before there was a plan." : `The job ${job.status}.`)));
  } catch (error) {
    if (!stop.signal.aborted) {
      search.end();
      refuse(error);
    }
  } finally {
    if (showing?.id === id) field("cancel").hidden = true;
  }
}

async function cancel() {
  if (!showing) return;
  field("cancel").disabled = true;
  try {
    await ask("DELETE", `/api/plans/${encodeURIComponent(showing.id)}`);
  } catch (error) {
    refuse(error);
  } finally {
    field("cancel").disabled = false;
  }
}

// Jobs that count what they have done: curves and comparisons.
async function counted(kind, body, where, signal) {
  const say = (text) => (field(where).textContent = text);
  say("Asking…");
  const { id } = await ask("POST", `/api/${kind}`, body, { onWait: waiting(where), signal });
  const base = `/api/${kind}/${encodeURIComponent(id)}`;
  await follow(
    `${base}/events`,
    (name, data) => {
      if (name === "progress" && data.count) say(`${data.done} of ${data.count} plans: ${data.what}`);
      else if (name === "status" && data.status === "queued") say("Waiting for its turn…");
    },
    signal,
  );
  const job = await ask("GET", base, undefined, { signal });
  say("");
  if (job.status === "failed") throw new Error(job.error);
  return job;
}

function curveQuestion() {
  return JSON.stringify({ ...asked(["ram", "minimize"]), time_limit: 0 });
}

async function drawCurve() {
  refuse(null);
  drawing?.abort();
  const stop = (drawing = new AbortController());
  try {
    const body = { ...asked(["ram", "minimize"]), methods: ["poet"] };
    body.time_limit = Math.min(body.time_limit, 10);
    drawnFor = curveQuestion();
    field("draw-curve").disabled = true;
    const job = await counted("frontiers", body, "curve-progress", stop.signal);
    if (stop.signal.aborted) return;
    const points = job.frontier.points
      .map((point) => ({ ram_bytes: point.ram_bytes, joules: point.rows[0].joules }))
      .filter((point) => point.joules !== null);
    if (points.length < 2) {
      const [one] = points;
      throw new Error(`There is no curve: ${one ? `only for ${bytesText(one.ram_bytes)} was a plan found` : "no plan was found"} in the time given. More seconds to search may help.`);
    }
    curve.show(points, job.frontier.keep_all_joules, Number(field("ram").value) || null);
    field("curve-table-box").hidden = false;
    field("curve-table").replaceChildren(curveTable(points, job.frontier.keep_all_joules));
  } catch (error) {
    if (!stop.signal.aborted) {
      field("curve-progress").textContent = "";
      refuse(error);
    }
  } finally {
    if (drawing === stop) field("draw-curve").disabled = false;
  }
}

async function compare() {
  refuse(null);
  field("compare").disabled = true;
  try {
    const body = asked(["minimize"]);
    body.time_limit = Math.min(body.time_limit, 5);
    const job = await counted("comparisons", body, "compare-progress");
    field("compare-table").replaceChildren(comparisonTable(job.comparison.rows));
  } catch (error) {
    field("compare-progress").textContent = "";
    refuse(error);
  } finally {
    field("compare").disabled = false;
  }
}

// Another model, board or limit: the curve that is drawn is not of this question any more.
function forgetCurve() {
  drawing?.abort();
  drawing = null;
  curve.clear();
  field("draw-curve").disabled = false;
  field("curve-progress").textContent = "";
  field("curve-table-box").hidden = true;
}

function showTheme() {
  document.documentElement.style.colorScheme = isDark() ? "dark" : "light";
  field("theme").textContent = isDark() ? "Light" : "Dark";
  paintReport();
}

function listen() {
  field("question").addEventListener("submit", (event) => {
    event.preventDefault();
    plan();
  });
  field("cancel").addEventListener("click", cancel);
  field("draw-curve").addEventListener("click", drawCurve);
  field("compare").addEventListener("click", compare);
  for (const id of ["model", "model-options"]) field(id).addEventListener("change", chooseModel);
  field("device").addEventListener("change", showNotes);
  const others = ["model", "model-options", "model-file", "device", "device-text", "device-own", "deadline", "transfers", "params"];
  for (const id of others) field(id).addEventListener("change", forgetCurve);
  field("model-file").addEventListener("change", async () => {
    const [file] = field("model-file").files;
    refuse(null);
    if (!file) return dropFile();
    try {
      await takeFile(file);
    } catch (error) {
      dropFile();
      refuse(error);
    }
  });
  field("model-file-off").addEventListener("click", () => {
    dropFile();
    forgetCurve();
  });
  field("own-board").addEventListener("toggle", () => {
    if (field("own-board").open && !field("device-text").value) field("device-text").value = JSON.stringify(chosenDevice() || known.devices[0], null, 1);
  });
  field("theme").hidden = false;
  field("theme").addEventListener("click", () => {
    chosenTheme = isDark() ? "light" : "dark";
    showTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
  addEventListener("popstate", open);
}

// What the address names: a plan, its question in the form; or an empty page.
async function open() {
  const id = new URLSearchParams(location.search).get("plan");
  showing?.stop.abort();
  showing = null;
  refuse(null);
  hideResult();
  search.end();
  if (!id) return;
  try {
    showAsked(await ask("GET", `/api/plans/${encodeURIComponent(id)}/question.json`));
    if (curveQuestion() !== drawnFor) forgetCurve();
    search.begin("Reading…");
    await watch(id);
  } catch (error) {
    search.end();
    refuse(error.status === 404 ? new Error("There is no such plan here; it may have been forgotten.") : error);
  }
}

async function start() {
  showTheme();
  listen();
  try {
    const [models, devices] = await Promise.all([ask("GET", "/api/models"), ask("GET", "/api/devices")]);
    fillChoices(models.models, devices.devices, devices.targets);
    field("plan").disabled = false;
  } catch (error) {
    refuse(error);
    return;
  }
  await open();
}

start();
