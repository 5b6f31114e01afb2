// Light, dark, or as the system says.
import { effect, signal } from "@preact/signals";

const STORED = "millpond.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export const theme = signal(document.documentElement.dataset.theme ?? "system");
export const isDark = signal(system.matches);

function apply() {
  const chosen = theme.value;
  const root = document.documentElement;
  if (chosen === "system") delete root.dataset.theme;
  else root.dataset.theme = chosen;
  isDark.value = chosen === "dark" || (chosen === "system" && system.matches);
}

effect(apply);
system.addEventListener("change", apply);

export function toggleTheme() {
  theme.value = isDark.value ? "light" : "dark";
  try {
    localStorage.setItem(STORED, theme.value);
  } catch {
    // It lasts until the page is closed.
  }
}
