// After an action every list in view reads itself anew at once.
import { signal } from "@preact/signals";

export const refreshed = signal(0);

export function refreshAll() {
  refreshed.value += 1;
}
