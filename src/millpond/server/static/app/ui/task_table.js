// Tasks as rows: what, where it stands, whose, how old, how long.
import { now } from "../clock.js";
import { duration, percent, shortType } from "../format.js";
import { html } from "../html.js";
import { href } from "../router.js";
import { StateIcon } from "./icons.js";
import { Ago, Labels } from "./parts.js";
import { Text } from "./text.js";

export function times(task) {
  if (task.status === "running") {
    const done = task.progress === null ? "" : `${percent(task.progress)} · `;
    return `${done}${duration(Math.max(now.value - task.started_at, 0))}`;
  }
  if (task.ran !== null) return duration(task.ran);
  return "–";
}

export function Detail({ task }) {
  if (task.error && task.state !== "completed") {
    return html`<span class="row-error"><b title=${task.error.type}><${Text} value=${shortType(task.error.type)} /></b> <${Text} value=${task.error.message} /></span>`;
  }
  if (task.reason) return html`<span><${Text} value=${task.reason} /></span>`;
  if (task.state === "scheduled") return html`<span>due <${Ago} at=${task.due_at} /></span>`;
  if (task.progress_text) return html`<span><${Text} value=${task.progress_text} /></span>`;
  return null;
}

function Row({ task, withPool }) {
  return html`<tr data-row>
    <td class="task-cell">
      <span class="task-name">
        <span class="state-only"><${StateIcon} state=${task.state} /><span class="sr">${task.state}: </span></span>
        <a class="row-link strong" href=${href(["tasks", task.id])}><${Text} value=${task.function} /></a>
        ${task.attempt > 1 && html`<span class="tag" title=${`attempt ${task.attempt} of ${task.attempts}`}>${task.attempt}/${task.attempts}</span>`}
        ${task.key !== null && html`<span class="task-key phone-only"><${Text} value=${task.key} /></span>`}
        <${Labels} labels=${task.labels} />
        <span class="task-id num wide-only">${task.id}</span>
      </span>
      <span class="row-more">
        <${Detail} task=${task} />
      </span>
    </td>
    ${withPool && html`<td class="wide-only"><a class="plain" href=${href(["pools", task.pool])}><${Text} value=${task.pool} /></a></td>`}
    <td class="key-cell wide-only">${task.key === null ? html`<span class="none">–</span>` : html`<${Text} value=${task.key} />`}</td>
    <td class="right num" data-label="Run time">${times(task)}</td>
    <td class="right" data-label="Age"><${Ago} at=${task.submitted_at} bare /></td>
  </tr>`;
}

export function TaskTable({ tasks, withPool = true, caption = "Tasks", busy = false }) {
  return html`<table class=${`table tasks ${busy ? "is-busy" : ""}`} aria-busy=${busy ? "true" : undefined}>
    <caption class="sr">${caption}</caption>
    <thead>
      <tr>
        <th scope="col">Task</th>
        ${withPool && html`<th scope="col" class="wide-only pool-col">Pool</th>`}
        <th scope="col" class="wide-only key-col">Key</th>
        <th scope="col" class="right time-col">Run time</th>
        <th scope="col" class="right time-col">Age</th>
      </tr>
    </thead>
    <tbody>${tasks.map((task) => html`<${Row} key=${task.id} task=${task} withPool=${withPool} />`)}</tbody>
  </table>`;
}
