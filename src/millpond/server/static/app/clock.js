// The time of the store: ages are counted by its clock, not by this machine's.
import { signal } from "@preact/signals";

let ahead = 0;

export const now = signal(Date.now() / 1000);

export function tellTime(storeTime) {
  if (typeof storeTime !== "number") return;
  ahead = storeTime - Date.now() / 1000;
  now.value = storeTime;
}

setInterval(() => {
  now.value = Date.now() / 1000 + ahead;
}, 1000);
