// The keyboard: g and a letter goes to a page, j and k move through rows, / finds, ? helps.
import { signal } from "@preact/signals";

import { go, route } from "./router.js";
import { toggleTheme } from "./theme.js";

export const PLACES = [
  ["p", "Pools", ["pools"]],
  ["t", "Tasks", ["tasks"]],
  ["r", "Runs", ["runs"]],
  ["d", "Dead letters", ["dead"]],
  ["w", "Workers", ["workers"]],
  ["s", "Schedules", ["schedules"]],
  ["e", "Events", ["events"]],
  ["a", "Audit", ["audit"]],
];

export const OTHER_KEYS = [
  ["Ctrl K", "Go to a page, a pool or a task"],
  ["/", "Find: go to the filter of the page"],
  ["j", "Next row"],
  ["k", "Previous row"],
  ["Enter", "Open the row"],
  ["Esc", "Close, leave a field, or go up"],
  ["m", "Light or dark"],
  ["?", "This help"],
];

export const helpOpen = signal(false);
export const paletteOpen = signal(false);

const SEQUENCE = 1200;
let goingUntil = 0;

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") !== null;
}

function move(step) {
  const rows = [...document.querySelectorAll("main [data-row]")];
  if (!rows.length) return;
  const active = document.activeElement?.closest?.("[data-row]");
  const at = rows.indexOf(active);
  const next = at < 0 ? (step > 0 ? 0 : rows.length - 1) : at + step;
  const row = rows[Math.min(Math.max(next, 0), rows.length - 1)];
  const target = row.matches("a, button, [tabindex]") ? row : row.querySelector("a, button");
  target?.focus();
  row.scrollIntoView({ block: "nearest" });
}

function find() {
  const field = document.querySelector("main [data-find]");
  const folded = field?.closest("details:not([open])");
  if (folded) folded.open = true;
  field?.focus();
  field?.select?.();
}

function up() {
  const { path } = route.value;
  if (path.length > 1) go([path[0]]);
}

const ACTIONS = {
  "/": find,
  "?": () => {
    helpOpen.value = true;
  },
  j: () => move(1),
  k: () => move(-1),
  m: toggleTheme,
};

addEventListener("keydown", (event) => {
  if (event.altKey || event.defaultPrevented) return;
  // An open dialog keeps its keys, and the browser closes it with Escape.
  if (document.querySelector("dialog[open]")) return;
  if (event.ctrlKey || event.metaKey) {
    if (event.key !== "k" || event.shiftKey) return;
    event.preventDefault();
    paletteOpen.value = true;
    return;
  }
  if (event.key === "Escape") {
    if (isTyping(event.target)) event.target.blur();
    else if (document.activeElement?.closest("[data-row]")) document.activeElement.blur();
    else up();
    return;
  }
  if (isTyping(event.target)) return;
  if (performance.now() < goingUntil) {
    goingUntil = 0;
    const place = PLACES.find(([key]) => key === event.key);
    if (place) {
      event.preventDefault();
      go(place[2]);
    }
    return;
  }
  if (event.key === "g") {
    goingUntil = performance.now() + SEQUENCE;
    return;
  }
  const action = ACTIONS[event.key];
  if (action) {
    event.preventDefault();
    action();
  }
});
