// The page of running jobs. Names come from users: they enter the page as text nodes only.
"use strict";

const POLL_MS = 1000;
const EVENTS_MAX = 200;
const ROWS_MAX = 40;
const STATES = ["active", "loading", "leaving", "lost", "retired"];
const WORDS = { active: "taking part", loading: "loading", leaving: "leaving", lost: "lost", retired: "given back" };
const POINT = ["seconds", "round", "objective", "is_exact", "gap", "gap_is_bound", "members", "absent",
  "metric", "computing", "waiting", "links", "driver"];
const AT = Object.fromEntries(POINT.map((name, i) => [name, i]));
const PARTS = [["computing", "blue", "computing"], ["waiting", "wait", "waiting for the slowest"],
  ["links", "orange", "sending and summing"], ["driver", "purple", "driver"]];
const SVG = "http://www.w3.org/2000/svg";

const byId = (id) => document.getElementById(id);
let shown = null; // figures of the job on the page
let tag = "";
let heard = 0; // when they arrived, on this machine's clock
let quiet = false;

function element(name, classes, text) {
  const made = document.createElement(name);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// --- numbers as the report has them

function digits(value, n = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const text = Number(value.toPrecision(n));
  return Math.abs(text) >= 1e-4 && Math.abs(text) < 1e6 ? String(text) : value.toExponential(Math.max(0, n - 2)).replace("e+", "e");
}

// As few digits as tell the values apart.
function distinct(values, n = 3) {
  const texts = values.map((v) => digits(v, n));
  return n < 15 && new Set(texts).size < new Set(values).size ? distinct(values, n + 1) : texts;
}

function duration(s) {
  if (s < 60) return `${s < 10 ? s.toFixed(1) : s.toFixed(0)} s`;
  const minutes = Math.floor(s / 60);
  return minutes < 60 ? `${minutes} min ${Math.floor(s % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const isOver = () => !["loading", "running"].includes(shown.state);
const now = () => shown.now + (isOver() ? 0 : (performance.now() - heard) / 1000);

// --- figures from the scheduler

async function poll() {
  const wanted = decodeURIComponent(location.hash.slice(1));
  const same = shown && (!wanted || wanted === shown.job);
  const asked = shown && shown.token;
  const query = new URLSearchParams({ job: same ? shown.job : wanted, since: same ? shown.token : "" });
  const headers = same && tag ? { "If-None-Match": tag } : {};
  try {
    const reply = await fetch(`elasticml/jobs.json?${query}`, { headers, cache: "no-store", signal: AbortSignal.timeout(10000) });
    if (reply.status === 200) {
      tag = reply.headers.get("ETag") || "";
      const news = await reply.json();
      // Another reply may have come first: then the news continue from figures that are gone.
      if (news.is_whole !== false || (shown && shown.token === asked)) take(news);
    } else if (reply.status !== 304) {
      throw new Error(`the scheduler answers ${reply.status}`);
    }
    quiet = false;
    byId("offline").hidden = true;
  } catch (error) {
    if (!quiet) {
      quiet = true;
      const time = new Date().toLocaleTimeString();
      setText(byId("offline"), `No answer from the scheduler since ${time}. The page shows its last figures, and goes on when it answers.`);
      byId("offline").hidden = false;
    }
  }
}

function take(news) {
  drawJobs(news.jobs, news.shown);
  if (!news.shown) {
    shown = null;
    byId("job").hidden = true;
    byId("none").hidden = false;
    setText(byId("nothing"), "No job runs on this scheduler, and none has run in the last 24 hours.");
    document.title = "elasticml";
    return;
  }
  if (news.is_whole || !shown || shown.job !== news.job) {
    if (shown && shown.job !== news.job) byId("members").replaceChildren();
    shown = { ...news, slots: new Map(), events: [] };
    byId("events").replaceChildren();
    byId("members").replaceChildren();
  }
  const points = shown.points.slice(0, news.first).concat(news.points);
  const slots = shown.slots;
  for (const slot of news.slots) slots.set(slot[0], slot);
  const events = shown.events.concat(news.events).slice(-EVENTS_MAX);
  shown = { ...news, points, slots, events };
  heard = performance.now();
  drawAll(news);
}

// --- drawing

function drawJobs(jobs, current) {
  const nav = byId("jobs");
  nav.hidden = jobs.length < 2;
  const links = jobs.map(([job, name, state]) => {
    const link = element("a");
    link.append(element("span", `dot ${state}`), name);
    link.href = `#${encodeURIComponent(job)}`;
    link.title = `${job}: ${state}`;
    if (job === current) link.setAttribute("aria-current", "page");
    return link;
  });
  const key = JSON.stringify([jobs, current]);
  if (nav.dataset.key !== key) {
    nav.dataset.key = key;
    nav.replaceChildren(...links.reverse());
  }
}

