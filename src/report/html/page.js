"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
// The fields of a hold, and of a request.
const ID = 0, LANE = 1, KEY = 2, SEQ = 3, TOKEN = 4, DUE = 5, ACQUIRED = 6, ENTITLED = 7, USED = 8, PROMISE = 9,
  RELEASE = 10, REMOVED = 11, LOST = 12, GAVE_UP = 13, KILLED = 14, WRONG = 15, ACTS = 16, RENEWED = 17;
const A_SEQ = 0, A_AT = 1, A_KIND = 2, A_DECISIONS = 3;

const seconds = ms => (ms / 1e3).toFixed(3) + " s";
const length = ms => ms >= 1e3 ? (ms / 1e3).toFixed(2) + " s" : ms >= 10 ? ms.toFixed(0) + " ms" : ms.toFixed(2) + " ms";
const clamp = (x, least, most) => Math.max(least, Math.min(most, x));
const color = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const el = (tag, text, parent) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};

const END = Math.max(DATA.until, 1);
const view = { from: 0, to: END, key: null, window: -1, chosen: null };
const isShown = key => view.key === null || view.key === key;
// A fault that found no process, or that the engine refused, was never on: only its request is drawn.
const isOff = f => f.why !== null && f.on === null;
const faultSpan = f => f.proved || [f.on ?? f.asked ?? 0, f.off ?? f.heal ?? (isOff(f) ? f.asked ?? 0 : END)];
const holdById = new Map(DATA.holds.map(hold => [hold[ID], hold]));

// ---- rows

const rows = [];
const rowsOfNode = new Map();
function addRow(name, node, height, more) {
  const last = rows[rows.length - 1];
  const row = { name, node, height, y: last ? last.y + last.height : 26, ...more };
  rows.push(row);
  if (!rowsOfNode.has(node)) rowsOfNode.set(node, []);
  rowsOfNode.get(node).push(row);
}
const LANES_MAX = 200;
const laneHeight = DATA.lanes.length > 60 ? 18 : DATA.lanes.length > 16 ? 24 : 34;
// Of too many lanes, those with a wrong hold and then the first ones.
const wrongLanes = new Set(DATA.holds.filter(hold => hold[WRONG]).map(hold => hold[LANE]));
const byRank = DATA.lanes.map((lane, n) => n).sort((a, b) => wrongLanes.has(b) - wrongLanes.has(a) || a - b);
const drawnLanes = byRank.slice(0, LANES_MAX).sort((a, b) => a - b);
const rowOfLane = new Map();
drawnLanes.forEach(n => {
  addRow(DATA.lanes[n].name, DATA.lanes[n].node, laneHeight, { lane: n });
  rowOfLane.set(n, rows[rows.length - 1]);
});
const nodes = [...new Set([...DATA.faults.map(f => f.node), ...DATA.stalls.map(s => s[0])])].sort();
nodes.filter(node => !rowsOfNode.has(node)).forEach(node => addRow(node, node, 24, {}));
// Lanes of clocks: lines through points of time, offset of the wall clock, offset of the second clock.
const clocks = new Map();
DATA.clocks.forEach(c => clocks.set(c[0], [...(clocks.get(c[0]) || []), c]));
clocks.forEach((steps, process) => {
  const points = [[0, 0, 0]];
  steps.forEach(([, at, wall, boot]) => points.push([at, ...points[points.length - 1].slice(1)], [at, wall, boot]));
  addRow("host clock, " + process, "host clock " + process, 26, { points, second: "boot-time clock" });
});
const STROBES = 400;
// The offsets that the plan asks for, from the proof of a fault to its heal: no process of ours sees a server's clock.
function planned(faults) {
  const points = [[0, 0, 0]];
  let wall = 0, monotonic = 0;
  const to = (at, changed) => {
    points.push([at, wall, monotonic]);
    changed();
    points.push([at, wall, monotonic]);
  };
  for (const fault of faults) {
    const { clock } = fault, [on, proved] = faultSpan(fault), off = Math.max(fault.off ?? proved, on);
    const add = by => () => {
      if (clock.wall) wall += by;
      if (clock.monotonic) monotonic += by;
    };
    if (clock.every) {
      const count = Math.min(Math.floor((off - on) / clock.every), STROBES);
      for (let n = 0; n < count; n++) to(on + n * clock.every, add(n % 2 ? -clock.jump : clock.jump));
      to(off, () => { if (count % 2) wall -= clock.jump; });
    } else {
      const by = clock.jump ?? (off - on) * clock.ppm / 1e6;
      if (clock.jump !== undefined) to(on, add(by)); else {
        to(on, () => {});
        add(by)();
        points.push([off, wall, monotonic]);
      }
      // The heal sets a wall clock right. A monotonic clock never goes back.
      to(off, () => { if (clock.wall) wall -= by; });
    }
  }
  points.push([END, wall, monotonic]);
  return points;
}
const clockFaults = new Map();
DATA.faults.filter(f => f.clock && (f.proved || f.on !== null)).forEach(f =>
  clockFaults.set(f.node, [...(clockFaults.get(f.node) || []), f]));
