// Two charts of lines: energy against memory, with a handle to drag, and a search as it goes.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const CURVE = { height: 260, left: 64, right: 18, top: 16, bottom: 42 };
const KEY_STEPS = 60;
const MANY = 20; // so many times the smallest budget, and the ruler of memory is logarithmic

function svg(name, attributes = {}, ...inner) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.append(...inner);
  return made;
}

function ruler(from, to, start, end, isLog = false) {
  const warp = isLog ? Math.log : (value) => value;
  const back = isLog ? Math.exp : (value) => value;
  const [low, high] = [warp(from), warp(to)];
  const wide = high - low || 1;
  return {
    at: (value) => start + ((warp(value) - low) / wide) * (end - start),
    value: (pixel) => back(low + ((pixel - start) / (end - start || 1)) * wide),
    from,
    to,
  };
}

// Round numbers along a ruler, so many at most.
function ticks(from, to, most) {
  const raw = (to - from) / most || Math.abs(to) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power;
  const found = [];
  for (let n = Math.ceil(from / step); n * step <= to + 1e-12 * Math.abs(to); n += 1) found.push(n * step);
  return found;
}

function byteTicks(scale, isLog, most) {
  if (!isLog) {
    const [size] = scaleOf(scale.to, BYTE_UNITS);
    return ticks(scale.from / size, scale.to / size, most).map((each) => each * size);
  }
  const found = [];
  for (let size = 1; size <= scale.to; size *= 2) if (size >= scale.from) found.push(size);
  const every = Math.ceil(found.length / most);
  return found.filter((_, n) => n % every === 0);
}

function frame(width, x, y, xTicks, yTicks, xText, yText, xTitle, yTitle) {
  const { height, left, right, top, bottom } = CURVE;
  const parts = [];
  for (const each of yTicks) {
    parts.push(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y.at(each), y2: y.at(each) }),
      svg("text", { class: "tick", x: left - 8, y: y.at(each) + 4, "text-anchor": "end" }, yText(each)),
    );
  }
  for (const each of xTicks) {
    parts.push(
      svg("line", { class: "grid", x1: x.at(each), x2: x.at(each), y1: top, y2: height - bottom }),
      svg("text", { class: "tick", x: x.at(each), y: height - bottom + 18, "text-anchor": "middle" }, xText(each)),
    );
  }
  parts.push(
    svg("text", { class: "tick", x: width - right, y: height - 6, "text-anchor": "end" }, xTitle),
    svg("text", { class: "tick", x: 4, y: 10 }, yTitle),
  );
  return parts;
}

function percentText(share, digits = 1) {
  return `${(100 * share).toFixed(digits)} %`;
}

// Energy of POET's plans, from the smallest budget to keep-all: what one budget costs, all larger
// ones cost at most.
class EnergyCurve {
  constructor(box, onPick) {
    this.box = box;
    this.onPick = onPick;
    this.points = [];
    this.ram = null;
    new ResizeObserver(() => this.points.length && !this.dragging && this.draw()).observe(box);
  }

  show(points, keepAllJoules, ram) {
    this.points = points;
    this.keepAllJoules = keepAllJoules;
    this.ram = Math.min(Math.max(ram ?? points[0].ram_bytes, points[0].ram_bytes), points.at(-1).ram_bytes);
    this.draw();
  }

  clear() {
    this.points = [];
    this.box.replaceChildren();
  }

  // Puts the handle there without asking for a plan.
  put(ram) {
    if (!this.points.length || ram === null) return;
    this.ram = Math.min(Math.max(ram, this.points[0].ram_bytes), this.points.at(-1).ram_bytes);
    if (this.x) this.placeHandle();
  }

  at(ram) {
    return this.points.findLast((point) => point.ram_bytes <= ram) || this.points[0];
  }

