// The tasks of a run as the tree they grew: each below the task that submitted it.
import { useState } from "preact/hooks";

import { now } from "../clock.js";
import { duration, plural } from "../format.js";
import { html } from "../html.js";
import { href } from "../router.js";
import { StateIcon } from "./icons.js";
import { Button, Labels } from "./parts.js";
import { Detail, times } from "./task_table.js";
import { Text } from "./text.js";

const PARENT = "task:";
const FIRST = 8;
const LIVE = new Set(["queued", "running"]);

// Roots first: [{task, below: [...]}]. A task whose parent is not among them is a root as well.
export function grown(tasks) {
  const known = new Map(tasks.map((task) => [task.id, { task, below: [] }]));
  const roots = [];
  for (const task of [...tasks].sort((a, b) => a.submitted_at - b.submitted_at)) {
    const by = task.submitted_by ?? "";
    const parent = by.startsWith(PARENT) ? known.get(by.slice(PARENT.length)) : undefined;
    (parent?.below ?? roots).push(known.get(task.id));
  }
  return roots;
}

function isLive({ task, below }) {
  return LIVE.has(task.status) || below.some(isLive);
}

function part(from, to, { start, end }, kind) {
  const whole = Math.max(end - start, 0.001);
  const at = (moment) => Math.min(Math.max((moment - start) / whole, 0), 1) * 100;
  return html`<span class=${`is-${kind}`} style=${{ left: `min(${at(from)}%, 100% - 2px)`, width: `${at(to) - at(from)}%` }}></span>`;
}

// The numbers beside it say the same to those who do not see it.
function Bar({ task, span }) {
  const end = task.finished_at ?? now.value;
  const started = task.started_at ?? end;
  return html`<span class="tree-bar wide-only" aria-hidden="true">
    ${part(task.submitted_at, started, span, "waiting")}
    ${task.started_at !== null && part(started, end, span, task.state)}
  </span>`;
}

function Node({ node, span }) {
  const { task, below } = node;
  return html`<li>
    <div class="tree-row" data-row>
      <span class="state-only"><${StateIcon} state=${task.state} /><span class="sr">${task.state}: </span></span>
      <a class="row-link strong" href=${href(["tasks", task.id])}><${Text} value=${task.function} /></a>
      ${task.attempt > 1 && html`<span class="tag" title=${`attempt ${task.attempt} of ${task.attempts}`}>${task.attempt}/${task.attempts}</span>`}
      ${task.key !== null && html`<span class="soft"><${Text} value=${task.key} /></span>`}
      <${Labels} labels=${task.labels} />
      <span class="tree-detail soft"><${Detail} task=${task} /></span>
      <${Bar} task=${task} span=${span} />
      <span class="num tree-time">${times(task)}</span>
    </div>
    ${below.length > 0 && html`<${Branches} nodes=${below} span=${span} />`}
  </li>`;
}

// What still runs comes first, and a long row of siblings is folded.
function Branches({ nodes, span, label }) {
  const [all, setAll] = useState(false);
  const sorted = [...nodes.filter(isLive), ...nodes.filter((node) => !isLive(node))];
  const shown = all ? sorted : sorted.slice(0, FIRST);
  const hidden = sorted.length - shown.length;
  return html`<ul class=${label ? "tree" : "branches"} aria-label=${label}>
    ${shown.map((node) => html`<${Node} key=${node.task.id} node=${node} span=${span} />`)}
    ${hidden > 0 && html`<li><${Button} quiet small onClick=${() => setAll(true)}>${plural(hidden, "more task")}</${Button}></li>`}
  </ul>`;
}

export function Tree({ run, tasks }) {
  const span = { start: run.opened_at, end: run.finished_at ?? now.value };
  return html`<div class="tree-box">
    <div class="tree-axis wide-only" aria-hidden="true"><span>opened</span><span>${run.finished_at === null ? "now" : "finished"}, ${duration(span.end - span.start)} later</span></div>
    <${Branches} nodes=${grown(tasks)} span=${span} label="Tasks, each below the one that submitted it" />
  </div>`;
}
