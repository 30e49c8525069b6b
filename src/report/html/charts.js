// ---- charts over time

const S = DATA.series;
const buckets = S.due.length;
const perSecond = counts => counts.map(n => n / (S.width / 1e3));
let waiting = 0;
const queue = S.due.map((due, n) => waiting += due - S.served[n]);
const plots = [
  {
    title: "Waiting time", unit: "ms", isLog: true, isBound: true,
    note: "From the time at which a client is due to use the lock until it has the lock. Each value is an upper bound, " +
      "at most a quarter too large. The scale is logarithmic. No median: nobody got the lock. No value for 99 %: " +
      "fewer than 100 locks were acquired in this part of the run.",
    lines: [{ name: "median", values: S.p50, color: "one" }, { name: "99 %", values: S.p99, color: "red", dash: [6, 3] }],
  },
  {
    title: "Rate", unit: "/s",
    note: "Critical sections that became due, locks that were acquired, attempts that failed, per second.",
    lines: [{ name: "due", values: perSecond(S.due), color: "dim" },
      { name: "acquired", values: perSecond(S.acquired), color: "two", dash: [6, 3] },
      { name: "failed", values: perSecond(S.failed), color: "red", dash: [2, 3] }],
  },
  {
    title: "Queue", unit: "",
    note: "Critical sections that are due and wait for their first lock. They become due whether or not a client is " +
      "free. A section waits no longer if its client is killed, or begins the next section.",
    lines: [{ name: "waiting", values: queue, color: "one" }],
  },
  { title: "Recovery", unit: "ms", draw: drawRecovery },
  { title: "Tokens", unit: "", isWhole: true, draw: drawTokens },
];
const R = DATA.recovery, open = R.filter(point => point[1] === null).length;
const hasHeal = DATA.faults.some(fault => !fault.unplanned && !isOff(fault) && fault.off !== null);
// A record that is not judged to its end may have a heal after the part that is judged.
const withoutPair = DATA.healed > 0 ? "No client had asked for a key when a fault was healed." :
  hasHeal ? "The part of the record that is judged has no heal of a fault." : "No fault was healed.";
plots[3].note = R.length === 0 ? withoutPair :
  "From the end of each fault until each key was acquired again: one mark for each pair of a fault and a key." +
  (open ? ` Red triangles: ${open} not acquired again before the end of the run.` : "") +
  (DATA.left.recovery ? ` The ${DATA.left.recovery} shortest are left out.` : "");
const tokensLeft = DATA.left.tokens, drawnBack = S.tokens.filter(point => point[3]).length;
const tokenCount = count => `${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`;
plots[4].note = S.tokens.length === 0 ? "The lock gives no tokens." :
  (tokensLeft === 0 ? "One mark for each hold. " : `Marks for a part of the holds; left out: ${tokenCount(tokensLeft)}. `) +
  (S.back === 0 ? "No token went back." : `${tokenCount(S.back)} went back (red triangles` +
    (drawnBack < S.back ? `, ${drawnBack.toLocaleString("en")} of them drawn` : "") +
    "): of two holds that exclude each other, the later one got no larger token, or both got the same one.");

