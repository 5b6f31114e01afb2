// Tasks by state, pool, function, key, label, error and age; redriven or cancelled as they are shown.
import { useEffect, useRef, useState } from "preact/hooks";

import { bulk } from "../actions.js";
import { capital, count } from "../format.js";
import { html } from "../html.js";
import { ownPools } from "../live.js";
import { usePages } from "../load.js";
import { href, replaceQuery, route } from "../router.js";
import { StateIcon } from "../ui/icons.js";
import { Button, Empty, Heading, More, Problem, Skeleton } from "../ui/parts.js";
import { TaskTable } from "../ui/task_table.js";

const STATES = ["queued", "scheduled", "parked", "running", "completed", "failed", "cancelled", "rejected"];
const AGES = [
  ["", "Any age"],
  ["60", "Older than 1 min"],
  ["600", "Older than 10 min"],
  ["3600", "Older than 1 h"],
  ["86400", "Older than 1 d"],
  ["604800", "Older than 7 d"],
];
const FIELDS = [
  ["function", "Function", "app.send_mail"],
  ["key", "Key", "tenant-7"],
  ["label", "Label", "name=value"],
  ["error", "Error", "TimeoutError"],
];
const NAMES = ["status", "pool", "function", "key", "label", "error", "min_age", "run"];
const TYPING = 300;
const REDRIVABLE = new Set(["failed", "cancelled"]);
const CANCELLABLE = new Set(["queued", "scheduled", "parked", "running"]);

function conditions(query) {
  return Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]).filter(([, value]) => value));
}

// In words, for the question before a bulk action.
function described(filter) {
  const { status, pool, min_age: minAge, ...rest } = filter;
  const parts = Object.entries(rest).map(([name, value]) => `${name} ${value}`);
  if (minAge) parts.push(AGES.find(([value]) => value === minAge)?.[1].toLowerCase() ?? `older than ${minAge} s`);
  const what = `${status ?? "All"} tasks of ${pool ? `pool ${pool}` : "all pools"}`;
  const text = parts.length ? `${what}, ${parts.join(", ")}.` : `${what}.`;
  return capital(text);
}

// How many tasks a tab shows, where live events say so: nothing is counted for it.
const COUNTED = {
  queued: (pool) => pool.queued - pool.scheduled - pool.parked,
  scheduled: (pool) => pool.scheduled,
  parked: (pool) => pool.parked,
  running: (pool) => pool.running,
  failed: (pool) => pool.dead,
};

function counted(state, { pool, ...others }) {
  if (!COUNTED[state] || Object.keys(others).length) return null;
  const pools = ownPools.value.filter((one) => !pool || one.name === pool);
  return pools.reduce((sum, one) => sum + Math.max(COUNTED[state](one), 0), 0) || null;
}

function States({ filter }) {
  const { status, ...rest } = filter;
  return html`<nav class="tabs" aria-label="State">
    <a href=${href(["tasks"], rest)} aria-current=${status ? undefined : "true"}>All</a>
    ${STATES.map(
      (state) =>
        html`<a key=${state} href=${href(["tasks"], { ...rest, status: state })} aria-current=${status === state ? "true" : undefined}><${StateIcon} state=${state} />${capital(state)}${counted(state, rest) && html` <span class="tab-count num">${count(counted(state, rest))}</span>`}</a>`,
    )}
  </nav>`;
}

