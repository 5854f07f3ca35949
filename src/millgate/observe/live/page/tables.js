// Lanes, engines, Little's law, returning work: each is a table whose rows are kept and whose cells are set.

import { alarmOf, bar, keyed, make, row, say, setBar } from "./draw.js";
import { because, clock, figure, percent, seconds, signed } from "./words.js";

// Attempts for each request: clients that try three times each are a retry storm.
const STORM = 3;

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);
const rowsOf = (id) => document.querySelector(`#${id} tbody`);

function cellsOf(id, keys, classes, bars) {
  return keyed(rowsOf(id), keys, (key) => {
    const line = row(key, classes);
    for (const index of bars) line.children[index].append(bar());
    return line;
  }).map((line) => line.children);
}

function topReason(yielded) {
  const [first, second] = Object.entries(yielded).filter(([, rate]) => rate > 0).sort((one, other) => other[1] - one[1]);
  return `${second ? ", mostly" : ""}: ${because(first[0])}`;
}

/** Lanes: what waits, against the deadline, on how many streams, and how it goes. */
export function showLanes(picture) {
  const classes = ["number", "number wide", "", "", "number wide", "number wide", "number wide", "wide soft"];
  const names = picture.lanes.map((lane) => lane.name);
  cellsOf("lanes", names, classes, [3, 4]).forEach((cells, index) => {
    const lane = picture.lanes[index];
    const share = lane.deadline_s > 0 ? lane.expected_wait_s / lane.deadline_s : 0;
    const refused = sum(lane.rates.yielded);
    say(cells[1], String(lane.queued));
    cells[1].title = `${lane.queued_tokens} tokens`;
    say(cells[2], lane.queued ? seconds(lane.oldest_queued_s) : "–");
    setBar(cells[3].firstChild, {
      share, alarm: alarmOf(share), words: `${seconds(lane.expected_wait_s)} of ${seconds(lane.deadline_s)}`,
    });
    setStreams(cells[4].firstChild, lane);
    say(cells[5], figure(lane.rates.good));
    say(cells[6], refused ? `${figure(refused)} /s${topReason(lane.rates.yielded)}` : "0");
    cells[6].classList.toggle("alarming", refused > 0);
    setObjective(cells[7], lane.objective);
    say(cells[8], lane.window_s === null ? lane.newcomer : `${lane.newcomer}; batch window ${seconds(lane.window_s)}`);
  });
}

function setStreams(holder, lane) {
  const limit = lane.stream_limit || 1;
  const lent = lane.headroom > 0 ? Math.max(0, lane.running - lane.headroom) : 0;
  const beyond = lent ? `, ${lent} lent` : "";
  setBar(holder, {
    share: lane.running / limit,
    more: lane.other_running / limit,
    mark: lane.headroom > 0 ? lane.headroom / limit : null,
    words: `${lane.running} of ${lane.stream_limit}${beyond}`,
  });
  holder.title = lane.other_running ? `${lane.other_running} more run for other lanes` : "";
}

function setObjective(cell, objective) {
  const good = `${percent(objective.good_share)} of ${figure(objective.requests)}`;
  say(cell, objective.requests ? `${good} (${objective.target})` : "–");
  cell.classList.toggle("alarming", objective.is_burning);
  const hour = objective.long_requests ? `; ${percent(objective.long_good_share)} over the hour` : "";
  const refused = objective.refused ? `, ${figure(objective.refused)} of them refused` : "";
  const times = promise("first token", objective.ttft) + promise("time per token", objective.tpot);
  const said = objective.advice.replace(/\.$/, "") || `good of the requests of the last 5 min${refused}${hour}`;
  cell.title = `${said}; ${objective.target} is promised${times}`;
}

/** "; first token p99 1.2 s of 2.0 s": what was measured at the promised quantile, and what is promised. */
function promise(what, told) {
  return told ? `; ${what} ${told.quantile} ${seconds(told.measured_s)} of ${seconds(told.promised_s)}` : "";
}

