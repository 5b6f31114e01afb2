// One pool: what it does now and did lately, its keys or lanes, its limits and settings.
import { useEffect, useState } from "preact/hooks";

import { pause, purge, resize, resume } from "../actions.js";
import { get, poolPath } from "../api.js";
import { now } from "../clock.js";
import { age, count, duration, exact, moment, percent, plural, rate, share } from "../format.js";
import { html } from "../html.js";
import { changes, poolDetail, pools } from "../live.js";
import { useLoad } from "../load.js";
import { href } from "../router.js";
import { State } from "../ui/icons.js";
import {
  Ago,
  Button,
  Capacity,
  Empty,
  Facts,
  Heading,
  Note,
  Num,
  Panel,
  Problem,
  Skeleton,
  Stat,
} from "../ui/parts.js";
import { Plot } from "../ui/plot.js";
import { Json, Text } from "../ui/text.js";

const SPAN = 900;
const AT_ONCE = 4;
const LATEST = 5;
const SERIES = {
  throughput: [
    { label: "completed", colour: "--good", class: "is-good", fill: true },
    { label: "failed", colour: "--bad", class: "is-bad" },
  ],
  depth: [
    { label: "queued", colour: "--plan", class: "is-plan", fill: true },
    { label: "running", colour: "--run", class: "is-run" },
    { label: "limit", colour: "--muted", class: "is-muted", dash: true },
  ],
  times: [
    { label: "p50", colour: "--run", class: "is-run", fill: true },
    { label: "p90", colour: "--plan", class: "is-plan" },
    { label: "p99", colour: "--warn", class: "is-warn" },
  ],
};

// The whole past once, then only what is new.
function useHistory(name) {
  const [past, setPast] = useState(null);
  useEffect(() => {
    let over = false;
    let busy = false;
    let known = null;
    const read = async () => {
      if (busy || over) return;
      busy = true;
      try {
        const since = known?.at.at(-1);
        const seconds = since ? Math.min(Math.max(now.value - since + 1, 2), SPAN) : SPAN;
        const told = await get(poolPath(name, "/history"), { seconds });
        known = since ? joined(known, told, since) : told;
        if (!over) setPast(known);
      } catch {
        // The page itself says what is wrong; the next event tries again.
      } finally {
        busy = false;
      }
    };
    const unsubscribe = changes.subscribe(read);
    const timer = setInterval(read, AT_ONCE * 1000);
    return () => {
      over = true;
      unsubscribe();
      clearInterval(timer);
    };
  }, [name]);
  return past;
}

function joined(known, told, since) {
  const from = told.at.findIndex((at) => at > since);
  if (from < 0) return known;
  const oldest = told.at.at(-1) - SPAN;
  const drop = Math.max(known.at.findIndex((at) => at >= oldest), 0);
  const next = { pool: known.pool };
  for (const [field, values] of Object.entries(told)) {
    if (Array.isArray(values)) next[field] = [...known[field].slice(drop), ...values.slice(from)];
  }
  return next;
}

// Each point with those shortly before it: what ends in one second or the next is chance.
function smoothed(values) {
  return values.map((_, index) => {
    const some = values.slice(Math.max(index - LATEST + 1, 0), index + 1);
    return some.reduce((sum, one) => sum + one, 0) / some.length;
  });
}

function Plots({ past }) {
  if (!past?.at.length) {
    return html`<div class="plots is-waiting" aria-hidden="true">${[1, 2, 3, 4].map((n) => html`<div key=${n} class="plot"></div>`)}</div>`;
  }
  const { at } = past;
  const waits = [past.wait_p50, past.wait_p90, past.wait_p99];
  const runs = [past.run_p50, past.run_p90, past.run_p99];
  return html`<div class="plots">
    <${Plot} title="Throughput" series=${SERIES.throughput} at=${at} values=${[smoothed(past.completed), smoothed(past.failed)]} format=${rate} />
    <${Plot} title="Depth" series=${SERIES.depth} at=${at} values=${[past.queued, past.running, past.limit]} format=${count} whole />
    <${Plot} title="Wait" series=${SERIES.times} at=${at} values=${waits} format=${duration} />
    <${Plot} title="Run time" series=${SERIES.times} at=${at} values=${runs} format=${duration} />
  </div>`;
}

