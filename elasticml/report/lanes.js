"use strict";
// Zoom of the swim-lanes. Without JavaScript the page has the plot of the same lanes instead.
(() => {
  const box = document.getElementById("lanes-zoom");
  const data = JSON.parse(document.getElementById("lanes-data").textContent);
  const canvas = box.querySelector("canvas"), out = box.querySelector("output");
  const pen = canvas.getContext("2d");
  const LEFT = 34, TOP = 20, BOTTOM = 34, WIDEST = data.end;
  const height = Math.max(6, Math.min(24, 420 / data.slots.length));
  let from = 0, to = WIDEST, width = 0;

  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);
  const x = t => LEFT + (t - from) / (to - from) * (width - LEFT);
  const time = px => from + (px - LEFT) / (width - LEFT) * (to - from);
  const top = lane => TOP + lane * height;

  // Index of the first of sorted values that is greater than a limit.
  function after(values, limit, stride = 1, at = 0) {
    let low = 0, high = values.length / stride;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle * stride + at] > limit) high = middle; else low = middle + 1;
    }
    return low;
  }

  function steps(low, high, n) {
    const rough = (high - low) / n, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough);
    const list = [];
    for (let k = Math.ceil(low / step); k * step <= high; k++) list.push(+(k * step).toPrecision(9));
    return list;
  }

  function roundAt(t) {
    const i = after(data.seconds, t) - 1;
    return i < 0 ? null : data.rounds[i];
  }

  function draw() {
    const scale = window.devicePixelRatio || 1, tall = top(data.slots.length) + BOTTOM;
    width = canvas.clientWidth;
    canvas.width = width * scale; canvas.height = tall * scale; canvas.style.height = `${tall}px`;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.font = "12px sans-serif";
    pen.textBaseline = "middle";
    data.lanes.forEach((lane, row) => {
      for (let i = after(lane, from, 3, 1); 3 * i < lane.length && lane[3 * i] < to; i++) {
        const a = Math.max(x(lane[3 * i]), LEFT), b = Math.min(x(lane[3 * i + 1]), width);
        const kind = data.kinds[lane[3 * i + 2]];
        pen.fillStyle = colour(kind.colour);
        if (kind.name === "gone") pen.fillRect(a, top(row) + height / 2 - 0.5, b - a, 1);
        else pen.fillRect(a, top(row) + height * 0.08, b - a, height * 0.84);
      }
    });
    pen.fillStyle = colour("muted");
    pen.textAlign = "right";
    const every = Math.ceil(14 / height);
    data.slots.forEach((slot, row) => {
      if (row % every === 0) pen.fillText(slot, LEFT - 6, top(row) + height / 2);
    });
    pen.textAlign = "center";
    const floor = top(data.slots.length);
    for (const t of steps(from, to, width / 90)) {
      pen.fillRect(x(t), floor, 1, 4);
      if (x(t) < width - 20) pen.fillText(`${t} s`, x(t), floor + 13);
    }
    const first = after(data.seconds, from), last = after(data.seconds, to) - 1;
    pen.fillText("round", LEFT - 16, 8);
    if (last > first) {
      let taken = LEFT + 10;
      const [one, two] = steps(data.rounds[first], data.rounds[last], width / 60);
      const wide = Math.max(1, Math.round(two - one) || 1);
      for (let i = first; i <= last; i++) {
        const at = x(data.seconds[i]);
        if (data.rounds[i] % wide || at < taken || at > width - 14) continue;
        pen.fillText(data.rounds[i], at, 8);
        pen.fillRect(at, TOP - 4, 1, 4);
        taken = at + 28;
      }
    }
    pen.font = "bold 13px sans-serif";
    for (const [row, t, sign, name] of data.marks) {
      if (t < from || t > to) continue;
      pen.fillStyle = colour(name);
      pen.fillText(sign, x(t), top(row) + height / 2);
    }
  }

  function show(low, high) {
    const least = Math.max(WIDEST * 1e-5, 1e-3);
    const wide = Math.min(WIDEST, Math.max(least, high - low));
    from = Math.max(0, Math.min(low, WIDEST - wide));
    to = from + wide;
    requestAnimationFrame(draw);
  }
  // Keeps the time at a pixel where it is.
  function zoom(factor, px = LEFT + (width - LEFT) / 2) {
    const at = time(px);
    show(at - (at - from) * factor, at + (to - at) * factor);
  }
  function pan(share) {
    show(from + share * (to - from), to + share * (to - from));
  }

  function tell(px, py) {
    const row = Math.floor((py - TOP) / height), t = time(px), lane = data.lanes[row];
    if (!lane || px < LEFT) return;
    const i = after(lane, t, 3, 1), number = roundAt(t);
    const inside = 3 * i < lane.length && lane[3 * i] <= t;
    const what = inside ? `${data.kinds[lane[3 * i + 2]].words}, from ${lane[3 * i]} to `
      + `${lane[3 * i + 1]} s` : "not there";
    out.textContent = `slot ${data.slots[row]}: ${what}${number === null ? "" : `, round ${number}`}`;
  }

  const fingers = new Map();
  canvas.addEventListener("pointerdown", e => {
    canvas.setPointerCapture(e.pointerId);
    fingers.set(e.pointerId, e.offsetX);
    tell(e.offsetX, e.offsetY);
  });
  canvas.addEventListener("pointermove", e => {
    const before = fingers.get(e.pointerId);
    if (before === undefined) { tell(e.offsetX, e.offsetY); return; }
    const other = [...fingers].find(([id]) => id !== e.pointerId)?.[1];
    fingers.set(e.pointerId, e.offsetX);
    if (other === undefined) pan((before - e.offsetX) / (width - LEFT));
    else zoom(Math.abs(before - other) / Math.max(8, Math.abs(e.offsetX - other)),
      (other + e.offsetX) / 2);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(name, e => fingers.delete(e.pointerId));
  }
  // The wheel scrolls the page, unless Ctrl is pressed or the lanes have been clicked.
  canvas.addEventListener("wheel", e => {
    if (!e.ctrlKey && document.activeElement !== canvas) return;
    e.preventDefault();
    zoom(e.deltaY > 0 ? 1.3 : 1 / 1.3, e.offsetX);
  }, { passive: false });
  const actions = {
    "+": () => zoom(0.5), "-": () => zoom(2), "0": () => show(0, WIDEST),
    ArrowLeft: () => pan(-0.25), ArrowRight: () => pan(0.25),
  };
  canvas.addEventListener("keydown", e => {
    if (!actions[e.key]) return;
    e.preventDefault();
    actions[e.key]();
  });
  for (const button of box.querySelectorAll("button")) {
    button.addEventListener("click", () => {
      if (button.dataset.key) actions[button.dataset.key]();
      else show(+button.dataset.from, +button.dataset.to);
    });
  }
  box.hidden = false;
  document.getElementById("lanes-plot").open = false;
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