/** Engines: load against limit, memory, learned speed, and the engine's own counts. */
export function showEngines(picture) {
  const classes = ["", "", "number", "number wide", "number wide", "number wide", "number wide"];
  const names = picture.engines.map((engine) => engine.seen.name);
  cellsOf("engines", names, classes, [1, 2]).forEach((cells, index) => {
    const { seen, lately, gap_deviation_s: deviation } = picture.engines[index];
    setEngineName(cells[0], seen);
    const share = seen.limit ? seen.running / seen.limit : 0;
    const leaving = seen.departing ? `, ${seen.departing} leaving` : "";
    setBar(cells[1].firstChild, { share, words: `${seen.running} of ${seen.limit}${leaving}` });
    setMemory(cells[2].firstChild, seen);
    setPace(cells[3], seen, lately, deviation);
    say(cells[4], seconds(seen.expected_ttft_s));
    const cached = lately === null ? null : lately.prefix_hit_share;
    say(cells[5], cached === null ? "unknown" : percent(cached));
    cells[5].classList.toggle("soft", cached === null);
    say(cells[6], figure(seen.drain_per_s));
    const known = seen.seen_running !== null;
    const queue = seen.seen_waiting ? ` + ${seen.seen_waiting} waiting` : "";
    say(cells[7], known ? `${seen.seen_running} running${queue}` : "unknown");
    cells[7].classList.toggle("soft", !known);
  });
}

/** Sessions between and in their turns, the memory that they take, and how right the predictions of cached tokens are. */
export function showSessions({ live, memory_share: memory, found_share: found }) {
  const line = document.getElementById("sessions");
  line.hidden = !live && found === null;
  const sessions = live === 1 ? "1 live session takes" : `${figure(live)} live sessions take`;
  const taken = `${sessions} ${memory === null ? "an unknown part" : percent(memory)} of the engines’ KV memory.`;
  say(line, found === null ? taken : `${taken} Of predicted cached tokens ${percent(found)} were found.`);
}

// What was measured lately, or what is expected where nothing was streamed. A spread beyond half the mean is a stutter:
// preemption, or prompts in the way.
function setPace(cell, seen, lately, deviation) {
  const expected = `${seconds(seen.expected_tpot_s)} expected at the present load`;
  const measured = lately !== null && lately.gap_mean_s !== null;
  say(cell, measured ? `${seconds(lately.gap_mean_s)} ± ${seconds(deviation)}` : seconds(seen.expected_tpot_s));
  cell.title = measured ? expected : `${expected}; nothing was streamed lately`;
  cell.classList.toggle("soft", !measured);
  cell.classList.toggle("uneven", measured && deviation > 0.5 * lately.gap_mean_s);
}

function setEngineName(cell, seen) {
  if (cell.childElementCount === 0) {
    cell.textContent = "";
    cell.append(make("span", "state"), make("span", "", seen.name), make("span", "up-down"));
  }
  const account = seen.account;
  const trouble = !seen.up ? "down" : account?.breaker_open ? "breaker open" : account?.paused_s ? "paused" : seen.silent_s ? "silent" : "";
  cell.children[0].classList.toggle("down", trouble !== "");
  const role = seen.role === "unified" ? "" : seen.role;
  cell.children[2].classList.toggle("alarming", trouble !== "");
  say(cell.children[2], [role, trouble].filter(Boolean).join(", "));
}

function setMemory(holder, seen) {
  const share = seen.seen_kv_share ?? (seen.kv_limit ? seen.kv_tokens / seen.kv_limit : null);
  const reserved = seen.kv_limit ? `${figure(seen.kv_tokens)} of ${figure(seen.kv_limit)}` : `${figure(seen.kv_tokens)} tokens`;
  setBar(holder, {
    share: share ?? 0, alarm: share === null ? 0 : alarmOf(share - 0.1),
    words: seen.seen_kv_share === null ? reserved : `${percent(seen.seen_kv_share)} used`,
  });
  holder.title = `${reserved} reserved`;
}

/** Little's law by lane, the early warning by pool, and its alarm in words. */
export function showLittle(picture) {
  const stays = picture.lanes.flatMap((lane) => staysOf(lane.name, lane.little, lane));
  if (picture.lanes.length > 1) stays.push(...staysOf("all lanes", picture.little, null));
  const classes = ["number", "number", "number", "number", "number", "number wide"];
  // A name may be any text, so its key is not made of it alone.
  const keys = stays.map((stay, index) => `${index} ${stay.name}`);
  cellsOf("little", keys, classes, []).forEach((cells, index) => setStay(cells, stays[index]));
  showPools(picture);
  showAlarms(picture);
}

// The whole stay, and its two parts below it; `lane` is null for all lanes together.
function staysOf(name, { whole, queue, engine }, lane) {
  return [
    { name, law: whole, lane },
    { name: "in the queue", law: queue, part: true },
    { name: "on engines", law: engine, part: true },
  ];
}