// Fields change the address a moment after the last key, so that a list is not read for each letter.
function Filters({ filter, functions }) {
  const pending = useRef({});
  const timer = useRef(0);
  const [, redraw] = useState(0);
  const typed = { ...filter, ...pending.current };
  useEffect(() => () => clearTimeout(timer.current), []);
  const apply = () => {
    // The state may have been changed since by a click: only what was typed is added.
    const next = { ...conditions(route.value.query), ...pending.current };
    pending.current = {};
    replaceQuery(next);
  };
  const change = (name, soon) => (event) => {
    pending.current = { ...pending.current, [name]: event.target.value };
    redraw((count) => count + 1);
    clearTimeout(timer.current);
    timer.current = setTimeout(apply, soon ? 0 : TYPING);
  };
  const active = Object.keys(filter).filter((name) => name !== "status").length;
  const form = html`<form class="filters" role="search" aria-label="Filter tasks" onSubmit=${(event) => event.preventDefault()}>
    <label><span>Pool</span>
      <select value=${typed.pool ?? ""} onChange=${change("pool", true)}>
        <option value="">All pools</option>
        ${poolOptions(typed.pool).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select>
    </label>
    ${FIELDS.map(
      ([name, label, example], index) =>
        html`<label key=${name}><span>${label}</span><input type="search" name=${name} data-find=${index === 0 ? "" : undefined} list=${index === 0 ? "known-functions" : undefined} placeholder=${example} value=${typed[name] ?? ""} onInput=${change(name, false)} autocomplete="off" spellcheck="false" /></label>`,
    )}
    <datalist id="known-functions">${functions.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
    <label><span>Age</span>
      <select value=${typed.min_age ?? ""} onChange=${change("min_age", true)}>
        ${AGES.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}
      </select>
    </label>
    ${active > 0 && html`<${Button} quiet onClick=${() => replaceQuery(filter.status ? { status: filter.status } : {})}>Clear</${Button}>`}
  </form>`;
  return html`<details class="filter-fold" open=${active > 0 || matchMedia("(min-width: 48rem)").matches}>
    <summary>Filters${active > 0 ? ` (${active})` : ""}</summary>
    ${form}
  </details>`;
}

function poolOptions(chosen) {
  const names = ownPools.value.map((one) => one.name).sort();
  return chosen && !names.includes(chosen) ? [chosen, ...names] : names;
}

function Nothing({ filter }) {
  if (Object.keys(filter).length) {
    return html`<${Empty} title="No task fits" icon="search"><a href="#/tasks">Show all tasks</a>, or change the filter.</${Empty}>`;
  }
  return html`<${Empty} title="No tasks yet" icon="tasks" command=${'handle = await pool.submit(send_mail, "ada@example.org")'}>A task appears here as soon as it is stored.</${Empty}>`;
}

export function Tasks() {
  const filter = conditions(route.value.query);
  const list = usePages("tasks", { ...filter, limit: 50 });
  // Functions that were listed since the page was opened: what a filter may be completed with.
  const seen = useRef(new Set());
  for (const task of list.items) if (seen.current.size < 100) seen.current.add(task.function);
  const empty = list.data && !list.stale && !list.items.length && !list.next;
  const { status } = filter;
  const actions = html`
    ${(!status || REDRIVABLE.has(status)) &&
    html`<${Button} icon="redrive" disabled=${empty || !status} title=${status ? undefined : "Choose failed or cancelled first"} onClick=${() => bulk("redrive", filter, described(filter))}>Redrive…</${Button}>`}
    ${(!status || CANCELLABLE.has(status)) &&
    html`<${Button} icon="cancel" danger disabled=${empty || !status} title=${status ? undefined : "Choose a state first"} onClick=${() => bulk("cancel", filter, described(filter))}>Cancel…</${Button}>`}
  `;
  return html`
    <${Heading} title="Tasks">${actions}</${Heading}>
    <${States} filter=${filter} />
    <${Filters} filter=${filter} functions=${[...seen.current].sort()} />
    ${list.error && html`<${Problem} error=${list.error} again=${list.again} />`}
    ${!list.data && !list.error && html`<${Skeleton} rows=${12} />`}
    ${empty && html`<${Nothing} filter=${filter} />`}
    ${list.items.length > 0 &&
    html`<div class="panel flush"><${TaskTable} tasks=${list.items} withPool=${!filter.pool} busy=${list.stale} /></div>`}
    ${list.data?.partial && !list.items.length && list.next && html`<p class="soft centred">Nothing found among the latest tasks; load more to search on.</p>`}
    <${More} list=${list} />
  `;
}