const PLOT = 150;
let pointed = null;
function nice(most) {
  const power = 10 ** Math.floor(Math.log10(most || 1));
  return [1, 2, 5, 10].find(n => n * power >= most) * power;
}
// A bound with two digits: rounded up, so that it remains a bound.
function upToTwo(value) {
  const last = 10 ** (Math.floor(Math.log10(value)) - 1);
  return Number((Math.ceil(value / last - 1e-9) * last).toPrecision(2));
}
function grid(context, plot, y, ticks) {
  context.textAlign = "right";
  context.strokeStyle = color("line");
  for (const tick of ticks) {
    context.beginPath();
    context.moveTo(names, y(tick));
    context.lineTo(width - 8, y(tick));
    context.stroke();
    context.fillStyle = color("dim");
    // A token is a name: revisions of etcd and transactions of ZooKeeper differ in their last digits.
    const told = (plot.isWhole ? tick : Number(tick.toPrecision(4))).toLocaleString("en");
    context.fillText(told + " " + plot.unit, names - 8, y(tick) + 4, names - 10);
  }
}
function drawLine(context, line, y) {
  context.strokeStyle = color(line.color);
  context.setLineDash(line.dash || []);
  context.lineWidth = 1.8;
  context.beginPath();
  const isGap = n => (line.values[n] ?? null) === null;
  const alone = [];
  line.values.forEach((value, n) => {
    if (value === null) return;
    const px = x(S.from + (n + 0.5) * S.width);
    if (isGap(n - 1) && isGap(n + 1)) alone.push([px, y(value)]);
    if (isGap(n - 1)) context.moveTo(px, y(value)); else context.lineTo(px, y(value));
  });
  context.stroke();
  context.setLineDash([]);
  // A value between two gaps is a dot.
  context.fillStyle = color(line.color);
  for (const [px, py] of alone) {
    context.beginPath();
    context.arc(px, py, 2.2, 0, 2 * Math.PI);
    context.fill();
  }
  context.lineWidth = 1;
}
function drawPlot(plot) {
  const context = prepared(plot.canvas, PLOT);
  const top = 24, bottom = PLOT - 8;
  axis(context, bottom);
  clip(context, PLOT);
  context.fillStyle = color("ice");
  DATA.faults.filter(fault => isIn(...faultSpan(fault))).forEach(fault => band(context, faultSpan(fault), top, bottom - top));
  context.restore();
  (plot.draw || drawLines)(context, plot, top, bottom);
  if (pointed !== null) {
    context.strokeStyle = color("ink");
    context.beginPath();
    context.moveTo(x(pointed), top);
    context.lineTo(x(pointed), bottom);
    context.stroke();
  }
}
function drawLines(context, plot, top, bottom) {
  const first = clamp(Math.floor((view.from - S.from) / S.width), 0, buckets - 1);
  const last = clamp(Math.ceil((view.to - S.from) / S.width), 0, buckets - 1);
  const shown = plot.lines.flatMap(line => line.values.slice(first, last + 1)).filter(value => value !== null);
  const most = Math.max(...shown, plot.isLog ? 1 : 0) || 1;
  let y, ticks;
  if (plot.isLog) {
    const least = Math.min(...shown, most), low = Math.floor(Math.log10(Math.max(least, 0.01)));
    const high = Math.max(Math.ceil(Math.log10(most)), low + 1);
    y = value => bottom - (Math.log10(Math.max(value, 0.001)) - low) / (high - low) * (bottom - top);
    ticks = Array.from({ length: high - low + 1 }, (_, n) => 10 ** (low + n));
  } else {
    const end = nice(most);
    y = value => bottom - value / end * (bottom - top);
    ticks = [0, end / 2, end];
  }
  grid(context, plot, y, ticks);
  clip(context, PLOT);
  plot.lines.forEach(line => drawLine(context, line, y));
  context.restore();
  const place = pointed === null ? -1 : Math.floor((pointed - S.from) / S.width);
  context.textAlign = "left";
  let left = names + 6;
  plot.lines.forEach(line => {
    const value = line.values[place];
    const told = value === undefined ? "" : value === null ? ": none" :
      `: ${plot.isBound ? "≤ " + upToTwo(value) : Number(value.toPrecision(4))} ${plot.unit}`;
    const text = line.name + told;
    context.fillStyle = color("bg");
    context.globalAlpha = 0.85;
    context.fillRect(left - 3, top, context.measureText(text).width + 34, 16);
    context.globalAlpha = 1;
    context.strokeStyle = context.fillStyle = color(line.color);
    context.setLineDash(line.dash || []);
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(left, top + 8);
    context.lineTo(left + 24, top + 8);
    context.stroke();
    context.setLineDash([]);
    context.lineWidth = 1;
    context.fillText(text, left + 28, top + 12);
    left += context.measureText(text).width + 46;
  });
}
function mark(context, px, py, isBad) {
  context.fillStyle = color(isBad ? "red" : "one");
  context.beginPath();
  if (isBad) {
    context.moveTo(px - 5, py - 4);
    context.lineTo(px + 5, py - 4);
    context.lineTo(px, py + 5);
  } else context.arc(px, py, 2.2, 0, 7);
  context.fill();
}
function drawRecovery(context, plot, top, bottom) {
  const points = R.filter(point => isIn(point[0], point[0]));
  const end = nice(Math.max(...points.map(point => point[1] ?? 0), 1));
  const y = ms => bottom - ms / end * (bottom - top - 8);
  grid(context, plot, y, [0, end / 2, end]);
  clip(context, PLOT);
  context.strokeStyle = color("one");
  for (const [at, lasted] of points) {
    context.beginPath();
    context.moveTo(x(at), bottom);
    context.lineTo(x(at), y(lasted ?? end));
    context.stroke();
    mark(context, x(at), y(lasted ?? end), lasted === null);
  }
  context.restore();
}
function drawTokens(context, plot, top, bottom) {
  const points = S.tokens.filter(point => isShown(point[1]) && isIn(point[0], point[0]));
  const values = points.map(point => point[2]);
  let [least, most] = [Math.min(...values), Math.max(...values)];
  if (!points.length) [least, most] = [0, 1];
  if (least === most) [least, most] = [least - 1, most + 1];
  const y = token => bottom - 6 - (token - least) / (most - least) * (bottom - top - 10);
  grid(context, plot, y, [least, most]);
  clip(context, PLOT);
  for (const isBack of [0, 1]) {
    points.filter(point => point[3] === isBack).forEach(point => mark(context, x(point[0]), y(point[2]), isBack));
  }
  context.restore();
}
plots.forEach(plot => {
  const box = el("div", undefined, $("plots"));
  box.className = "plot";
  el("h3", plot.title, box);
  el("p", plot.note, box).className = "dim";
  plot.canvas = el("canvas", undefined, box);
  plot.canvas.setAttribute("role", "img");
  plot.canvas.setAttribute("aria-label", `${plot.title} over time. ${plot.note}`);
  plot.canvas.addEventListener("pointermove", event => {
    pointed = time(event.offsetX);
    schedule();
  });
  plot.canvas.addEventListener("pointerleave", () => {
    pointed = null;
    schedule();
  });
});
