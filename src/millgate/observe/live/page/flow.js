// The flow as a moving picture: arrivals, the gate with what it holds, the engines, and what became of it all.
// A ribbon is as wide as its rate, drops run along it. With reduced motion the drops stand still.

import { alarmOf, clamp, make, say, shape } from "./draw.js";
import { because, figure, percent, seconds } from "./words.js";

const ENDINGS = [
  { name: "good", field: "good", tone: "good" },
  { name: "late", field: "late", tone: "warn" },
  { name: "client gone", field: "client_gone", tone: "gone" },
  { name: "failed", field: "engine_failed", tone: "bad" },
];
const MOST_REASONS = 4;
const WIDEST = 26;
const NARROW_PX = 560;
const DROPS_PER_S = 30; // drawings a second: smooth enough for drops, and half of what a screen would ask for

// Where things stand, in the units of the drawing: once for a wide place, once for a phone held upright.
const WIDE = {
  across: true, width: 900, height: 262,
  arrivals: [8, 66, 130, 66], gate: [250, 66, 160, 66], engines: [530, 66, 150, 66],
  ending: (index) => [790, 22 + 50 * index], reason: (index) => [530, 166 + 26 * index],
};
const NARROW = {
  across: false, width: 340, height: 372,
  arrivals: [4, 4, 150, 56], gate: [4, 108, 150, 56], engines: [4, 212, 150, 56],
  ending: (index) => [84 * index, 346], reason: (index) => [176, 104 + 28 * index],
};

const still = matchMedia("(prefers-reduced-motion: reduce)");
let layout = null;
let parts = null;
let newest = null;
let last = 0;

/** Start the picture inside `holder`; it is built anew when the place becomes narrow or wide. */
export function startFlow(holder) {
  const build = () => {
    const wanted = holder.clientWidth < NARROW_PX ? NARROW : WIDE;
    if (wanted === layout) return;
    layout = wanted;
    parts = draw(holder);
    if (newest) showFlow(newest);
  };
  build();
  new ResizeObserver(build).observe(holder);
  requestAnimationFrame(move);
}

function draw(holder) {
  const picture = shape("svg", { viewBox: `0 0 ${layout.width} ${layout.height}`, "aria-hidden": "true" });
  const ribbons = new Map();
  const under = picture.appendChild(shape("g"));
  const ribbon = (name, tone) => {
    const wide = under.appendChild(shape("path", { class: `ribbon tone-${tone}`, "stroke-width": 0 }));
    const drops = under.appendChild(shape("path", { class: `drops tone-${tone}`, "stroke-width": 0 }));
    ribbons.set(name, { wide, drops, speed: 0 });
  };
  ribbon("arrivals", "calm");
  ribbon("admitted", "calm");
  for (const ending of ENDINGS) ribbon(ending.name, ending.tone);
  for (let index = 0; index < MOST_REASONS; index += 1) ribbon(`reason ${index}`, "bad");
  const boxes = Object.fromEntries(["arrivals", "gate", "engines"].map((name) => [name, box(picture, name)]));
  const endings = ENDINGS.map((ending, index) => mark(picture, layout.ending(index), ending.name));
  const reasons = Array.from({ length: MOST_REASONS }, (_, index) => reasonMark(picture, layout.reason(index)));
  holder.replaceChildren(picture);
  return { ribbons, boxes, endings, reasons };
}

function box(picture, name) {
  const [x, y, width, height] = layout[name];
  const group = picture.appendChild(shape("g"));
  group.append(shape("rect", { class: "node", x, y, width, height, rx: 7 }));
  const fill = group.appendChild(shape("rect", { class: "node-fill", x: x + 1, y: y + height - 1, width: width - 2, height: 0, rx: 6 }));
  group.append(shape("text", { class: "label", x: x + 10, y: y + 20 }, name === "gate" ? "waiting at the gate" : name));
  const said = group.appendChild(shape("text", { class: "figure", x: x + 10, y: y + height - 14 }));
  return { fill, said, place: [x, y, width, height] };
}

function mark(picture, [x, y], name) {
  const group = picture.appendChild(shape("g"));
  const said = group.appendChild(shape("text", { class: "figure", x: x + 6, y: y + 2 }));
  group.append(shape("text", { class: "label", x: x + 6, y: y + 18 }, name));
  return { group, said };
}

function reasonMark(picture, [x, y]) {
  const group = picture.appendChild(shape("g"));
  const line = group.appendChild(shape("text", { x: x + 8, y: y + 4 }));
  const said = line.appendChild(shape("tspan"));
  return { group, said, why: line.appendChild(shape("tspan", layout.across ? {} : { class: "below", x: x + 8, dy: 13 })) };
}

/** Set all ribbons and numbers. */
export function showFlow(picture) {
  newest = picture;
  const { rates } = picture;
  const reasons = largest(rates.yielded);
  const flows = [rates.arrived, rates.admitted, ...ENDINGS.map((ending) => rates[ending.field]), ...reasons.map(([, rate]) => rate)];
  const most = Math.max(...flows, 0.5);
  const thick = (rate) => (rate > 0 ? 1.5 + (WIDEST - 1.5) * (rate / most) : 0);
  const exits = spread([thick(rates.admitted), ...reasons.map(([, rate]) => thick(rate))]);
  const ends = spread(ENDINGS.map((ending) => thick(rates[ending.field])));
  set("arrivals", right("arrivals", 0), left("gate"), rates.arrived, thick);
  set("admitted", right("gate", exits[0]), left("engines"), rates.admitted, thick);
  ENDINGS.forEach((ending, index) => {
    const rate = rates[ending.field];
    const [x, y] = layout.ending(index);
    set(ending.name, right("engines", ends[index]), layout.across ? [x, y] : [x + 26, y - 18], rate, thick);
    say(parts.endings[index].said, `${figure(rate)} /s`);
    parts.endings[index].group.classList.toggle("zero", rate === 0);
  });
  for (let index = 0; index < MOST_REASONS; index += 1) {
    const [name, rate] = reasons[index] ?? ["", 0];
    set(`reason ${index}`, out("gate", exits[index + 1] ?? 0), layout.reason(index), rate, thick);
    say(parts.reasons[index].said, name ? `${figure(rate)} /s: ` : index === 0 ? "nothing refused" : "");
    say(parts.reasons[index].why, name ? because(name) : "");
    parts.reasons[index].group.classList.toggle("zero", !name);
  }
  fillBoxes(picture);
  say(document.getElementById("flow-over"), `per second, over the last ${seconds(rates.over_s)}`);
  say(document.getElementById("flow-words"), inWords(picture, reasons));
}