function Banner({ pool }) {
  if (pool.paused) {
    return html`<${Note} kind="warn" title="Paused.">Nothing new starts; what runs goes on. ${plural(pool.queued, "task waits", "tasks wait")}.</${Note}>`;
  }
  if (pool.held_until && pool.held_until > now.value) {
    return html`<${Note} kind="warn" title="Held back.">A handler was throttled: nothing starts for another ${age(pool.held_until - now.value)}.</${Note}>`;
  }
  if (pool.parked) {
    return html`<${Note} kind="warn" title="Parked.">No worker knows how to run ${plural(pool.parked, "task")}. <a href=${href(["tasks"], { pool: pool.name, status: "parked" })}>Show them</a></${Note}>`;
  }
  return null;
}

// Of the last seconds; the sparkline's own steps are over later.
function recently(past, pool) {
  const latest = past?.completed.slice(-LATEST) ?? [];
  if (!latest.length) return pool.recent.throughput;
  return latest.reduce((sum, one) => sum + one, 0) / latest.length;
}

function Figures({ pool, past, waits, runTimes }) {
  const spread = (one) => (one.samples ? `p90 ${duration(one.p90)} · p99 ${duration(one.p99)}` : "no sample yet");
  return html`<dl class="stats">
    <${Stat} label="Running" sub=${html`<span>of ${exact(pool.limit)}</span>`}>${count(pool.running)}</${Stat}>
    <${Stat} label="Queued" sub=${pool.bound === null ? `${count(pool.scheduled)} scheduled` : `of at most ${exact(pool.bound)}`}>${count(pool.queued)}</${Stat}>
    <${Stat} label="Oldest" sub="in the queue"><${Ago} at=${pool.oldest_queued_at} bare /></${Stat}>
    <${Stat} label="Throughput" sub=${`${rate(pool.recent.failures)} failing`}>${rate(recently(past, pool))}</${Stat}>
    <${Stat} label="Median wait" sub=${spread(waits)}>${waits.samples ? duration(waits.p50) : "–"}</${Stat}>
    <${Stat} label="Median run time" sub=${spread(runTimes)}>${runTimes.samples ? duration(runTimes.p50) : "–"}</${Stat}>
  </dl>`;
}

function Units({ pool, units, heldUnits }) {
  if (!units.length) return null;
  const kind = pool.lanes ? "lane" : "key";
  const fair = pool.queue.startsWith("fair");
  const running = units.reduce((total, one) => total + one.running, 0);
  const wanting = new Set(units.filter((one) => one.running + one.queued > 0).map((one) => one.share ?? one.unit));
  const due = wanting.size ? 1 / wanting.size : 0;
  const title = kind === "lane" ? "Lanes" : "Keys";
  const aside = fair && running ? `a fair share is ${percent(due)} of what runs` : `${plural(units.length, kind)}${units.length === 100 ? ", the first by name" : ""}`;
  return html`<${Panel} title=${title} aside=${aside} class="flush">
    <table class="table units">
      <thead>
        <tr><th scope="col">${kind === "lane" ? "Lane" : "Key"}</th><th scope="col" class="share-cell">Share<span class="wide-only"> of what runs</span></th><th scope="col" class="right">Running</th><th scope="col" class="right">Queued</th><th scope="col" class="act"><span class="sr">Actions</span></th></tr>
      </thead>
      <tbody>
        ${units.map((one) => html`<${UnitRow} key=${one.unit} pool=${pool} kind=${kind} one=${one} all=${running} due=${due} heldUntil=${one.held_until ?? heldUnits?.[one.unit]} />`)}
      </tbody>
    </table>
  </${Panel}>`;
}