function drawAll(news) {
  byId("none").hidden = true;
  byId("job").hidden = false;
  document.title = `${shown.name || shown.job}: ${shown.badge} – elasticml`;
  setText(byId("name"), shown.name || shown.job);
  const missed = shown.badge !== shown.state;
  setText(byId("state"), shown.badge);
  byId("state").className = `badge ${missed ? "unconverged" : shown.state}`;
  setText(byId("lead"), shown.lead);
  const trouble = missed || shown.state === "failed";
  byId("note").hidden = !shown.note;
  byId("note").className = trouble ? "warn" : "note";
  setText(byId("note"), isOver() && !trouble ? `Ended: ${shown.note}.` : shown.note);
  byId("behind").hidden = !shown.behind;
  setText(byId("behind"), `Reading the story: ${digits(shown.behind)} records to go.`);
  drawCards();
  drawCharts();
  drawMembers();
  drawMoves();
  drawEvents(news.events);
  tick();
}

function drawCards() {
  const list = byId("cards");
  const key = JSON.stringify(shown.cards.map((card) => card[0]));
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...shown.cards.map(([label]) => {
      const card = element("div", label === "examples absent" ? "absent" : "");
      const value = element("dd");
      value.append(element("span"), element("small"));
      card.append(element("dt", "", label), value);
      return card;
    }));
  }
  shown.cards.forEach(([, value, small, since], i) => {
    const [text, below] = list.children[i].lastChild.children;
    if (since === null) setText(text, value);
    setText(below, small);
  });
}

function column(name) {
  return shown.points.map((point) => point[AT[name]]);
}

function drawCharts() {
  const share = column("absent").map((n) => (shown.examples ? 100 * n / shown.examples : 0));
  const estimated = column("is_exact").map((exact) => !exact);
  const isValidation = shown.metric.startsWith("validation");
  setText(byId("metric").firstChild, isValidation ? shown.metric : `Test ${shown.metric}`);
  const curves = [
    ["gap", column("gap"), { colour: "purple", dashed: column("gap_is_bound"), target: shown.gap_target, log: true }],
    ["objective", column("objective"), { colour: "blue", dashed: estimated }],
    ["metric", column("metric"), { colour: "green" }],
    ["present", column("members"), { colour: "blue", steps: true }],
    ["absent", share.some((s) => s > 0) ? share : [], { colour: "orange", steps: true }],
  ];
  // First what is shown, because the width of each depends on the others.
  for (const [id, values, { log }] of curves) {
    byId(id).hidden = !values.some((v) => v !== null && v !== undefined && (!log || v > 0));
  }
  byId("times").hidden = shown.points.filter((p) => p[AT.computing] !== null).length < 2;
  for (const [id, values, options] of curves) if (!byId(id).hidden) curve(id, values, options);
  if (!byId("times").hidden) drawTimes();
}

