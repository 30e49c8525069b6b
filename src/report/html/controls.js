// ---- view

let isScheduled = false;
function drawAll() {
  draw();
  drawLegend();
  plots.forEach(drawPlot);
}
function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    drawAll();
  });
}
function show(from, to) {
  const margin = END * 0.02, least = 0.05;
  let wide = clamp(to - from, least, END + 2 * margin);
  const middle = (from + to) / 2;
  view.from = clamp(middle - wide / 2, -margin, END + margin - wide);
  view.to = view.from + wide;
  schedule();
}
function zoom(factor, at = (view.from + view.to) / 2) {
  const share = (at - view.from) / (view.to - view.from), wide = (view.to - view.from) * factor;
  show(at - share * wide, at + (1 - share) * wide);
}
const pan = share => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
function goTo(n) {
  const w = DATA.windows[n];
  view.window = n;
  const from = Math.min(w.story[0], w.from), to = Math.max(w.story[1], w.to), margin = Math.max((to - from) * 0.12, 1);
  show(from - margin, to + margin);
  tellWindow(n);
  scrollTo(w);
}
function scrollTo(w) {
  const row = w.holds.map(id => holdById.get(id)).filter(Boolean).map(hold => rowOfLane.get(hold[LANE])).find(Boolean);
  const box = $("lanes");
  if (row && (row.y < box.scrollTop || row.y + row.height > box.scrollTop + box.clientHeight)) box.scrollTop = row.y - 60;
}
function step(by) {
  const all = DATA.windows.map((w, n) => n).filter(n => isShown(DATA.windows[n].key));
  all.sort((a, b) => DATA.windows[a].from - DATA.windows[b].from);
  if (!all.length) return tell("No window", [["", view.key === null ? "The run has no window." : "This key has none."]]);
  const now = all.indexOf(view.window);
  goTo(all[now < 0 ? (by > 0 ? 0 : all.length - 1) : (now + by + all.length) % all.length]);
}

// ---- details