function setStay(cells, { name, law, lane, part = false }) {
  say(cells[0], name);
  cells[0].parentElement.classList.toggle("part", part);
  say(cells[1], figure(law.mean_attempts));
  say(cells[2], figure(law.entered_per_s));
  say(cells[3], law.completed ? seconds(law.mean_stay_s) : "–");
  say(cells[4], percent(law.residual));
  cells[4].classList.toggle("alarming", Math.abs(law.residual) > 0.1 && law.mean_attempts > 1);
  say(cells[5], lane ? `${signed(lane.trend_per_s)} /s` : "");
  say(cells[6], lane ? `${signed(lane.acceleration_per_s2, 2)} /s²` : "");
}

function showPools(picture) {
  const keys = picture.pools.map((pool) => (pool.engines.length > 2 ? `${pool.engines[0]} and ${pool.engines.length - 1} more` : pool.engines.join(", ")));
  const classes = ["number", "number", "number wide", "number wide", "number"];
  cellsOf("pools", keys, classes, []).forEach((cells, index) => {
    const { signals } = picture.pools[index];
    say(cells[1], `${percent(signals.load)}`);
    cells[1].title = signals.calm_load < 1 ? `usually ${percent(signals.calm_load)}` : "at or above capacity for as long as is known";
    cells[1].classList.toggle("alarming", signals.load > 1);
    say(cells[2], percent(signals.occupancy));
    say(cells[3], `${signed(100 * signals.trend)} % /s`);
    say(cells[4], `${signed(100 * signals.acceleration)} %`);
    say(cells[5], signals.time_to_full_s === null ? "never" : seconds(signals.time_to_full_s));
  });
}

function showAlarms(picture) {
  const raised = picture.pools.flatMap((pool) => pool.alarms);
  const said = raised.map((alarm) => ({ raised: true, head: `Alarm (${alarm.signal}) since ${clock(alarm.since)} UTC`, words: alarm.words }));
  if (!said.length) {
    const { cleared } = picture;
    const head = cleared ? `No alarm; the last one, over since ${clock(cleared.since)} UTC, said:` : "No alarm";
    said.push({ raised: false, head, words: cleared ? cleared.words : "" });
  }
  const holder = document.getElementById("alarms");
  keyed(holder, said.map((_, index) => String(index)), () => {
    const line = make("p", "alarm");
    line.append(make("b"), make("span"));
    return line;
  }).forEach((line, index) => {
    line.classList.toggle("raised", said[index].raised);
    say(line.children[0], said[index].head);
    say(line.children[1], said[index].words);
  });
}

/** Work that comes back, and how often each tenant asks for a request. */
export function showReturns(picture) {
  const { retries, hints_kept: kept, hints_followed: followed } = picture.returns;
  const written = picture.good_output_tokens + picture.wasted_output_tokens;
  const facts = {
    "attempts per request, last minute": retries.amplification_1m.toFixed(2),
    "hints kept": followed ? `${percent(kept / followed)} of ${figure(followed)}` : "–",
    "back before their hint": figure(retries.early),
    "expected back": figure(retries.appointments),
    "output tokens wasted": written ? percent(picture.wasted_output_tokens / written) : "–",
  };
  const list = document.getElementById("returns");
  keyed(list, Object.keys(facts), (name) => {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd"));
    return pair;
  }).forEach((pair, index) => say(pair.lastChild, Object.values(facts)[index]));
  showTenants(picture.tenants);
  showModels(picture.models);
}

function showTenants(tenants) {
  document.getElementById("tenants").hidden = tenants.length < 2;
  if (tenants.length < 2) return;
  const names = tenants.map(({ served }) => (served.name === "-" ? "(no name)" : served.name));
  const classes = ["number wide", "number", "number", "number wide", "", "number"];
  cellsOf("tenants", names, classes, [5]).forEach((cells, index) => {
    const { served, tokens_share: share, good_share: good, amplification } = tenants[index];
    say(cells[1], figure(served.attempts));
    say(cells[2], figure(served.yields));
    say(cells[3], served.judged ? percent(good) : "–");
    say(cells[4], seconds(served.ttft_p95_s));
    setBar(cells[5].firstChild, { share, words: percent(share) });
    say(cells[6], amplification === null ? "–" : amplification.toFixed(2));
    cells[6].classList.toggle("alarming", amplification !== null && amplification >= STORM);
  });
}

function showModels(models) {
  document.getElementById("models").hidden = models.length < 2;
  if (models.length < 2) return;
  cellsOf("models", models.map((model) => model.name || "(no name)"), ["number", ""], [2]).forEach((cells, index) => {
    say(cells[1], figure(models[index].prompt_tokens));
    setBar(cells[2].firstChild, { share: models[index].prefix_hit_share, words: percent(models[index].prefix_hit_share) });
  });
}