function svgElement(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// A frame with axes: seconds to the right, values up. Returns scales, or null without room.
function frame(section, low, high, log, label) {
  const figure = section.querySelector("figure");
  const width = figure.clientWidth, height = figure.clientHeight;
  if (width < 60) return null;
  const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const marks = log ? decades(low, high) : ticks(low, high, 5);
  const names = log ? marks.map((v) => v.toExponential(0).replace("e+0", "e0")) : distinct(marks);
  const letters = Math.max(...names.map((text) => text.length));
  const box = { left: Math.max(46, 7 * letters + 8), right: width - 62, top: 14, bottom: height - 20 };
  const times = column("seconds");
  const start = Math.min(0, times[0]), end = Math.max(times[times.length - 1], start + 1e-3);
  const x = (s) => box.left + (box.right - box.left) * (s - start) / (end - start);
  const scale = log ? Math.log10 : (v) => v;
  const span = scale(high) - scale(low) || 1;
  const y = (v) => box.bottom - (box.bottom - box.top) * Math.min(1.02, Math.max(-0.02, (scale(v) - scale(low)) / span));
  absenceBands(svg, x, box, times);
  marks.forEach((v, i) => {
    svg.append(svgElement("line", { class: "grid", x1: box.left, x2: box.right, y1: y(v), y2: y(v) }));
    svg.append(svgElement("text", { x: box.left - 6, y: y(v) + 4, "text-anchor": "end" }, names[i]));
  });
  const moments = ticks(start, end, Math.max(2, Math.floor(width / 110)));
  distinct(moments, 4).forEach((text, i) => {
    svg.append(svgElement("text", { x: x(moments[i]), y: height - 4, "text-anchor": "middle" }, `${text} s`));
  });
  figure.replaceChildren(svg);
  return { svg, x, y, box, times };
}

function absenceBands(svg, x, box, times) {
  const absent = column("absent");
  for (let i = 0; i < times.length; i++) {
    if (!absent[i]) continue;
    const from = i ? times[i - 1] : 0;
    let k = i;
    while (k + 1 < times.length && absent[k + 1]) k++;
    svg.append(svgElement("rect", { class: "absence", x: x(from), y: box.top, width: Math.max(1, x(times[k]) - x(from)), height: box.bottom - box.top }));
    i = k;
  }
}

// About n round numbers. A step is at most 2.5 times the wanted one: with n >= 5 there are at least two.
function ticks(low, high, n) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / n, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
  const made = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + 1e-9 * span; v += step) made.push(Number(v.toPrecision(10)));
  return made;
}

function decades(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const step = Math.max(1, Math.ceil((last - first + 1) / 5));
  const made = [];
  for (let e = first; e <= last; e += step) made.push(10 ** e);
  return made;
}

// The range of the late values: the first ones are often far away.
function range(values, times, log, steps, target) {
  const after = times[0] + 0.1 * (times[times.length - 1] - times[0]);
  const some = values.filter((v) => v !== null && (!log || v > 0));
  const late = values.filter((v, i) => v !== null && (!log || v > 0) && times[i] >= after);
  const used = log || steps || late.length < 4 ? some : late;
  let low = Math.min(...used), high = Math.max(...used);
  if (steps) return [0, Math.max(high, 1) * 1.12];
  if (log) {
    if (target) low = Math.min(low, target);
    return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high) + 1e-9)];
  }
  // Values that differ by rounding alone are a flat line: ticks have ten digits.
  const size = Math.max(Math.abs(low), Math.abs(high));
  const margin = high - low > 1e-7 * size ? 0.12 * (high - low) : 0.05 * size || 1;
  return [low - margin, high + margin];
}

