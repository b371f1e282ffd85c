// The form: what is asked, as the server's API spells it, and back from it.
"use strict";

const field = (id) => document.getElementById(id);
const MOST_FILE_BYTES = 32 * 2 ** 20;
const FILE_KINDS = { "poet-graph/1": "graph", "poet-instance/1": "instance" };

const known = { models: [], devices: [], targets: [] };
const FORM = ["model", "graph", "instance", "device", "ram", "deadline", "transfers", "params", "minimize", "time_limit"];
const OF_THE_STEP = ["optimizer", "granularity", "fuse_updates", "costs", "seed"]; // the rest is of plans alone
const USUAL_SECONDS = 60; // where a question does not say
let uploaded = null; // {key: "graph" | "instance", value, name}
let carried = {}; // what a link asks beyond the form

function fillChoices(models, devices, targets) {
  Object.assign(known, { models, devices, targets });
  field("model").replaceChildren(...models.map((each) => new Option(each.name, each.name)));
  const none = new Option("none: the step brings its costs", "");
  field("device").replaceChildren(...devices.map((each) => new Option(each.name, each.name)), none);
  if (models.some((each) => each.name === "resnet18-cifar")) field("model").value = "resnet18-cifar";
  if (devices.some((each) => each.name === "rpi4")) field("device").value = "rpi4";
  showNotes();
}

function chosenDevice() {
  return known.devices.find((each) => each.name === field("device").value);
}

function showNotes() {
  const model = known.models.find((each) => each.name === field("model").value);
  const options = (model?.options || []).map((each) => `${each.name}=${each.default}`).join(", ");
  field("model-note").textContent = model && !uploaded ? `${model.title}${options ? `. Options: ${options}` : ""}${carriedText()}` : "";
  field("model-options").placeholder = model?.options.length ? `${model.options[0].name}=${model.options[0].default}` : "";
  const device = chosenDevice();
  field("device-note").textContent = device ? `${device.title}; ${bytesText(device.ram_bytes)} of RAM` : "";
  field("model").disabled = field("model-options").disabled = uploaded !== null;
}

function carriedText() {
  const more = Object.keys(carried).map((key) => key.replaceAll("_", " "));
  return more.length ? `; as it was asked, with ${more.join(", ")} of its own` : "";
}

// Another model is chosen: nothing is left of what was asked of the one before.
function chooseModel() {
  carried = {};
  showNotes();
}

// An error of one field: shown at the form's end, and the field marked.
class BadField extends Error {
  constructor(id, message) {
    super(message);
    this.id = id;
  }
}

async function takeFile(file) {
  if (file.size > MOST_FILE_BYTES) {
    throw new BadField("model-file", `${file.name} has ${bytesText(file.size)}; a model may have ${bytesText(MOST_FILE_BYTES)}`);
  }
  let value;
  try {
    value = JSON.parse(await file.text());
  } catch {
    throw new BadField("model-file", `${file.name} is not JSON`);
  }
  const key = FILE_KINDS[value?.format] || (Array.isArray(value?.nodes) ? "instance" : "graph");
  if (key === "instance") field("device").value = "";
  carried = {};
  showUploaded({ key, value, name: file.name });
}

function showUploaded(upload) {
  uploaded = upload;
  field("model-file-note").textContent = `Planning ${upload.name}${carriedText()}.`;
  field("model-file-off").hidden = false;
  showNotes();
}

function dropFile() {
  uploaded = null;
  carried = {};
  if (!field("device").value) field("device").value = "rpi4";
  field("model-file").value = "";
  field("model-file-note").textContent = "";
  field("model-file-off").hidden = true;
  showNotes();
}

// What the form asks, as the body of a request; `without` leaves out what another question varies.
function asked(without = []) {
  const body = {};
  if (uploaded) body[uploaded.key] = uploaded.value;
  else {
    const options = field("model-options").value.trim().replace(/^\?/, "");
    body.model = field("model").value + (options ? `?${options}` : "");
  }
  if (field("device-own").checked) {
    try {
      body.device = JSON.parse(field("device-text").value);
    } catch (error) {
      throw new BadField("device-text", `the board's figures are not JSON: ${error.message}`);
    }
  } else if (field("device").value) body.device = field("device").value;
  for (const [key, value] of Object.entries(carried)) if (!without.length || OF_THE_STEP.includes(key)) body[key] = value;
  for (const key of ["ram", "deadline", "transfers", "params", "minimize"]) {
    const value = field(key).value.trim();
    if (value && !without.includes(key)) body[key] = /^\d+$/.test(value) ? Number(value) : value;
  }
  const seconds = Number(field("time-limit").value);
  if (!(seconds >= 1)) throw new BadField("time-limit", "seconds to search must be 1 or more");
  body.time_limit = seconds;
  return body;
}

// The form as it was when this was asked, for a link that somebody else opens.
function showAsked(body) {
  if (!body) return;
  const [name, options] = String(body.model || "").split(/\?(.*)/s);
  if (body.model && known.models.some((each) => each.name === name)) {
    field("model").value = name;
    field("model-options").value = options || "";
  }
  dropFile();
  carried = Object.fromEntries(Object.entries(body).filter(([key]) => !FORM.includes(key)));
  const key = ["graph", "instance"].find((each) => body[each]);
  if (key) showUploaded({ key, value: body[key], name: body[key].name || body[key].graph?.name || "what was uploaded" });
  field("device-own").checked = typeof body.device === "object" && body.device !== null;
  if (field("device-own").checked) field("device-text").value = JSON.stringify(body.device, null, 1);
  else field("device").value = body.device ?? "";
  for (const key of ["ram", "deadline"]) field(key).value = body[key] ?? "";
  const usual = { transfers: "", params: "auto", minimize: "joules" };
  for (const [key, value] of Object.entries(usual)) field(key).value = body[key] ?? value;
  field("more-limits").open = Object.keys(usual).some((key) => body[key] && body[key] !== usual[key]);
  field("time-limit").value = body.time_limit ?? USUAL_SECONDS;
  showNotes();
}
