// Connects to the feed and hands every picture to the parts of the page.

import { forgetDecisions, showDecisions, startDecisions } from "./decisions.js";
import { say } from "./draw.js";
import { showFlow, startFlow } from "./flow.js";
import { setHistory, showHistory, startHistory } from "./history.js";
import { showEngines, showLanes, showLittle, showReturns, showSessions } from "./tables.js";
import { startTheme } from "./theme.js";
import { clock } from "./words.js";

// Every level has a shape of its own beside its colour: a tick, a clock, a rising line, a triangle, a cross.
const SHAPES = {
  calm: "M10 1a9 9 0 1 0 0 18 9 9 0 0 0 0-18zm-1.4 13L4.8 10.200l1.500-1.500 2.300 2.300 5-5 1.500 1.500z",
  busy: "M10 1a9 9 0 1 0 0 18 9 9 0 0 0 0-18zm1 9.500-4 2.500-1-1.600 3-1.900V5h2z",
  warned: "M2 15 8 9l3 3 5-6h-3V4h6v6h-2V7l-6 7-3-3-5 5z",
  overloaded: "M10 1 0 19h20zM9 7h2v6H9zm0 7.500h2v2H9z",
  down: "M10 1a9 9 0 1 0 0 18 9 9 0 0 0 0-18zM6 4.600l4 4 4-4L15.400 6l-4 4 4 4-1.400 1.400-4-4-4 4L4.600 14l4-4-4-4z",
};
const RETRY_MS = 5000;
const STALE_MS = 3000;
// A connection that a sleeping machine or a proxy has lost ends without a word.
const DEAD_MS = 15000;
// A screen reader hears a new level at once and the same level's numbers only this often.
const SAY_AGAIN_MS = 20000;

let source = null;
let shownAt = 0;
let connectedAt = 0;
let said = { level: "", at: 0 };
let retry = 0;

const fresh = document.getElementById("fresh");

function setFresh(state, text) {
  fresh.dataset.state = state;
  say(fresh, text);
}

function show(picture) {
  shownAt = performance.now();
  setFresh("live", `live, ${clock(picture.at)} UTC`);
  showBanner(picture);
  showFlow(picture);
  showHistory(picture);
  showLanes(picture);
  showEngines(picture);
  showSessions(picture.sessions);
  showLittle(picture);
  showReturns(picture);
  showDecisions(picture);
}

function showBanner({ banner: { level, text }, host }) {
  const banner = document.getElementById("banner");
  banner.dataset.level = level;
  document.getElementById("banner-shape").setAttribute("d", SHAPES[level] ?? "");
  say(document.getElementById("banner-text"), text);
  document.title = `${level} · ${host} · Millgate`;
  say(document.getElementById("host"), host);
  if (said.level !== level || (performance.now() - said.at > SAY_AGAIN_MS && level !== "calm")) {
    said = { level, at: performance.now() };
    say(document.getElementById("said"), text);
  }
}

function connect() {
  disconnect();
  connectedAt = performance.now();
  source = new EventSource("api/live");
  source.addEventListener("history", (event) => {
    setHistory(JSON.parse(event.data));
    forgetDecisions();
  });
  source.addEventListener("picture", (event) => show(JSON.parse(event.data)));
  source.addEventListener("error", lost);
}

function disconnect() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
}

// The browser's own retry is replaced by ours: it gives up for ever on any answer that is not a stream.
async function lost() {
  disconnect();
  setFresh("lost", "not connected: these numbers are old");
  retry = setTimeout(connect, RETRY_MS);
  try {
    const answer = await fetch("api/decisions?most=1");
    if (answer.status === 401) location.assign("login");
  } catch {
    // Out of reach: the retry goes on.
  }
}

function watch() {
  if (source && performance.now() - shownAt > STALE_MS) setFresh("waiting", "no news for some seconds");
  if (source && performance.now() - Math.max(shownAt, connectedAt) > DEAD_MS) connect();
}

startTheme(document.getElementById("theme"));
startFlow(document.getElementById("flow"));
startHistory(document.getElementById("history"));
startDecisions();
connect();
setInterval(watch, 1000);
// A hidden page has no reader: it stops watching, and the gate stops painting for it.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