function curve(id, values, { colour, dashed = [], target = null, log = false, steps = false }) {
  const section = byId(id);
  const last = values.findLastIndex((v) => v !== null && v !== undefined && (!log || v > 0));
  const title = section.querySelector("h2").textContent;
  const [low, high] = range(values, column("seconds"), log, steps, target);
  const sign = dashed[last] ? (id === "gap" ? "≤" : "~") : "";
  const latest = sign + digits(values[last], id === "objective" ? 4 : 3);
  const made = frame(section, low, high, log, `${title}: ${latest}`);
  if (!made) return;
  const { svg, x, y, box, times } = made;
  if (target && log) {
    svg.append(svgElement("line", { class: "target", x1: box.left, x2: box.right, y1: y(target), y2: y(target) }));
    svg.append(svgElement("text", { x: box.left + 4, y: y(target) - 4 }, `stops at ${target.toExponential(0)}`));
  }
  const paths = ["", ""];
  let before = null, outline = "";
  values.forEach((v, i) => {
    if (v === null || v === undefined || (log && !(v > 0))) return;
    const px = x(times[i]).toFixed(1), py = y(v).toFixed(1);
    if (before) {
      const kind = dashed[before[2]] ? 1 : 0;
      const join = paths[kind].endsWith(`${before[0]} ${before[1]}`) ? "" : `M${before[0]} ${before[1]}`;
      paths[kind] += steps ? `${join}V${py}H${px}L${px} ${py}` : `${join}L${px} ${py}`;
      outline += steps ? `V${py}H${px}` : `L${px} ${py}`;
    } else if (steps) {
      outline = `M${x(0).toFixed(1)} ${py}H${px}`;
      paths[0] = `${outline}L${px} ${py}`;
    }
    before = [px, py, i];
  });
  if (steps) {
    svg.append(svgElement("path", { class: `area fill-${colour}`, d: `${outline}V${box.bottom}H${x(0)}Z` }));
    if (id === "present") changes(svg, values, times, x, box);
  }
  paths.forEach((d, kind) => {
    if (d) svg.append(svgElement("path", { class: `curve stroke-${colour}${kind ? " dashed" : ""}`, d }));
  });
  svg.append(svgElement("circle", { class: `fill-${colour}`, cx: before[0], cy: before[1], r: 3 }));
  svg.append(svgElement("text", { class: `now fill-${colour}`, x: Number(before[0]) + 6, y: Number(before[1]) + 4 }, latest));
}

function changes(svg, values, times, x, box) {
  for (let i = 1; i < values.length; i++) {
    if (values[i] === values[i - 1]) continue;
    const at = x(times[i - 1]);
    svg.append(svgElement("line", { class: values[i] < values[i - 1] ? "gone" : "back", x1: at, x2: at, y1: box.top, y2: box.bottom }));
  }
}

function drawTimes() {
  const section = byId("times");
  const points = shown.points.filter((p) => p[AT.computing] !== null);
  const totals = points.map((p) => PARTS.reduce((sum, [name]) => sum + p[AT[name]], 0));
  const usual = [...totals].sort((a, b) => a - b)[Math.floor(0.98 * (totals.length - 1))];
  const unit = usual < 1 ? [1000, "ms"] : [1, "s"];
  const made = frame(section, 0, usual * 1.1 * unit[0], false, "Seconds of each round, by what they were spent on");
  if (!made) return;
  const { svg, x, y, box } = made;
  let below = points.map(() => 0);
  for (const [name, colour] of PARTS) {
    const above = points.map((p, i) => below[i] + p[AT[name]] * unit[0]);
    let d = "";
    points.forEach((p, i) => {
      const from = i ? points[i - 1][0] : Math.max(0, p[0] - totals[0]);
      d += `${d ? "L" : "M"}${x(from).toFixed(1)} ${y(above[i]).toFixed(1)}H${x(p[0]).toFixed(1)}`;
    });
    for (let i = points.length - 1; i >= 0; i--) {
      const from = i ? points[i - 1][0] : Math.max(0, points[0][0] - totals[0]);
      d += `L${x(points[i][0]).toFixed(1)} ${y(below[i]).toFixed(1)}H${x(from).toFixed(1)}`;
    }
    svg.append(svgElement("path", { class: `fill-${colour}`, d: `${d}Z` }));
    below = above;
  }
  const last = totals.length - 1;
  svg.append(svgElement("text", { class: "now", x: box.right + 6, y: y(Math.min(totals[last], usual) * unit[0]) + 4 }, `${digits(totals[last] * unit[0], 3)} ${unit[1]}`));
  let legend = section.querySelector(".legend");
  if (!legend) {
    legend = element("p", "legend");
    for (const [name, , words] of PARTS) {
      const entry = element("span");
      entry.append(element("span", `dot ${name}`), words);
      legend.append(entry);
    }
    section.append(legend);
  }
}