function fillBoxes(picture) {
  const queued = picture.lanes.reduce((total, lane) => total + lane.queued, 0);
  const waits = picture.lanes.map((lane) => (lane.deadline_s > 0 ? lane.expected_wait_s / lane.deadline_s : 0));
  const running = picture.engines.reduce((total, engine) => total + engine.seen.running, 0);
  const limit = picture.engines.reduce((total, engine) => total + (engine.seen.up ? engine.seen.limit : 0), 0);
  const wait = Math.max(0, ...waits);
  const longest = Math.max(0, ...picture.lanes.map((lane) => lane.expected_wait_s));
  fill("arrivals", 0, 0, `${figure(picture.rates.arrived)} /s`);
  fill("gate", wait, alarmOf(wait), queued ? `${queued} · ${seconds(longest)}` : "0");
  fill("engines", limit ? running / limit : 0, 0, `${running} of ${limit}`);
}

function fill(name, share, alarm, words) {
  const { fill: level, said, place } = parts.boxes[name];
  const height = (place[3] - 2) * clamp(share);
  level.setAttribute("height", height.toFixed(1));
  level.setAttribute("y", (place[1] + place[3] - 1 - height).toFixed(1));
  level.style.setProperty("--alarm", `${Math.round(100 * clamp(alarm))}%`);
  say(said, words);
}

// Reasons beyond the most that fit are one ribbon, so that nothing refused is left out.
function largest(yielded) {
  const all = Object.entries(yielded).sort((one, other) => other[1] - one[1]);
  if (all.length <= MOST_REASONS) return all;
  const rest = all.slice(MOST_REASONS - 1).reduce((total, [, rate]) => total + rate, 0);
  return [...all.slice(0, MOST_REASONS - 1), ["other reasons", rest]];
}

// Ribbons leave a box side by side: the middle of each, from the middle of the box.
function spread(widths) {
  const gap = 3;
  const shown = widths.filter((width) => width > 0);
  let edge = -(shown.reduce((total, width) => total + width, 0) + gap * Math.max(0, shown.length - 1)) / 2;
  return widths.map((width) => {
    if (!width) return 0;
    const middle = edge + width / 2;
    edge += width + gap;
    return middle;
  });
}

function right(name, shift) {
  const [x, y, width, height] = layout[name];
  return layout.across ? [x + width, y + height / 2 + shift] : [x + width / 2 + shift, y + height];
}

function left(name) {
  const [x, y, width, height] = layout[name];
  return layout.across ? [x, y + height / 2] : [x + width / 2, y];
}

function out(name, shift) {
  const [x, y, width, height] = layout[name];
  return layout.across ? [x + width, y + height / 2 + shift] : [x + width, y + height / 2];
}

function set(name, from, to, rate, thick) {
  const { wide, drops } = parts.ribbons.get(name);
  const path = name.startsWith("reason") || layout.across ? sideways(from, to) : downward(from, to);
  wide.setAttribute("d", path);
  drops.setAttribute("d", path);
  wide.setAttribute("stroke-width", thick(rate).toFixed(1));
  drops.setAttribute("stroke-width", rate > 0 ? "3.5" : "0");
  parts.ribbons.get(name).speed = rate > 0 ? 14 + 12 * Math.log10(1 + rate) : 0;
}

function sideways([x1, y1], [x2, y2]) {
  const middle = (x1 + x2) / 2;
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${middle.toFixed(1)} ${y1.toFixed(1)} ${middle.toFixed(1)} ${y2.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}

function downward([x1, y1], [x2, y2]) {
  const middle = (y1 + y2) / 2;
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${x1.toFixed(1)} ${middle.toFixed(1)} ${x2.toFixed(1)} ${middle.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}

function move(now) {
  requestAnimationFrame(move);
  if (still.matches || now - last < 1000 / DROPS_PER_S) return;
  const passed = Math.min(0.1, (now - last) / 1000);
  last = now;
  for (const ribbon of parts.ribbons.values()) {
    if (!ribbon.speed) continue;
    ribbon.at = ((ribbon.at ?? 0) + passed * ribbon.speed) % 18;
    ribbon.drops.setAttribute("stroke-dashoffset", (-ribbon.at).toFixed(2));
  }
}

function inWords(picture, reasons) {
  const { rates } = picture;
  const refused = reasons.map(([name, rate]) => `${figure(rate)} refused because ${because(name)}`).join(", ");
  const share = rates.arrived ? percent(clamp(rates.good / rates.arrived)) : "nothing";
  return `Per second ${figure(rates.arrived)} arrive, ${figure(rates.admitted)} run, ${figure(rates.good)} end good (${share} of arrivals)${refused ? `, ${refused}` : ""}.`;
}