function tell(title, lines) {
  const box = $("details");
  box.replaceChildren();
  el("strong", title, el("p", undefined, box));
  lines.filter(([, text]) => text !== null && text !== undefined).forEach(([name, text]) => {
    const line = el("p", undefined, box);
    if (name) el("span", name + ": ", line).className = "dim";
    el("span", text, line);
  });
}
function tellWindow(n) {
  const w = DATA.windows[n];
  tell(`Window ${n + 1} of ${DATA.windows.length}: ${w.headline}`, [
    [w.told, `${seconds(w.from)} to ${seconds(w.to)} (${length(w.to - w.from)})`],
    ["kind and cause", `${w.kind}, ${w.causes}`],
  ]);
}
const WORDS = { a: "admitted", x: "refused", l: "admitted, late", s: "admitted, stale" };
function tellHold(hold) {
  const end = hold[RELEASE] !== null ? `released at ${seconds(hold[RELEASE])}` +
      (hold[REMOVED] === 0 ? "; the lock was gone already" : hold[REMOVED] === null ? "; not confirmed" : "") :
    hold[LOST] !== null ? `the client noticed the loss at ${seconds(hold[LOST])}` :
    hold[GAVE_UP] !== null ? `given up at ${seconds(hold[GAVE_UP])}` :
    hold[KILLED] !== null ? `the worker was killed at ${seconds(hold[KILLED])}` : "no end on record";
  const past = hold[USED] > hold[ENTITLED] ? `; used until ${seconds(hold[USED])}, after its end` : "";
  tell(`${DATA.lanes[hold[LANE]].name} has the lock ${DATA.keys[hold[KEY]]}` +
    (hold[TOKEN] === null ? "" : `, token ${hold[TOKEN]}`), [
    ["acquired", `${seconds(hold[ACQUIRED])} (due at ${seconds(hold[DUE])}), event ${hold[SEQ]} of the history`],
    ["entitled", `until ${seconds(hold[ENTITLED])}${past}`],
    ["end", end + (hold[RENEWED] ? `; renewed ${hold[RENEWED]} ${hold[RENEWED] === 1 ? "time" : "times"}` : "")],
    ["requests", hold[ACTS].length ? hold[ACTS].slice(0, 8).map(act =>
      `${act[A_KIND] === "w" ? "write" : "read"} ${seconds(act[A_AT])}`).join(", ") : null],
  ]);
}
function tellAct(hold, act) {
  tell(`${act[A_KIND] === "w" ? "Write" : "Read"} of ${DATA.lanes[hold[LANE]].name}` +
    (hold[TOKEN] === null ? "" : ` with token ${hold[TOKEN]}`), [
    ["decided", `${seconds(act[A_AT])}, event ${act[A_SEQ]} of the history`],
    ["arms", act[A_DECISIONS].map(([arm, word, seen]) =>
      `${arm}: ${WORDS[word]}${seen ? ` (newest token seen: ${seen})` : ""}`).join(" · ")],
    ["key", DATA.keys[hold[KEY]]],
  ]);
}
function tellFault(fault) {
  const at = ms => ms === null ? "not on record" : seconds(ms);
  tell(`Fault ${fault.id}: ${fault.kind} on ${fault.node}${fault.unplanned ? ", unplanned" : ""}`, [
    ["what it did", fault.what],
    ["requested", `${at(fault.asked)}, on at ${at(fault.on)}`],
    ["proved", fault.proved ? `${at(fault.proved[0])} to ${at(fault.proved[1])} (` +
      `${length(fault.proved[1] - fault.proved[0])})` : `no${fault.why ? ": " + fault.why : ""}`],
    ["healed", `${at(fault.off)} (requested ${at(fault.heal)}), runs as before at ${at(fault.over)}`],
    ["", fault.missed ? "The fault took effect after its hold had been released." : null],
  ]);
}

// ---- pointer

