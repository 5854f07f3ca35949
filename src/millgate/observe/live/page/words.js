// Numbers as people read them; the same forms as the server's sentences.

/** A time in seconds: 40 ms, 1.2 s, 42 s, 3 min. */
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0005) return "0 s";
  if (value < 0.0995) return `${Math.round(value * 1000)} ms`;
  if (value < 9.95) return `${value.toFixed(1)} s`;
  if (value < 119.5) return `${Math.round(value)} s`;
  return value < 7170 ? `${Math.round(value / 60)} min` : `${Math.round(value / 3600)} h`;
}

/** A share of 1 in whole per cent. */
export function percent(share) {
  return `${Math.round(share * 100)} %`;
}

/** A rate per second or another small number, with three figures at most. */
export function figure(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${Math.round(value / 1e3)} k`;
  if (size >= 99.5 || Number.isInteger(value)) return String(Math.round(value));
  return value.toFixed(size >= 9.95 ? 0 : 1);
}

// What follows "refused because", as in the server's sentences (observe/live/banner.py).
const BECAUSE = {
  saturated: "no engine had room",
  queue_full: "the queue was full",
  displaced: "returning clients were due",
  too_late: "it would have been late",
  expired: "it waited too long",
  quota: "a quota was used up",
  tenant_limit: "the tenant was at its limit",
  retry_budget: "it was retried too often",
  no_engine: "no engine was up",
  no_lease: "the replica had no lease",
  draining: "the gate was draining",
  too_large: "it was too large",
  overloaded_gate: "the gate itself was too slow",
};

/** Why an attempt was refused, in words. */
export function because(reason) {
  return BECAUSE[reason] ?? reason;
}

/** A number with its sign; what rounds to nothing is 0. */
export function signed(value, digits = 1) {
  const rounded = Number(value.toFixed(digits));
  return rounded === 0 ? "0" : `${rounded > 0 ? "+" : "−"}${Math.abs(rounded).toFixed(digits)}`;
}

/** Hours, minutes and seconds in UTC of seconds since the epoch, as in the log. */
export function clock(at) {
  return new Date(at * 1000).toISOString().slice(11, 19);
}