clockFaults.forEach((faults, node) => {
  const more = { points: planned(faults), second: "monotonic clock", isPlanned: true };
  addRow("clock of " + node, "clock of " + node, 30, more);
});
const HEIGHT = rows.length ? rows[rows.length - 1].y + rows[rows.length - 1].height + 4 : 40;
const holdsByLane = DATA.lanes.map(() => []);
DATA.holds.forEach(hold => holdsByLane[hold[LANE]].push(hold));

// ---- drawing

const canvas = $("view");
let names = 116, width = 800;
const hatches = new Map();
function hatch(context, name, slope) {
  const stroke = color(name), id = stroke + slope;
  if (!hatches.has(id)) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const t = tile.getContext("2d");
    t.strokeStyle = stroke;
    t.lineWidth = 1.6;
    t.beginPath();
    for (const shift of [-8, 0, 8]) {
      if (slope > 0) { t.moveTo(shift, 8); t.lineTo(shift + 8, 0); } else { t.moveTo(shift, 0); t.lineTo(shift + 8, 8); }
    }
    t.stroke();
    hatches.set(id, tile);
  }
  return context.createPattern(hatches.get(id), "repeat");
}
function prepared(canvas, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return context;
}
const x = ms => names + (ms - view.from) / (view.to - view.from) * (width - names - 8);
const time = px => view.from + (px - names) / (width - names - 8) * (view.to - view.from);
const isIn = (from, to) => to >= view.from && from <= view.to;