function found(px, py) {
  const row = rows.find(row => py >= row.y && py < row.y + row.height), at = time(px);
  if (!row || px < names) return null;
  const near = 6 * (view.to - view.from) / (width - names);
  const holds = row.lane === undefined ? [] : holdsByLane[row.lane].filter(hold => isShown(hold[KEY]));
  let best = null;
  for (const hold of holds) {
    for (const act of hold[ACTS]) {
      const far = Math.abs(act[A_AT] - at);
      const isOdd = worstDecision(act) !== "a";
      if (far < near && (py > row.y + row.height - 15 || isOdd) && (!best || far < best.far)) best = { far, hold, act };
    }
  }
  if (best) return { tell: () => tellAct(best.hold, best.act), hold: best.hold };
  const held = holds.filter(hold => at >= hold[ACQUIRED] - near / 2 && at <= Math.max(hold[USED], hold[ENTITLED]) + near / 2)
    .sort((a, b) => b[WRONG] - a[WRONG] || Math.abs(a[ACQUIRED] - at) - Math.abs(b[ACQUIRED] - at))[0];
  if (held) return { tell: () => tellHold(held), hold: held };
  const isHit = ([from, to]) => at >= from - near && at <= to + near;
  const fault = DATA.faults.find(fault => fault.node === row.node && isHit(faultSpan(fault)));
  if (fault) return { tell: () => tellFault(fault) };
  const stall = DATA.stalls.find(stall => stall[0] === row.node && isHit([stall[1], stall[2]]));
  if (stall) {
    const lines = [["from", `${seconds(stall[1])} to ${seconds(stall[2])} (${length(stall[2] - stall[1])})`]];
    return { tell: () => tell(`${stall[3]} did not run, and no fault stopped it`, lines) };
  }
  const change = row.points && row.points.filter(point => point[0] <= at).pop();
  if (change) {
    const offset = n => `${n.toFixed(1)} ms`;
    return { tell: () => tell(`${row.name[0].toUpperCase()}${row.name.slice(1)} from ${seconds(change[0])} on`,
      [["wall clock", offset(change[1])], [row.second, offset(change[2])],
        ["", row.isPlanned ? "The offsets are those of the plan, from the proof of the fault to its heal." : null]]) };
  }
  const n = DATA.windows.findIndex(w => isShown(w.key) && at >= w.from && at <= w.to);
  return n < 0 ? null : { tell: () => tellWindow(n) };
}
const pointers = new Map();
let dragged = 0;
canvas.addEventListener("pointerdown", event => {
  pointers.set(event.pointerId, event.offsetX);
  dragged = 0;
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointermove", event => {
  const before = pointers.get(event.pointerId);
  if (before === undefined) {
    const hit = found(event.offsetX, event.offsetY);
    if (hit) hit.tell();
    return;
  }
  const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, px]) => px);
  if (others.length) {
    const [old, now] = [Math.abs(before - others[0]), Math.abs(event.offsetX - others[0])];
    if (old > 5 && now > 5) zoom(old / now, time((event.offsetX + others[0]) / 2));
  } else {
    const by = time(before) - time(event.offsetX);
    show(view.from + by, view.to + by);
  }
  dragged += Math.abs(event.offsetX - before);
  pointers.set(event.pointerId, event.offsetX);
});
for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, event => {
  pointers.delete(event.pointerId);
  if (kind === "pointerup" && dragged < 4) {
    const hit = found(event.offsetX, event.offsetY);
    view.chosen = hit ? hit.hold || null : null;
    if (hit) hit.tell();
    schedule();
  }
});
canvas.addEventListener("dblclick", event => zoom(0.4, time(event.offsetX)));
canvas.addEventListener("wheel", event => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) {
    event.preventDefault();
    zoom(Math.exp((event.deltaY || event.deltaX) / 300), time(event.offsetX));
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    event.preventDefault();
    pan(event.deltaX / width);
  }
}, { passive: false });

// ---- keyboard and buttons

function choose(by) {
  const all = DATA.holds.filter(hold => isShown(hold[KEY]) && rowOfLane.has(hold[LANE]) &&
    isIn(hold[ACQUIRED], Math.max(hold[USED], hold[ENTITLED])));
  if (!all.length) return;
  const now = all.indexOf(view.chosen);
  view.chosen = all[now < 0 ? 0 : clamp(now + by, 0, all.length - 1)];
  tellHold(view.chosen);
  schedule();
}
const actions = {
  next: () => step(1), prev: () => step(-1), in: () => zoom(0.5), out: () => zoom(2), all: () => show(0, END),
};
document.querySelectorAll("[data-do]").forEach(button => button.addEventListener("click", actions[button.dataset.do]));
document.querySelectorAll("[data-window]").forEach(link =>
  link.addEventListener("click", () => goTo(Number(link.dataset.window))));
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName)) return;
  const keys = { n: actions.next, p: actions.prev, "+": actions.in, "=": actions.in, "-": actions.out, 0: actions.all };
  const onView = { ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), ArrowUp: () => choose(-1),
    ArrowDown: () => choose(1), Home: () => show(0, view.to - view.from), End: () => show(END - (view.to - view.from), END) };
  const action = keys[event.key] || (event.target === canvas && onView[event.key]);
  if (!action) return;
  event.preventDefault();
  action();
});
DATA.keys.forEach((key, n) => el("option", key, $("key")).value = n);
$("key").addEventListener("change", event => {
  view.key = event.target.value === "" ? null : Number(event.target.value);
  view.chosen = null;
  schedule();
});

// ---- theme, size, print

