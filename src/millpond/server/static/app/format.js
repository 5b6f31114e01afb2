// Numbers, moments and lengths of time as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const clockTime = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const dayTime = new Intl.DateTimeFormat("en-GB", {
  day: "numeric",
  month: "short",
  hour: "2-digit",
  minute: "2-digit",
});
const fullTime = new Intl.DateTimeFormat("en-GB", { dateStyle: "full", timeStyle: "long" });

export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) < 100_000 ? whole.format(value) : compact.format(value);
}

export function exact(value) {
  return whole.format(value ?? 0);
}

export function rate(perSecond) {
  if (!perSecond) return "0";
  if (perSecond < 0.1) return `${trimmed(perSecond * 60, 1)}/min`;
  if (perSecond < 10) return `${trimmed(perSecond, 1)}/s`;
  return `${count(perSecond)}/s`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const s = Math.max(seconds, 0);
  if (s === 0) return "0 s";
  if (s < 0.001) return "<1 ms";
  if (s < 0.9995) return `${Math.round(s * 1000)} ms`;
  if (s < 10) return `${trimmed(s, 1)} s`;
  return longDuration(Math.round(s));
}

// Ages tick once a second: no fractions.
export function age(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return longDuration(Math.max(Math.floor(seconds), 0));
}

function longDuration(s) {
  if (s < 60) return `${s} s`;
  if (s < 3600) return joined(Math.floor(s / 60), "m", s % 60, "s");
  if (s < 86_400) return joined(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "m");
  return joined(Math.floor(s / 86_400), "d", Math.floor((s % 86_400) / 3600), "h");
}

function joined(big, bigUnit, small, smallUnit) {
  return small ? `${big} ${bigUnit} ${small} ${smallUnit}` : `${big} ${bigUnit}`;
}

export function ago(at, now) {
  if (at === null || at === undefined) return "–";
  const seconds = now - at;
  if (Math.abs(seconds) < 1) return "just now";
  return seconds < 0 ? `in ${age(-seconds)}` : `${age(seconds)} ago`;
}

export function moment(at, now) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  const today = date.toDateString() === new Date(now * 1000).toDateString();
  return today ? clockTime.format(date) : dayTime.format(date);
}

// Three digits of the second, which order what happened within it.
export function millis(at) {
  return at === null || at === undefined ? "" : `.${String(Math.floor((at * 1000) % 1000)).padStart(3, "0")}`;
}

export function fullMoment(at) {
  return at === null || at === undefined ? "" : fullTime.format(new Date(at * 1000));
}

export function isoMoment(at) {
  return at === null || at === undefined ? "" : new Date(at * 1000).toISOString();
}

export function share(part, all) {
  return all > 0 ? Math.min(Math.max(part / all, 0), 1) : 0;
}

export function percent(fraction) {
  return `${Math.round(fraction * 100)} %`;
}

export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// The name of an error without its module, which is a hover away.
export function shortType(type) {
  return type.slice(type.lastIndexOf(".") + 1);
}

export function plural(number, one, many = `${one}s`) {
  return `${exact(number)} ${number === 1 ? one : many}`;
}

function trimmed(value, digits) {
  return String(Number(value.toFixed(digits)));
}
