// Live events: one EventSource for the page, with all pools and what the page in view watches.
import { batch, computed, signal } from "@preact/signals";

import { session, url } from "./api.js";
import { tellTime } from "./clock.js";

const SHORTEST_RETRY = 1000;
const LONGEST_RETRY = 30_000;
const HIDDEN_FOR = 30_000;

// "connecting", "live", "lost" or "resting" (the tab is hidden).
export const connection = signal("connecting");

// Pools by name, as the latest events have them; null until the first event.
export const pools = signal(null);

// What changed last: lists read themselves anew when it moves.
export const changes = signal(0);

export const poolDetail = signal(null);
export const watchedTask = signal(null);

export const ownPools = computed(() =>
  [...(pools.value?.values() ?? [])].filter((one) => !one.system),
);
export const deadLetters = computed(() =>
  [...(pools.value?.values() ?? [])].reduce((sum, one) => sum + one.dead, 0),
);

let source = null;
let topics = { pool: [], task: [] };
let retryIn = SHORTEST_RETRY;
let retryTimer = 0;
let hiddenTimer = 0;

export function watch(wanted = {}) {
  const next = { pool: wanted.pool ?? [], task: wanted.task ?? [] };
  if (source && JSON.stringify(next) === JSON.stringify(topics)) return;
  topics = next;
  poolDetail.value = null;
  watchedTask.value = null;
  open();
}

function open() {
  close();
  if (!session.value?.authenticated) return;
  source = new EventSource(url("live", topics));
  source.addEventListener("open", () => {
    retryIn = SHORTEST_RETRY;
  });
  source.addEventListener("pools", (event) => {
    const told = JSON.parse(event.data);
    batch(() => {
      connection.value = "live";
      tellTime(told.at);
      const next = new Map(told.full ? [] : (pools.value ?? []));
      for (const one of told.items) next.set(one.name, one);
      pools.value = next;
      changes.value += 1;
    });
  });
  source.addEventListener("pool", (event) => {
    poolDetail.value = JSON.parse(event.data);
  });
  source.addEventListener("task", (event) => {
    watchedTask.value = JSON.parse(event.data);
  });
  source.addEventListener("error", () => {
    connection.value = "lost";
    // A browser comes back by itself unless the server refused it.
    if (source?.readyState === EventSource.CLOSED) retryLater();
  });
}

function retryLater() {
  clearTimeout(retryTimer);
  retryTimer = setTimeout(open, retryIn * (0.75 + Math.random() / 2));
  retryIn = Math.min(retryIn * 2, LONGEST_RETRY);
}

function close() {
  clearTimeout(retryTimer);
  source?.close();
  source = null;
}

export function stop() {
  close();
  pools.value = null;
}

// A tab that is not in view for half a minute costs the server nothing.
document.addEventListener("visibilitychange", () => {
  clearTimeout(hiddenTimer);
  if (document.hidden) {
    hiddenTimer = setTimeout(() => {
      close();
      connection.value = "resting";
    }, HIDDEN_FOR);
  } else if (!source) {
    connection.value = "connecting";
    open();
  }
});
