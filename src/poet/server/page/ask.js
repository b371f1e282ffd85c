// Questions to the server: JSON both ways, and what happens to a job while it happens.
"use strict";

const AGAIN_SECONDS = 2;

class Refusal extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function pause(seconds, signal) {
  return new Promise((done) => {
    const timer = setTimeout(done, 1000 * seconds);
    signal?.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });
}

async function send(method, path, body, signal) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, { method, headers, body, signal });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refusal("the server does not answer", 0);
  }
}

// A file, or why there is none.
async function fetched(path) {
  const answer = await send("GET", path);
  if (answer.ok) return answer.blob();
  const said = await answer.json().catch(() => ({}));
  throw new Refusal(said.error || `the server answers ${answer.status}`, answer.status);
}

// A busy server says when to come back; whoever waits is told, and is not asked to do it themselves.
async function ask(method, path, body, { onWait, signal } = {}) {
  const text = body === undefined ? undefined : JSON.stringify(body);
  for (;;) {
    const answer = await send(method, path, text, signal);
    if (answer.status === 401 && (await askForToken())) continue;
    if (answer.status === 429 && onWait) {
      const seconds = Number(answer.headers.get("Retry-After")) || AGAIN_SECONDS;
      onWait(seconds);
      await pause(seconds, signal);
      if (!signal?.aborted) continue;
    }
    const said = await answer.json().catch(() => ({}));
    if (answer.ok) return said;
    throw new Refusal(said.error || `the server answers ${answer.status}`, answer.status);
  }
}

// A token is handed in once; the browser keeps a cookie for it, which scripts cannot read.
async function askForToken() {
  const dialog = document.getElementById("token-dialog");
  const input = document.getElementById("token");
  if (!dialog.open) {
    input.value = "";
    dialog.showModal();
  }
  await new Promise((closed) => dialog.addEventListener("close", closed, { once: true }));
  if (dialog.returnValue !== "go" || !input.value) return false;
  const answer = await send("POST", "/api/session", JSON.stringify({ token: input.value }));
  return answer.ok || askForToken();
}

// What happens to a job, as it happens, until it has ended. The browser takes up a broken line by
// itself; where the server turns it away, everything is told again, after "again".
async function follow(path, onEvent, signal) {
  for (let first = true; !signal?.aborted; first = false) {
    if (!first) {
      await pause(AGAIN_SECONDS, signal);
      if (signal?.aborted) return;
      onEvent("again", {});
    }
    if (await heard(path, onEvent, signal)) return;
    await ask("GET", path.replace(/\/events$/, ""), undefined, { signal, onWait: () => {} }); // is it still there?
  }
}

function heard(path, onEvent, signal) {
  return new Promise((done) => {
    const source = new EventSource(path);
    const end = (whole) => {
      source.close();
      done(whole);
    };
    signal?.addEventListener("abort", () => end(true), { once: true });
    for (const name of ["status", "progress", "log", "end"]) {
      source.addEventListener(name, (event) => {
        if (signal?.aborted) return;
        onEvent(name, JSON.parse(event.data));
        if (name === "end") end(true);
      });
    }
    source.addEventListener("error", () => (source.readyState === EventSource.CLOSED ? end(false) : onEvent("lost", {})));
  });
}