  draw() {
    const width = Math.max(280, this.box.clientWidth);
    if (width === this.width && this.drawn === this.points) return;
    const hadFocus = this.handle && document.activeElement === this.handle;
    Object.assign(this, { width, drawn: this.points });
    const { height, left, right, top, bottom } = CURVE;
    const shares = this.points.map((point) => point.joules / this.keepAllJoules);
    const [low, high] = [Math.min(...shares, 1), Math.max(...shares)];
    const pad = 0.08 * (high - low || 0.01);
    const [least, most] = [this.points[0].ram_bytes, this.points.at(-1).ram_bytes];
    const isLog = most > MANY * least;
    this.x = ruler(least, most, left, width - right, isLog);
    this.y = ruler(low - pad, high + pad, height - bottom, top);
    const path = this.points.map((point, n) => {
      const [px, py] = [this.x.at(point.ram_bytes), this.y.at(shares[n])];
      return n ? `H${px}V${py}` : `M${px},${py}`;
    });
    const digits = high - low < 0.02 ? 2 : high - low < 0.2 ? 1 : 0;
    this.line = svg("line", { class: "budget", y1: top, y2: height - bottom });
    this.knob = svg("circle", { r: 10 });
    this.handle = svg(
      "g",
      {
        class: "handle", role: "slider", tabindex: 0, "aria-label": "RAM budget", "aria-orientation": "horizontal",
        "aria-valuemin": Math.round(least), "aria-valuemax": Math.round(most),
      },
      this.line,
      this.knob,
    );
    this.label = svg("text", { class: "label" });
    const picture = svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "Energy of a step against its RAM budget" },
      ...frame(
        width, this.x, this.y, byteTicks(this.x, isLog, isNarrow() ? 4 : 7), ticks(this.y.from, this.y.to, 5),
        bytesText, (share) => percentText(share, digits), "RAM budget", "energy, of keep-all's",
      ),
      svg("path", { class: "curve-line", d: path.join("") }),
      ...this.points.map((point, n) =>
        svg("circle", { class: "curve-point", r: 3.5, cx: this.x.at(point.ram_bytes), cy: this.y.at(shares[n]) })),
      this.handle,
      this.label,
    );
    this.listen(picture);
    this.box.replaceChildren(picture);
    this.placeHandle();
    if (hadFocus) this.handle.focus();
  }

  placeHandle() {
    const point = this.at(this.ram);
    const share = point.joules / this.keepAllJoules;
    const [px, py] = [this.x.at(this.ram), this.y.at(share)];
    for (const key of ["x1", "x2"]) this.line.setAttribute(key, px);
    this.knob.setAttribute("cx", px);
    this.knob.setAttribute("cy", py);
    const text = `${bytesText(Math.round(this.ram))}: ${percentText(share, 2)}`;
    const isRight = px > this.width / 2;
    this.label.textContent = text;
    this.label.setAttribute("x", px + (isRight ? -14 : 14));
    this.label.setAttribute("y", Math.max(CURVE.top + 12, py - 12));
    this.label.setAttribute("text-anchor", isRight ? "end" : "start");
    this.handle.setAttribute("aria-valuenow", Math.round(this.ram));
    this.handle.setAttribute("aria-valuetext", `${text} of keep-all's energy, or less`);
  }

  listen(picture) {
    const move = (event) => {
      const box = picture.getBoundingClientRect();
      this.put(Math.round(this.x.value(((event.clientX - box.left) / box.width) * this.width)));
    };
    picture.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      picture.setPointerCapture(event.pointerId);
      this.dragging = true;
      move(event);
      this.handle.focus();
      event.preventDefault();
    });
    picture.addEventListener("pointermove", (event) => this.dragging && move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      picture.addEventListener(name, () => {
        const isPicked = this.dragging && name === "pointerup";
        this.dragging = false;
        if (isPicked) this.onPick(Math.round(this.ram));
        if (this.points.length) this.draw(); // it may have another width by now
      });
    }
    this.handle.addEventListener("keydown", (event) => {
      const wide = CURVE.right + CURVE.left;
      const step = (this.width - wide) / KEY_STEPS;
      const by = {
        ArrowLeft: -step, ArrowDown: -step, ArrowRight: step, ArrowUp: step, PageDown: -6 * step, PageUp: 6 * step,
        Home: -this.width, End: this.width,
      }[event.key];
      if (event.key === "Enter" || event.key === " ") this.onPick(Math.round(this.ram));
      else if (by !== undefined) {
        this.put(Math.round(this.x.value(this.x.at(this.ram) + by)));
        clearTimeout(this.resting);
        this.resting = setTimeout(() => this.onPick(Math.round(this.ram)), 700);
      } else return;
      event.preventDefault();
    });
  }
}

// What a search has found so far above what is proven so far, by the second.
function searchChart(box, history, unit) {
  const found = history.filter((each) => each.value !== null);
  if (!found.length) return box.replaceChildren();
  const width = Math.max(280, box.clientWidth);
  const { height, left, right, top, bottom } = CURVE;
  const values = history.flatMap((each) => [each.value, each.bound]).filter((each) => each !== null && each > 0);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const pad = 0.08 * (high - low || high || 1);
  const x = ruler(0, Math.max(history.at(-1).seconds, 1), left, width - right);
  const y = ruler(low - pad, high + pad, height - bottom, top);
  const stepped = (pick) =>
    history
      .filter((each) => pick(each) !== null && pick(each) > 0)
      .map((each, n) => `${n ? `H${x.at(each.seconds)}V` : `M${x.at(each.seconds)},`}${y.at(pick(each))}`)
      .join("") + `H${x.at(x.to)}`;
  return box.replaceChildren(
    svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Best schedule and proven bound by the second" },
      ...frame(
        width, x, y, ticks(0, x.to, 6), ticks(y.from, y.to, 4), (each) => `${Number(each.toPrecision(3))} s`,
        (each) => `${Number(each.toPrecision(4))}`, "searched", `${unit}: best so far, and proven bound`,
      ),
      svg("path", { class: "curve-line", d: stepped((each) => each.value) }),
      svg("path", { class: "bound-line", d: stepped((each) => each.bound) }),
    ),
  );
}
