// Pages are named behind the #, so that the dashboard works below any path it is mounted at.
import { computed, signal } from "@preact/signals";

function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    path: path.split("/").filter(Boolean).map(decode),
    query: new URLSearchParams(query),
  };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const route = signal(read());
export const page = computed(() => route.value.path[0] ?? "pools");

addEventListener("hashchange", () => {
  route.value = read();
});

export function href(path, query = {}) {
  const parts = path.map(encodeURIComponent).join("/");
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") search.append(name, one);
    }
  }
  const text = search.toString();
  return `#/${parts}${text ? `?${text}` : ""}`;
}

export function go(path, query = {}) {
  location.hash = href(path, query);
}

// The same page with other conditions: the back button leaves the page, and not one letter.
export function replaceQuery(query) {
  history.replaceState(null, "", href(route.value.path, query));
  route.value = read();
}