function axis(context, bottom) {
  const rough = (view.to - view.from) / Math.max(2, (width - names) / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find(n => n * power >= rough) * power;
  const digits = step >= 1e3 ? 0 : clamp(3 - Math.floor(Math.log10(step)), 1, 6);
  context.fillStyle = color("dim");
  context.strokeStyle = color("line");
  context.lineWidth = 1;
  context.textAlign = "center";
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
    context.beginPath();
    context.moveTo(x(at), 20);
    context.lineTo(x(at), bottom);
    context.stroke();
    context.fillText((at / 1e3).toFixed(digits) + " s", clamp(x(at), names + 14, width - 24), 13);
  }
}
function clip(context, bottom) {
  context.save();
  context.beginPath();
  context.rect(names, 0, width - names - 8, bottom);
  context.clip();
}
// A band over [from, to], at least two pixels wide.
function band(context, [from, to], y, height) {
  const left = Math.max(x(from), names - 2), right = Math.min(x(to), width);
  context.fillRect(left, y, Math.max(right - left, 2), height);
}
function drawFaults(context) {
  const named = [];
  for (const fault of DATA.faults) {
    const span = faultSpan(fault);
    if (!isIn(...span)) continue;
    for (const row of rowsOfNode.get(fault.node) || []) {
      context.fillStyle = color("ice");
      context.globalAlpha = fault.proved ? 1 : 0.5;
      band(context, span, row.y + 1, row.height - 2);
      context.fillStyle = hatch(context, "ices", 1);
      band(context, span, row.y + row.height - 8, 6);
      context.globalAlpha = 1;
      // From the request to the proof, and from the heal to its proof, with a mark at the request and at the end.
      context.strokeStyle = color("dim");
      context.beginPath();
      const base = row.y + row.height - 2;
      const asked = x(fault.asked ?? span[0]), over = x(fault.over ?? fault.off ?? span[1]);
      context.moveTo(asked, base - 7);
      context.lineTo(asked, base);
      context.lineTo(over, base);
      context.lineTo(over, base - 7);
      context.stroke();
      if (row.lane === undefined) named.push([fault.kind, Math.max(x(span[0]), names) + 4, row.y + 13, x(span[1])]);
    }
  }
  // The names of faults do not overlap.
  const ends = new Map();
  context.fillStyle = color("ink");
  context.textAlign = "left";
  for (const [name, left, y, end] of named.sort((a, b) => a[1] - b[1])) {
    const wide = context.measureText(name).width;
    if (left < (ends.get(y) ?? 0) || (left + wide > end && end - left < 24)) continue;
    context.fillText(name, left, y);
    ends.set(y, left + wide + 6);
  }
  for (const [node, from, to] of DATA.stalls) {
    if (!isIn(from, to)) continue;
    for (const row of rowsOfNode.get(node) || []) {
      context.fillStyle = hatch(context, "dim", -1);
      band(context, [from, to], row.y + 2, 5);
    }
  }
}
function drawWindows(context) {
  DATA.windows.forEach((w, n) => {
    if (!isIn(w.from, w.to) || !isShown(w.key)) return;
    context.fillStyle = color("tint");
    band(context, [w.from, w.to], 20, HEIGHT - 20);
    context.strokeStyle = color("red");
    context.lineWidth = n === view.window ? 2 : 1;
    context.setLineDash([5, 4]);
    for (const at of [w.from, w.to]) {
      context.beginPath();
      context.moveTo(x(at), 20);
      context.lineTo(x(at), HEIGHT);
      context.stroke();
    }
    context.setLineDash([]);
  });
}
function drawCounts(context) {
  const { from, width: bucket } = DATA.series;
  for (const n of drawnLanes) {
    const row = rowOfLane.get(n), left = DATA.lanes[n].left;
    const most = Math.max(...left, 1);
    context.fillStyle = color("dim");
    context.globalAlpha = 0.55;
    left.forEach((count, place) => {
      const start = from + place * bucket;
      if (!count || !isIn(start, start + bucket)) return;
      const high = 2 + count / most * (row.height - 16);
      band(context, [start, start + bucket], row.y + row.height - 3 - high, high);
    });
    context.globalAlpha = 1;
  }
}
function drawHold(context, hold, row) {
  const top = row.y + 6, high = row.height - 16, left = x(hold[ACQUIRED]);
  if (hold[USED] > hold[ENTITLED]) {
    const end = clamp(x(hold[USED]), names, width), start = Math.max(x(hold[ENTITLED]), names - 2);
    context.fillStyle = hatch(context, "past", -1);
    context.fillRect(start, top, Math.max(end - start, 2), high);
    context.strokeStyle = color("past");
    context.strokeRect(start, top + 0.5, Math.max(end - start, 2), high - 1);
  }
  context.fillStyle = color("one");
  band(context, [hold[ACQUIRED], hold[ENTITLED]], top, high);
  const wide = x(hold[ENTITLED]) - left;
  if (hold[WRONG]) {
    context.strokeStyle = color("red");
    context.lineWidth = 2;
    context.strokeRect(left - 1, top - 1, Math.max(x(Math.max(hold[USED], hold[ENTITLED])) - left, 2) + 2, high + 2);
    context.lineWidth = 1;
  }
  if (wide > 28 && hold[TOKEN] !== null) {
    context.fillStyle = color("bg");
    context.textAlign = "left";
    context.fillText(hold[TOKEN], Math.max(left, names) + 4, top + high / 2 + 4, wide - 6);
  }
  const letter = (at, text) => {
    context.fillStyle = color("red");
    context.textAlign = "center";
    context.fillText(text, x(at), top - 1 + high / 2 + 5);
  };
  if (hold[RELEASE] !== null) {
    context.strokeStyle = color("ink");
    context.beginPath();
    context.moveTo(x(hold[RELEASE]), top - 2);
    context.lineTo(x(hold[RELEASE]), top + high + 2);
    context.stroke();
  }
  if (hold[LOST] !== null) letter(hold[LOST], "L");
  if (hold[KILLED] !== null) letter(hold[KILLED], "K");
  if (hold === view.chosen) {
    context.strokeStyle = color("ink");
    context.lineWidth = 2;
    context.strokeRect(left - 3, top - 3, Math.max(x(Math.max(hold[USED], hold[ENTITLED])) - left, 2) + 6, high + 6);
    context.lineWidth = 1;
  }
}
const worstDecision = act => "slxa".split("").find(word => act[A_DECISIONS].some(d => d[1] === word)) || "a";
function drawAct(context, act, row) {
  const px = x(act[A_AT]), py = row.y + row.height - 7, word = worstDecision(act);
  context.beginPath();
  if (act[A_KIND] === "r") {
    context.strokeStyle = word === "a" ? color("dim") : color("red");
    context.moveTo(px, py - 4);
    context.lineTo(px, py + 4);
    context.stroke();
  } else if (word === "a") {
    context.fillStyle = color("two");
    context.arc(px, py, 3.2, 0, 7);
    context.fill();
  } else if (word === "x") {
    context.strokeStyle = color("red");
    context.lineWidth = 2;
    context.moveTo(px - 4, py - 4);
    context.lineTo(px + 4, py + 4);
    context.moveTo(px + 4, py - 4);
    context.lineTo(px - 4, py + 4);
    context.stroke();
    context.lineWidth = 1;
  } else {
    context.fillStyle = color("red");
    context.moveTo(px, py - 6);
    context.lineTo(px + 5.5, py + 4);
    context.lineTo(px - 5.5, py + 4);
    if (word === "l") context.lineTo(px, py + 9);
    context.fill();
    if (act[A_DECISIONS].some(d => d[1] === "x")) {
      context.strokeStyle = color("red");
      context.strokeRect(px - 8, py - 8, 16, 15);
    }
  }
}
function drawClocks(context, row) {
  // A long run has too many points for the arguments of one call.
  const most = row.points.reduce((most, point) => Math.max(most, Math.abs(point[1]), Math.abs(point[2])), 1);
  const y = ms => row.y + row.height / 2 - ms / most * (row.height / 2 - 4);
  [[1, "one", []], [2, "past", [4, 3]]].forEach(([field, name, dash]) => {
    context.strokeStyle = color(name);
    context.setLineDash(dash);
    context.beginPath();
    context.moveTo(x(0), y(0));
    row.points.forEach(point => context.lineTo(x(point[0]), y(point[field])));
    context.lineTo(x(END), y(row.points[row.points.length - 1][field]));
    context.stroke();
  });
  context.setLineDash([]);
  context.fillStyle = color("dim");
  context.textAlign = "right";
  context.fillText("± " + length(most) + (row.isPlanned ? ", as planned" : ""), width - 12, row.y + 12);
}
const ACTS_DRAWN = 6000;
function draw() {
  const context = prepared(canvas, HEIGHT);
  axis(context, HEIGHT);
  clip(context, HEIGHT);
  drawFaults(context);
  drawWindows(context);
  drawCounts(context);
  const visible = [];
  let acts = 0;
  for (const n of drawnLanes) {
    for (const hold of holdsByLane[n]) {
      if (!isShown(hold[KEY]) || !isIn(hold[ACQUIRED], Math.max(hold[USED], hold[ENTITLED]))) continue;
      drawHold(context, hold, rowOfLane.get(n));
      visible.push(hold);
      acts += hold[ACTS].length;
    }
  }
  const isFull = acts > ACTS_DRAWN;
  for (const hold of visible) {
    for (const act of hold[ACTS]) {
      if (!isFull || worstDecision(act) !== "a") drawAct(context, act, rowOfLane.get(hold[LANE]));
    }
  }
  rows.filter(row => row.points).forEach(row => drawClocks(context, row));
  context.restore();
  context.textAlign = "right";
  context.fillStyle = color("ink");
  context.strokeStyle = color("line");
  rows.forEach(row => {
    context.fillText(row.name, names - 8, row.y + row.height / 2 + 4, names - 12);
    context.beginPath();
    context.moveTo(0, row.y + row.height);
    context.lineTo(width, row.y + row.height);
    context.stroke();
  });
  const hidden = isFull ? "; zoom in to see ordinary requests" : "";
  $("where").textContent = `${seconds(view.from)} to ${seconds(view.to)}, ${visible.length} holds${hidden}`;
}
