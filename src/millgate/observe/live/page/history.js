// The last ten minutes: attempts per second by what became of them, and how long a newcomer would have waited.

import { make, say, shape } from "./draw.js";
import { figure, seconds } from "./words.js";

const SPAN_S = 600;
const WIDTH = 600;
const HEIGHT = 86;
// A step that is missing this long is a gap in the line, not a slope.
const GAP_S = 15;

const PLOTS = [
  {
    title: "attempts per second",
    lines: [
      { name: "arrived", field: "arrived_per_s", tone: "calm", area: true },
      { name: "good", field: "good_per_s", tone: "good" },
      { name: "refused", field: "refused_per_s", tone: "bad" },
    ],
    top: (value) => `top ${figure(value)} /s`,
  },
  { title: "expected wait", lines: [{ name: "wait of a newcomer", field: "wait_s", tone: "warn", area: true }], top: (value) => `top ${seconds(value)}` },
];

let points = [];
const drawn = [];

/** Build the empty plots. */
export function startHistory(holder) {
  for (const plot of PLOTS) {
    const box = make("div", "plot");
    const key = make("p");
    for (const line of plot.lines) key.append(make("span", `key key-${line.tone}`, line.name));
    const top = make("span", "top");
    key.append(top);
    const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    const paths = plot.lines.map((line) => ({
      line,
      area: line.area ? picture.appendChild(shape("path", { class: line.tone === "warn" ? "area bad" : "area" })) : null,
      path: picture.appendChild(shape("path", { class: `tone-${line.tone}` })),
    }));
    box.append(key, picture);
    holder.append(box);
    drawn.push({ plot, top, picture, paths });
  }
  const axis = make("div", "axis");
  axis.append(make("span", "", "10 min ago"), make("span", "", "5 min"), make("span", "", "now"));
  holder.append(axis);
}

/** Take the whole history, as it comes with a new connection. */
export function setHistory(history) {
  points = history;
}

/** Add the newest step, if it is new, and draw. */
export function showHistory(picture) {
  const step = picture.history;
  if (step && (!points.length || step.at > points[points.length - 1].at + 1)) points.push(step);
  points = points.filter((point) => picture.at - point.at <= SPAN_S);
  for (const { plot, top, picture: drawing, paths } of drawn) {
    const most = Math.max(...points.flatMap((point) => plot.lines.map((line) => point[line.field])), 0);
    say(top, plot.top(most));
    drawing.setAttribute("aria-label", `${plot.title} over ten minutes, ${plot.top(most)}`);
    for (const { line, area, path } of paths) {
      const { stroke, fill } = trace(line.field, most || 1, picture.at);
      path.setAttribute("d", stroke);
      if (area) area.setAttribute("d", fill);
    }
  }
}

function trace(field, most, now) {
  let stroke = "";
  let fill = "";
  let before = null;
  for (const point of points) {
    const x = (WIDTH * (1 - (now - point.at) / SPAN_S)).toFixed(1);
    const y = (HEIGHT - 2 - (HEIGHT - 6) * (point[field] / most)).toFixed(1);
    if (before !== null && point.at - before.at <= GAP_S) {
      stroke += `L${x} ${y}`;
      fill += `L${x} ${y}`;
    } else {
      if (before !== null) fill += `V${HEIGHT}Z`;
      stroke += `M${x} ${y}`;
      fill += `M${x} ${HEIGHT}V${y}`;
    }
    before = point;
  }
  return { stroke, fill: fill ? `${fill}V${HEIGHT}Z` : "" };
}
