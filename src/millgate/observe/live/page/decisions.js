// The last decisions: as they come, or, with a filter, asked for from everything that is kept.

import { keyed, make, say } from "./draw.js";
import { clock } from "./words.js";

const WORDS = {
  decisions: ["admit", "queue", "yield", "cancel", "ended"],
  refused: ["saturated", "queue_full", "displaced", "too_late", "expired", "quota", "tenant_limit", "retry_budget", "no_engine", "no_lease", "draining", "too_large", "overloaded_gate"],
  ended: ["good", "late", "client_gone", "engine_failed"],
};
const ASK_EVERY_MS = 2000;

const form = document.getElementById("filter");
const body = document.querySelector("#decisions tbody");
let asked = 0;
let newest = [];
let isForeign = false;

/** Fill the choices and listen to them. */
export function startDecisions() {
  const words = form.elements.word;
  words.append(new Option("everything", ""));
  for (const [name, choices] of Object.entries(WORDS)) {
    const group = make("optgroup");
    group.label = name;
    for (const word of choices) group.append(new Option(word, word));
    words.append(group);
  }
  for (const name of ["lane", "engine"]) form.elements[name].append(new Option("all", ""));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", refresh);
  form.addEventListener("reset", () => setTimeout(refresh)); // the fields are cleared after this event
}

/** Take the newest decisions of a picture, unless the reader asked for stillness or has a filter. */
export function showDecisions(picture) {
  offer("lane", picture.lanes.map((lane) => lane.name));
  offer("engine", picture.engines.map((engine) => engine.seen.name));
  newest = picture.decisions;
  if (form.elements.pause.checked) return;
  if (!filter().size) draw(newest);
  else if (performance.now() - asked > ASK_EVERY_MS) ask();
}

/** Draw all rows anew next time: a gate that was restarted counts its decisions from 1 again, and a row stands under its number. */
export function forgetDecisions() {
  isForeign = true;
}

function offer(name, choices) {
  const select = form.elements[name];
  const known = new Set([...select.options].map((option) => option.value));
  for (const choice of choices) if (!known.has(choice)) select.append(new Option(choice, choice));
}

function filter() {
  const wanted = new URLSearchParams();
  for (const name of ["word", "lane", "engine"]) if (form.elements[name].value) wanted.set(name, form.elements[name].value);
  const attempt = form.elements.attempt.value.trim();
  if (/^[1-9][0-9]{0,17}$/.test(attempt)) wanted.set("attempt", attempt);
  return wanted;
}

function refresh() {
  if (filter().size) ask();
  else draw(newest);
}

async function ask() {
  asked = performance.now();
  const mine = asked;
  try {
    const answer = await fetch(`api/decisions?${filter()}`);
    if (answer.ok && mine === asked) draw(await answer.json());
  } catch {
    // The feed's own connection tells that the gate is out of reach.
  }
}

function draw(rows) {
  document.getElementById("decisions-none").hidden = rows.length > 0;
  if (!rows.length || isForeign) body.replaceChildren();
  isForeign = false;
  keyed(body, rows.map((row) => String(row.number)), line).forEach((line, index) => {
    if (!line.childElementCount) line.append(...cells(rows[index]));
  });
}

// On a phone a row is laid out as a block, which would hide from screen readers that it is one: so it says it.
function line() {
  const made = make("tr");
  made.setAttribute("role", "row");
  return made;
}

function cell(classes, text) {
  const made = make("td", classes, text);
  made.setAttribute("role", "cell");
  return made;
}

function cells(row) {
  const time = make("time", "", clock(row.at));
  time.dateTime = new Date(row.at * 1000).toISOString();
  const when = cell("");
  when.append(time);
  const what = cell(`what ${row.kind} ${row.word}`, row.word && row.kind !== "ended" ? `${row.kind} ${row.word}` : row.word || row.kind);
  return [when, cell("number", String(row.attempt)), what, cell("wide", row.lane), cell("wide", row.engine), cell("", row.words)];
}
