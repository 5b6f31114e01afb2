// The dashboard: a page for each place, and the frame around them.
import { render } from "preact";
import { useEffect } from "preact/hooks";

import { loadSession, session } from "./api.js";
import { html } from "./html.js";
import { paletteOpen } from "./keys.js";
import { stop, watch } from "./live.js";
import { Audit } from "./pages/audit.js";
import { Dead } from "./pages/dead.js";
import { Events } from "./pages/events.js";
import { Login } from "./pages/login.js";
import { Pool } from "./pages/pool.js";
import { Pools } from "./pages/pools.js";
import { Run, Runs } from "./pages/runs.js";
import { Schedules } from "./pages/schedules.js";
import { Task } from "./pages/task.js";
import { Tasks } from "./pages/tasks.js";
import { Workers } from "./pages/workers.js";
import { route } from "./router.js";
import { Dialogs } from "./ui/dialogs.js";
import { Empty, Problem } from "./ui/parts.js";
import { Palette } from "./ui/palette.js";
import { Shell } from "./ui/shell.js";
import { signal } from "@preact/signals";

const PAGES = {
  pools: [Pools, Pool],
  tasks: [Tasks, Task],
  runs: [Runs, Run],
  dead: [Dead],
  workers: [Workers],
  schedules: [Schedules],
  events: [Events],
  audit: [Audit],
};
const TITLES = {
  pools: "Pools",
  tasks: "Tasks",
  runs: "Runs",
  dead: "Dead letters",
  workers: "Workers",
  schedules: "Schedules",
  events: "Events",
  audit: "Audit",
};

const startError = signal(null);
let shownBefore = false;

function topicsOf([place, name]) {
  if (place === "pools" && name) return { pool: [name] };
  if (place === "tasks" && name) return { task: [name] };
  return {};
}

function Content() {
  const { path } = route.value;
  const [place = "pools", name] = path;
  const found = PAGES[place]?.[name === undefined ? 0 : 1];
  const where = path.join("/");
  useEffect(() => {
    watch(topicsOf(path));
    document.title = `${name ?? TITLES[place] ?? "Not found"} · Millpond`;
    scrollTo(0, 0);
    // The heading of the next page is read out; the first one the browser announces by itself.
    if (shownBefore) document.querySelector("[data-heading]")?.focus({ preventScroll: true });
    shownBefore = true;
  }, [where]);
  if (!found) {
    return html`<${Empty} title="There is no such page" icon="search">
      <a href="#/pools">Go to the pools</a>
    </${Empty}>`;
  }
  return html`<${found} key=${where} name=${name} />`;
}

function App() {
  if (startError.value) {
    return html`<main class="alone"><${Problem} error=${startError.value} again=${start} /></main>`;
  }
  if (!session.value) return null;
  if (!session.value.authenticated) {
    stop();
    return html`<${Login} /><${Dialogs} />`;
  }
  return html`<${Shell}><${Content} /></${Shell}>${paletteOpen.value && html`<${Palette} />`}<${Dialogs} />`;
}

async function start() {
  try {
    await loadSession();
    startError.value = null;
  } catch (error) {
    startError.value = error;
  }
}

await start();
render(html`<${App} />`, document.getElementById("app"));