function UnitRow({ pool, kind, one, all, due, heldUntil }) {
  const name = one.unit ?? "no key";
  const part = share(one.running, all);
  const unit = one.unit === null ? null : { kind, name: one.unit };
  const held = heldUntil && heldUntil > now.value;
  return html`<tr data-row>
    <td>
      <a class="row-link" href=${href(["tasks"], { pool: pool.name, key: kind === "key" ? one.unit : null })}><${Text} value=${name} /></a>
      ${one.paused && html` <span class="tag warn">paused</span>`}
      ${held && html` <span class="tag warn">held ${age(heldUntil - now.value)}</span>`}
      ${one.share !== null && one.share !== one.unit && html` <span class="soft"><${Text} value=${one.share} /></span>`}
    </td>
    <td class="share-cell">
      <div class="share">
        <${Capacity} running=${one.running} limit=${all} label=${`Share of ${name}`} />
        ${due > 0 && all > 0 && html`<span class="due" style=${{ left: `${due * 100}%` }} title=${`a fair share is ${percent(due)}`}></span>`}
      </div>
      <span class="num soft">${all ? percent(part) : "–"}</span>
    </td>
    <td class="right"><${Num} value=${one.running} /></td>
    <td class="right"><${Num} value=${one.queued} /></td>
    <td class="act">
      ${unit &&
      html`<${Button} icon=${one.paused ? "play" : "pause"} quiet small label=${`${one.paused ? "Resume" : "Pause"} ${kind} ${name}`} onClick=${() => (one.paused ? resume(pool.name, unit) : pause(pool.name, unit))} />`}
    </td>
  </tr>`;
}

function Limits({ pool, detail }) {
  return html`<${Panel} title="Limits">
    <${Facts}
      entries=${[
        ["Concurrency", html`<span class="num">${exact(pool.limit)}</span>${pool.limit !== pool.declared_limit ? html` <span class="soft">declared ${exact(pool.declared_limit)}</span>` : ""}`],
        ["Per key", pool.max_per_key === null ? null : exact(pool.max_per_key)],
        ["Lanes", pool.lanes === null ? null : exact(pool.lanes)],
        ["Order", `${pool.queue.replaceAll("_", " ")}${pool.ordered ? ", one at a time per key" : ""}`],
        ["Queue bound", pool.bound === null ? "none" : `${exact(pool.bound)}, then ${pool.on_full?.replaceAll("_", " ")}`],
        ["Kept", html`<span class="num">${plural(pool.kept, "ended task")}</span>, <span class="num">${count(pool.dead)}</span> dead`],
        ["Declared", moment(detail.created_at, now.value)],
      ]}
    />
    ${detail.budgets.map(
      (one) => html`<div key=${one.name} class="budget">
        <div class="budget-line"><span>Budget <b><${Text} value=${one.name} /></b></span><span class="num">${count(one.running)} / ${count(one.limit)}</span></div>
        <${Capacity} running=${one.running} limit=${one.limit} label=${`Budget ${one.name}`} />
        <p class="soft">shared by <${Text} value=${one.pools.join(", ")} /></p>
      </div>`,
    )}
  </${Panel}>`;
}

function Totals({ pool, callbacks }) {
  const link = (status, value, kind = "") =>
    html`<a href=${href(["tasks"], { pool: pool.name, status })} class=${`num ${value ? kind : "none"}`}>${count(value)}</a>`;
  const called = Object.entries(callbacks).filter(([, value]) => value > 0);
  return html`<${Panel} title="Since it was declared">
    <${Facts}
      entries=${[
        ["Completed", link("completed", pool.completed)],
        ["Failed", link("failed", pool.failed, "bad")],
        ["Cancelled", link("cancelled", pool.cancelled)],
        ["Refused", link("rejected", pool.rejected)],
        ["Callbacks", called.length ? called.map(([name, value]) => `${count(value)} ${name}`).join(", ") : null],
      ]}
    />
  </${Panel}>`;
}

