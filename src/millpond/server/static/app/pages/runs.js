// Runs: trees of tasks that grow as their handlers submit more, and how far each is.
import { cancelRun } from "../actions.js";
import { now } from "../clock.js";
import { ago, capital, count, duration, percent, plural, share } from "../format.js";
import { html } from "../html.js";
import { usePages, useLoad } from "../load.js";
import { href, route } from "../router.js";
import { State } from "../ui/icons.js";
import { Ago, Button, Empty, Facts, Heading, More, Note, Num, Panel, Problem, Skeleton, Stacked, Stat } from "../ui/parts.js";
import { Tree } from "../ui/tree.js";
import { Text } from "../ui/text.js";

const ENDS = ["completed", "failed", "cancelled", "rejected"];

function stateOf(run) {
  if (run.stopped) return "stopped";
  if (!run.finished) return "running";
  return run.ended.failed ? "failed" : "finished";
}

function ended(run) {
  return ENDS.reduce((sum, end) => sum + (run.ended[end] ?? 0), 0);
}

function Progress({ run }) {
  const parts = ENDS.map((end) => ({ kind: end, value: run.ended[end] ?? 0, label: end }));
  return html`<${Stacked} parts=${parts} total=${run.total} label=${`Progress of ${run.name ?? run.id}`} />`;
}

function Row({ run }) {
  return html`<tr data-row>
    <td>
      <a class="row-link strong" href=${href(["runs", run.id])}><${Text} value=${run.name ?? run.id} /></a>
      <span class="row-more"><${State} state=${stateOf(run)} /><span><${Text} value=${run.pool} /></span></span>
    </td>
    <td class="progress-cell">
      <${Progress} run=${run} />
      <span class="num soft">${percent(share(ended(run), run.total))}</span>
    </td>
    <td class="right"><span class="num">${count(ended(run))}<span class="soft"> / ${count(run.total)}</span></span></td>
    <td class="right wide-only"><${Num} value=${run.ended.failed ?? 0} kind="bad" /></td>
    <td class="right"><${Ago} at=${run.opened_at} bare /></td>
  </tr>`;
}

const WHICH = [["", "Open"], ["finished", "Finished"]];

export function Runs() {
  const status = route.value.query.get("status") === "finished" ? "finished" : "";
  const list = usePages("runs", { ...(status && { status }), limit: 50 });
  return html`
    <${Heading} title="Runs" />
    <nav class="tabs" aria-label="State">
      ${WHICH.map(([which, label]) => html`<a key=${which} href=${href(["runs"], which ? { status: which } : {})} aria-current=${status === which ? "true" : undefined}>${label}</a>`)}
    </nav>
    ${list.error && html`<${Problem} error=${list.error} again=${list.again} />`}
    ${!list.data && !list.error && html`<${Skeleton} rows=${8} />`}
    ${list.data && !list.stale && !list.items.length &&
    html`<${Empty} title=${status ? "No run has finished yet" : "No run is open"} icon="runs" command=${'async with pool.run("crawl") as run:\n    await run.submit(visit("/"))'}>A run counts every task that grew from it, and knows when the last one has ended.</${Empty}>`}
    ${list.items.length > 0 &&
    html`<div class="panel flush"><table class="table runs">
      <caption class="sr">Runs</caption>
      <thead><tr><th scope="col">Run</th><th scope="col" class="progress-cell">Progress</th><th scope="col" class="right">Ended</th><th scope="col" class="right wide-only">Failed</th><th scope="col" class="right">Age</th></tr></thead>
      <tbody>${list.items.map((run) => html`<${Row} key=${run.id} run=${run} />`)}</tbody>
    </table></div>`}
    <${More} list=${list} what="runs" />
  `;
}

export function Run({ name }) {
  const loaded = useLoad(`runs/${encodeURIComponent(name)}`);
  const crumbs = [["Runs", "#/runs"]];
  if (!loaded.data) {
    return html`<${Heading} title=${name} crumbs=${crumbs} />
      ${loaded.error ? html`<${Problem} error=${loaded.error} again=${loaded.again} />` : html`<${Skeleton} rows=${8} />`}`;
  }
  const { run } = loaded.data;
  const tasks = [...loaded.data.tasks, ...loaded.data.ended];
  const until = run.finished_at ?? now.value;
  return html`
    <${Heading} title=${run.name ?? run.id} crumbs=${crumbs} state=${html`<${State} state=${stateOf(run)} />`}>
      <a class="button" href=${href(["tasks"], { run: run.id, pool: run.pool })}>All its tasks</a>
      ${!run.finished && html`<${Button} icon="cancel" danger onClick=${() => cancelRun(run)}>Cancel</${Button}>`}
    </${Heading}>
    ${run.stopped && html`<${Note} kind="warn" title="Stopped."><${Text} value=${run.stopped} />${run.failed_task && html` · <a href=${href(["tasks", run.failed_task])}>the task that failed</a>`}</${Note}>`}
    <div class="panel run-progress"><${Progress} run=${run} /><span class="num">${percent(share(ended(run), run.total))}</span></div>
    <dl class="stats">
      <${Stat} label="Tasks" sub="so far">${count(run.total)}</${Stat}>
      <${Stat} label="Live" sub="queued or running">${count(run.live)}</${Stat}>
      ${ENDS.slice(0, 3).map((end) => html`<${Stat} key=${end} label=${capital(end)}><span class=${end === "failed" && run.ended.failed ? "bad" : ""}>${count(run.ended[end] ?? 0)}</span></${Stat}>`)}
      <${Stat} label=${run.finished ? "Took" : "For"} sub=${`opened ${ago(run.opened_at, now.value)}`}>${duration(until - run.opened_at)}</${Stat}>
    </dl>
    <${Panel} title="Tree" aside=${run.total > tasks.length ? `${count(tasks.length)} of ${plural(run.total, "task")}, live ones and the latest` : plural(run.total, "task")} class="flush">
      ${tasks.length ? html`<${Tree} run=${run} tasks=${tasks} />` : html`<p class="nothing">Its tasks have ended, and are not among the latest of their pool.</p>`}
    </${Panel}>
    <${Panel} title="Details"><${Facts} entries=${[["Id", html`<code>${run.id}</code>`], ["Pool", html`<a href=${href(["pools", run.pool])}><${Text} value=${run.pool} /></a>`], ["Finished", run.finished_at && html`<${Ago} at=${run.finished_at} />`]]} /></${Panel}>
  `;
}
