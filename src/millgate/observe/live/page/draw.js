// Elements and SVG shapes. Text is only ever set as text, styles only through properties: the page's policy
// allows nothing else, and what is shown can never become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Set text if it differs: an unchanged number costs nothing and does not disturb a selection. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make an element with classes and text. */
export function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

/** Make an SVG shape with attributes. */
export function shape(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text) element.textContent = text;
  return element;
}

/** Keep one child of `parent` for each key, in the order of the keys; `build(key)` makes a new one. */
export function keyed(parent, keys, build) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  return keys.map((key, index) => {
    let child = known.get(key);
    if (!child) {
      child = build(key);
      child.dataset.key = key;
    }
    known.delete(key);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
    if (index === keys.length - 1) for (const gone of known.values()) gone.remove();
    return child;
  });
}

/** Make a table row whose first cell heads it; `classes` are those of the cells. */
export function row(title, classes) {
  const line = make("tr");
  const head = make("th", "", title);
  head.scope = "row";
  line.append(head, ...classes.map((each) => make("td", each)));
  return line;
}

/** Make a bar with a fill, a part of others, and words beside it. */
export function bar() {
  const holder = make("div", "bar");
  const track = make("span", "track");
  track.setAttribute("aria-hidden", "true");
  track.append(make("span", "fill"), make("span", "other"), make("span", "mark"));
  track.lastChild.hidden = true;
  holder.append(track, make("span", "said"));
  return holder;
}

/** Set a bar: its share and that of others of the whole (0 to 1), how alarming it is (0 to 1), and its words. */
export function setBar(holder, { share, alarm = 0, more = 0, mark = null, words }) {
  const style = holder.firstChild.style;
  style.setProperty("--share", `${100 * clamp(share)}%`);
  style.setProperty("--more", `${100 * Math.min(clamp(more), 1 - clamp(share))}%`);
  style.setProperty("--alarm", `${Math.round(100 * clamp(alarm))}%`);
  holder.querySelector(".mark").hidden = mark === null;
  if (mark !== null) style.setProperty("--mark", `${100 * clamp(mark)}%`);
  say(holder.lastChild, words);
}

/** How alarming a share of a bound is: calm up to half of it, full alarm from nine tenths on. */
export function alarmOf(share) {
  return clamp((share - 0.5) / 0.4);
}

/** Keep a number within 0 and 1; what is no number is 0. */
export function clamp(value) {
  return Number.isFinite(value) ? Math.min(1, Math.max(0, value)) : value > 0 ? 1 : 0;
}