function changed(before, after) {
  const names = new Set([...Object.keys(before ?? {}), ...Object.keys(after ?? {})]);
  return [...names].filter(
    (name) => JSON.stringify(before?.[name]) !== JSON.stringify(after?.[name]),
  );
}

function Settings({ detail }) {
  const overridden = changed(detail.declared, detail.config);
  const revisions = detail.revisions;
  return html`<${Panel} title="Settings" aside=${`revision ${detail.pool.revision}`}>
    ${overridden.length > 0 && html`<p class="soft spaced">An operator changed ${overridden.join(", ").replaceAll("_", " ")} from what the application declares.</p>`}
    <ol class="revisions" reversed>
      ${revisions.map((one, index) => {
        const differs = changed(revisions[index + 1]?.config, one.config);
        const first = index === revisions.length - 1;
        return html`<li key=${one.revision}>
          <span class="num">${one.revision}</span>
          ${first && revisions.length === 1
            ? html`<span class="soft">as it was declared first</span>`
            : first
              ? html`<span class="soft">the earliest that is kept</span>`
              : html`<span>${differs.map((name) => html`<code key=${name}>${name} ${shortly(revisions[index + 1].config[name])} → ${shortly(one.config[name])}</code> `)}</span>`}
        </li>`;
      })}
    </ol>
    <details class="fold"><summary>All settings in force</summary><${Json} value=${detail.config} label="Settings" /></details>
  </${Panel}>`;
}

function shortly(value) {
  const text = JSON.stringify(value) ?? "–";
  return text.length > 40 ? `${text.slice(0, 37)}…` : text;
}

export function Pool({ name }) {
  const loaded = useLoad(poolPath(name), {}, { live: false, every: 10_000 });
  const past = useHistory(name);
  const detail = loaded.data;
  if (!detail) {
    return html`<${Heading} title=${name} crumbs=${[["Pools", "#/pools"]]} />
      ${loaded.error ? html`<${Problem} error=${loaded.error} again=${loaded.again} />` : html`<${Skeleton} rows=${10} />`}`;
  }
  const pool = pools.value?.get(name) ?? detail.pool;
  const told = poolDetail.value?.name === name ? poolDetail.value : detail;
  return html`
    <${Heading} title=${name} crumbs=${[["Pools", "#/pools"]]} state=${html`<${State} state=${pool.state} />`}>
      <a class="button" href=${href(["tasks"], { pool: name })}>Tasks</a>
      ${pool.paused
        ? html`<${Button} icon="play" primary onClick=${() => resume(name)}>Resume</${Button}>`
        : html`<${Button} icon="pause" onClick=${() => pause(name)}>Pause</${Button}>`}
      <${Button} icon="resize" onClick=${() => resize(pool)}>Resize</${Button}>
      <${Button} icon="purge" danger onClick=${() => purge(pool)}>Purge</${Button}>
    </${Heading}>
    ${loaded.error && html`<${Problem} error=${loaded.error} again=${loaded.again} />`}
    <${Banner} pool=${pool} />
    <${Figures} pool=${pool} past=${past} waits=${told.waits} runTimes=${told.run_times} />
    <${Plots} past=${past} />
    <${Units} pool=${pool} units=${told.units} heldUnits=${detail.held_units} />
    ${!told.units.length && pool.completed + pool.queued + pool.running === 0 &&
    html`<${Empty} title="Nothing submitted yet" icon="tasks" command=${`await mp.pool("${name}").submit(function, ...)`}>Tasks of this pool appear here as soon as the first is stored.</${Empty}>`}
    <div class="columns">
      <${Limits} pool=${pool} detail=${detail} />
      <${Totals} pool=${pool} callbacks=${detail.callbacks} />
      <${Settings} detail=${detail} />
    </div>
  `;
}