function drawMembers() {
  setText(byId("who"), isOver() ? "Members at the end" : "Members");
  const list = byId("members"), slots = [...shown.slots.values()].sort((a, b) => a[0] - b[0]);
  list.className = slots.length > ROWS_MAX ? "squares" : "rows";
  const most = Math.max(1, ...slots.map((slot) => slot[4]));
  const total = slots.reduce((sum, slot) => sum + slot[4], 0);
  slots.forEach((slot, i) => {
    let node = list.children[i];
    if (!node) {
      node = element("div");
      const bar = element("span", "bar");
      bar.append(element("span"));
      node.append(element("span", "who"), bar, element("span", "what"));
      list.append(node);
    }
    const [k, member, host, state, examples, , reason] = slot;
    const classes = `member ${state}`;
    if (node.className !== classes) node.className = classes;
    setText(node.children[0], `slot ${k}`);
    const width = state === "lost" ? "100%" : `${(100 * examples / most).toFixed(1)}%`;
    if (node.children[1].firstChild.style.width !== width) node.children[1].firstChild.style.width = width;
    const speed = shown.speeds[k];
    const pace = speed > "6" ? `, takes ${Number(speed) >= 9 ? "over 2" : (Number(speed) / 4).toFixed(1)} times as long` : "";
    const share = total ? ` (${(100 * examples / total).toFixed(0)} %)` : "";
    const owns = examples ? `${digits(examples)} examples${share}` : "no examples";
    const title = `member ${member} on ${host}: ${WORDS[state]}${reason ? ` (${reason})` : ""}, ${owns}${pace}`;
    if (node.title !== title) node.title = title;
    node.dataset.owns = owns + (pace ? ", slow" : "");
  });
  while (list.children.length > slots.length) list.lastChild.remove();
  const legend = byId("legend");
  legend.replaceChildren(...STATES.flatMap((state, i) => {
    if (!shown.counts[i]) return [];
    const entry = element("span");
    entry.append(element("span", `dot ${state}`), `${shown.counts[i]} ${WORDS[state]}`);
    return [entry];
  }));
  if (!slots.length) setText(legend, "No member has joined yet.");
}

function drawMoves() {
  const line = byId("moves");
  line.hidden = !shown.n_moves;
  const pairs = shown.moves.map(([from, to, n]) => `${from} → ${to} (${n})`).join(", ");
  const more = shown.n_moves > shown.moves.length ? ` and ${shown.n_moves - shown.moves.length} more` : "";
  setText(line, `Moving ${digits(shown.moving)} chunks: ${pairs}${more}.`);
}

function drawEvents(fresh) {
  const list = byId("events");
  for (const [, at, round, kind, text] of fresh) {
    const line = element("li", kind);
    line.append(element("span", "when", `${at.toFixed(2)} s`), element("span", "when", round === null ? "" : `round ${round}`));
    line.append(element("span", "what", text));
    list.prepend(line);
  }
  while (list.children.length > EVENTS_MAX) list.lastChild.remove();
}

// What changes with time alone: ages, and notices that count down.
function tick() {
  if (!shown) return;
  const at = now();
  shown.cards.forEach(([, , , since], i) => {
    if (since !== null) setText(byId("cards").children[i].lastChild.firstChild, duration(Math.max(0, at - since)));
  });
  if (byId("members").className !== "rows") return;
  [...shown.slots.values()].sort((a, b) => a[0] - b[0]).forEach((slot, i) => {
    const node = byId("members").children[i];
    if (!node) return;
    const [, , , state, , deadline, reason] = slot;
    let words = state === "active" ? node.dataset.owns : WORDS[state];
    if (state === "leaving" && deadline !== null) words += `: ${Math.max(0, deadline - at).toFixed(0)} s left`;
    if (state === "lost" && reason) words += `: ${reason}`;
    setText(node.children[2], words);
  });
}

async function run() {
  for (;;) {
    const started = performance.now();
    if (!document.hidden) await poll();
    await new Promise((resolve) => setTimeout(resolve, Math.max(100, POLL_MS - (performance.now() - started))));
  }
}

addEventListener("hashchange", poll);
addEventListener("resize", () => shown && drawCharts());
setInterval(tick, 250);
run();