const root = document.documentElement;
const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
$("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  schedule();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", schedule);
function fit() {
  width = Math.max($("lanes").clientWidth, 260);
  names = width < 600 ? 76 : 116;
}
addEventListener("resize", () => {
  fit();
  schedule();
});
let before = null;
addEventListener("beforeprint", () => {
  before = { theme: root.dataset.theme, closed: [...document.querySelectorAll("details:not([open])")] };
  root.dataset.theme = "light";
  before.closed.forEach(details => details.open = true);
  drawAll();
});
addEventListener("afterprint", () => {
  if (before.theme) root.dataset.theme = before.theme; else delete root.dataset.theme;
  before.closed.forEach(details => details.open = false);
  before = null;
  schedule();
});

// ---- the first view

const L = DATA.left;
const n = (count, one, many) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
const missing = [];
if (L.holds) missing.push(`${n(L.holds, "hold", "holds")} of ${L.all.toLocaleString("en")} (grey columns in the lanes)`);
if (L.wrong) missing.push(`among them ${n(L.wrong, "hold", "holds")} with a window or a stale write`);
if (L.near) missing.push(`${n(L.near, "other hold", "other holds")} near a window`);
if (L.acts) missing.push(n(L.acts, "request", "requests"));
if (DATA.lanes.length > LANES_MAX) missing.push(n(DATA.lanes.length - LANES_MAX, "client", "clients"));
if (L.faults) missing.push(n(L.faults, "fault", "faults"));
if (L.stalls) missing.push(n(L.stalls, "stall", "stalls"));
if (L.clocks) missing.push(n(L.clocks, "change of a clock", "changes of clocks"));
if (L.tokens) missing.push(n(L.tokens, "token", "tokens"));
$("left").textContent = missing.length === 0 ? "Every hold, request and fault of the run is drawn." :
  `Too much to draw one by one. Left out: ${missing.join(", ")}. ` + (!DATA.windows.length ? "" : L.wrong ?
    "The holds of the worst windows are drawn. " : L.near ? "Every hold of a window is drawn. " :
    "Every hold of a window is drawn, and so is every other hold near it on its key. ") +
  "The file history.jsonl has everything.";
const legend = [["one", "hold, entitled"], ["past", "used after its end"],
  ["tint", "window: the lock has two holders, or was given away too early; their holds have a red frame"],
  ["ice", "fault, as its target shows it; the line below goes from its request to the proof of its heal"],
  ["dim", "strip above: the process did not run"]];
legend.forEach(([name, text]) => {
  const item = el("li", undefined, $("legend"));
  const sample = el("canvas", undefined, item);
  sample.dataset.name = name;
  el("span", text, item);
});
for (const [sign, text] of [["●", "write admitted"], ["✕", "write refused by an arm"],
  ["▲", "stale write admitted by an arm; boxed: refused by another arm"], ["▲▼", "late write admitted"], ["│", "read"],
  ["▏", "released"], ["L", "loss noticed"], ["K", "killed"]]) {
  const item = el("li", undefined, $("legend"));
  el("b", sign, item);
  el("span", text, item);
}
function drawLegend() {
  document.querySelectorAll("#legend canvas").forEach(sample => {
    sample.width = 26;
    sample.height = 14;
    const context = sample.getContext("2d"), name = sample.dataset.name;
    context.fillStyle = name === "past" || name === "dim" ? hatch(context, name, -1) : color(name);
    context.strokeStyle = name === "tint" ? color("red") : name === "ice" ? color("ices") : color(name);
    context.fillRect(0, 0, 26, 14);
    if (name === "tint") context.setLineDash([4, 3]);
    context.strokeRect(0.5, 0.5, 25, 13);
  });
}
// On a narrow screen the picture shows its end first: the window and the stale write.
const picture = document.querySelector("figure .wide");
if (picture) picture.scrollLeft = picture.scrollWidth;
fit();
if (DATA.worst !== null && (L.holds || DATA.holds.length > 400)) goTo(DATA.worst); else show(0, END);
if (DATA.worst !== null && view.window < 0) tellWindow(DATA.worst);
drawAll();
