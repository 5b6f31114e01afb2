// One task from its submit to its end: why it does not run, its attempts, what followed from it.
import { useEffect, useState } from "preact/hooks";

import { cancelTask, redriveTask, runNow } from "../actions.js";
import { get } from "../api.js";
import { now } from "../clock.js";
import { duration, percent, plural, shortType } from "../format.js";
import { html } from "../html.js";
import { watchedTask } from "../live.js";
import { useLoad } from "../load.js";
import { href } from "../router.js";
import { Icon, State, StateIcon } from "../ui/icons.js";
import { Ago, Button, Copy, Facts, Heading, Labels, Moment, Note, Panel, Problem, Skeleton } from "../ui/parts.js";
import { TaskTable } from "../ui/task_table.js";
import { Code, Json, Text } from "../ui/text.js";

const ENDED = new Set(["completed", "failed", "cancelled", "rejected"]);

// What each event of the audit means, and the state whose icon stands for it.
const EVENTS = {
  submit: ["Submitted", "queued"],
  update: ["Changed while it waited", "queued"],
  refuse: ["Refused: the pool was full", "rejected"],
  claim: ["Claimed ahead by a worker", "queued"],
  lease: ["Started", "running"],
  evict: ["Dropped for a newer task", "rejected"],
  expire: ["Expired before it started", "failed"],
  stale: ["A late answer was ignored", "idle"],
  corrupt: ["Could not be read", "failed"],
  unknown: ["No worker knows its function", "parked"],
  cancel: ["Cancelled", "cancelled"],
  complete: ["Completed", "completed"],
  fail: ["Failed for good", "failed"],
  retry: ["Attempt failed; it is tried again", "held"],
  release: ["Given back by its worker", "queued"],
  lose: ["Its worker was lost; it is tried again", "held"],
  exhaust: ["Its worker was lost, and no attempt is left", "failed"],
  redrive: ["Queued again by an operator", "queued"],
};
const OUTCOMES = {
  running: "running",
  complete: "completed",
  fail: "failed",
  retry: "failed",
  lose: "failed",
  exhaust: "failed",
  cancel: "cancelled",
  release: "queued",
  ended: "queued",
};

// How an attempt ended, in a word.
const ENDINGS = {
  complete: "completed",
  fail: "failed",
  retry: "failed, tried again",
  lose: "lost its worker",
  exhaust: "lost its worker",
  cancel: "cancelled",
  release: "given back",
};

function Why({ task, why }) {
  // What an error or the state says already is not said twice.
  if (ENDED.has(task.status) && (why === task.status || task.error)) return null;
  const kind = { running: "run", failed: "bad", parked: "warn", scheduled: "plan" }[task.state] ?? "note";
  const title = ENDED.has(task.status) ? "How it ended" : task.status === "running" ? "Now" : "Why it is not running";
  return html`<${Note} kind=${kind} icon=${html`<${StateIcon} state=${task.state} />`} title=${title}><p><${Text} value=${why} /></p></${Note}>`;
}

// The end of an attempt, or its start where that is not known.
function endOf(attempt, now) {
  return attempt.ended_at ?? (attempt.outcome === "running" ? now : attempt.started_at);
}

// Waiting and running on one line, to scale; short stretches stay visible.
function Strip({ task, attempts }) {
  const end = task.finished_at ?? now.value;
  const stretches = [];
  let at = task.submitted_at;
  for (const one of attempts) {
    if (one.started_at > at) stretches.push({ kind: "wait", from: at, to: one.started_at });
    const until = endOf(one, end);
    stretches.push({ kind: OUTCOMES[one.outcome] ?? "failed", from: one.started_at, to: until, attempt: one.attempt });
    at = until;
  }
  if (!ENDED.has(task.status) && end > at) stretches.push({ kind: "wait", from: at, to: end });
  const whole = stretches.reduce((sum, one) => sum + one.to - one.from, 0);
  if (whole <= 0) return null;
  const running = attempts.reduce((sum, one) => sum + endOf(one, end) - one.started_at, 0);
  const spoken = !attempts.length
    ? `waits for ${duration(whole)}`
    : `${duration(whole)} in all, ${duration(running)} of it running in ${plural(attempts.length, "attempt")}`;
  return html`<div class="strip-box">
    <div class="strip" role="img" aria-label=${spoken}>
      ${stretches.map(
        (one, index) =>
          html`<span key=${index} class=${`is-${one.kind}`} style=${{ flexGrow: Math.max((one.to - one.from) / whole, 0.004) }} title=${`${one.kind === "wait" ? "waited" : `attempt ${one.attempt} ran`} ${duration(one.to - one.from)}`}></span>`,
      )}
    </div>
    <div class="strip-ends"><span><${Moment} at=${task.submitted_at} /></span><span>${spoken}</span><span>${task.finished_at ? html`<${Moment} at=${task.finished_at} />` : "now"}</span></div>
  </div>`;
}

// Whether a start, or the submit, is not among what was read.
function hasGaps({ history, history_complete: complete, task, attempts }) {
  if (complete) return false;
  if (attempts.some((one) => one.outcome === "ended")) return true;
  const starts = history.filter((one) => one.event === "lease").length;
  return starts < task.runs || !history.some((one) => one.event === "submit");
}

function Story({ story }) {
  const { history } = story;
  let before = null;
  return html`<${Panel} title="Story">
    <${Strip} task=${story.task} attempts=${story.attempts} />
    <ol class="timeline">
      ${history.map((one, index) => {
        const [text, state] = EVENTS[one.event] ?? [one.detail ?? one.kind, "idle"];
        const since = before === null ? null : one.at - before;
        before = one.at;
        return html`<li key=${index}>
          <${StateIcon} state=${state} />
          <div class="timeline-body">
            <span class="timeline-text">${text}${one.attempt && one.event === "lease" ? ` · attempt ${one.attempt}` : ""}</span>
            <span class="timeline-more">
              ${one.worker && html`<span>on <${Text} value=${one.worker} /></span>`}
              ${one.reason && html`<span><${Text} value=${one.reason} /></span>`}
              ${one.by && html`<span>by <${Text} value=${one.by} /></span>`}
              ${["retry", "lose"].includes(one.event) && one.due > one.at && html`<span>next try after ${duration(one.due - one.at)}</span>`}
              ${one.cause && html`<a href=${href(["tasks", one.cause])}>because of another task</a>`}
            </span>
          </div>
          <span class="timeline-time"><${Moment} at=${one.at} />${since !== null && html`<span class="soft num">+${duration(since)}</span>`}</span>
        </li>`;
      })}
    </ol>
    ${!history.length
      ? html`<p class="soft">The audit has nothing of it any more.</p>`
      : hasGaps(story) && html`<p class="soft after-list">Some of its story is missing: the audit is long, and only the parts around its times were read.</p>`}
  </${Panel}>`;
}

function Attempts({ attempts }) {
  if (!attempts.length) return null;
  return html`<${Panel} title="Attempts" aside=${plural(attempts.length, "attempt")} class="flush">
    <table class="table compact">
      <thead><tr><th scope="col">Attempt</th><th scope="col" class="wide-only">Worker</th><th scope="col" class="right">Waited</th><th scope="col" class="right">Ran</th></tr></thead>
      <tbody>
        ${attempts.map(
          (one, index) => html`<tr key=${index}>
            <td><span class="task-name"><${StateIcon} state=${OUTCOMES[one.outcome] ?? "failed"} /><span class="num">${one.attempt}</span> <span class="soft">${ENDINGS[one.outcome] ?? one.outcome}</span></span>
              ${one.reason && html`<span class="row-more"><span><${Text} value=${one.reason} /></span></span>`}</td>
            <td class="wide-only"><${Text} value=${one.worker ?? "–"} /></td>
            <td class="right num">${duration(one.waited)}</td>
            <td class="right num">${one.outcome === "ended" ? "–" : duration(one.ended_at === null ? now.value - one.started_at : one.ran)}</td>
          </tr>`,
        )}
      </tbody>
    </table>
  </${Panel}>`;
}

function Payload({ id }) {
  const [state, setState] = useState({ shown: false, payload: null, error: null });
  const show = async () => {
    try {
      const story = await get(`tasks/${id}`, { payload: 1 }, { exactNumbers: true });
      setState({ shown: true, payload: story.payload, error: null });
    } catch (error) {
      setState({ shown: false, payload: null, error });
    }
  };
  const hide = () => setState({ shown: false, payload: null, error: null });
  const { shown, payload, error } = state;
  const button = html`<${Button} icon="eye" small onClick=${shown ? hide : show} aria-expanded=${shown ? "true" : "false"}>${shown ? "Hide" : "Show payload"}</${Button}>`;
  return html`<${Panel} title="Payload" aside=${button}>
    ${error && html`<${Problem} error=${error} />`}
    ${!shown && !error && html`<p class="soft">Hidden until you ask. Entries whose names sound secret stay hidden.</p>`}
    ${shown &&
    html`<h3>Arguments</h3><${Json} value=${payload?.arguments ?? null} label="Arguments" />
      ${payload?.result !== null && payload?.result !== undefined && html`<h3>Result</h3><${Json} value=${payload.result} label="Result" />`}
      ${Object.keys(payload?.steps ?? {}).length > 0 && html`<h3>Steps done once</h3><${Json} value=${payload.steps} label="Steps" />`}`}
  </${Panel}>`;
}

function Details({ story }) {
  const { task } = story;
  const code = (value) => value && html`<code><${Text} value=${value} /></code>`;
  return html`<${Panel} title="Details">
    <${Facts}
      entries=${[
        ["Id", html`<span class="with-copy"><code>${task.id}</code><${Copy} text=${task.id} label="Copy the id" /></span>`],
        ["Pool", html`<a href=${href(["pools", task.pool])}><${Text} value=${task.pool} /></a>`],
        ["Key", task.key === null ? null : html`<a href=${href(["tasks"], { pool: task.pool, key: task.key })}><${Text} value=${task.key} /></a>`],
        ["Labels", Object.keys(task.labels).length ? html`<${Labels} labels=${task.labels} />` : null],
        ["Lane", task.lane],
        ["Priority", task.priority || null],
        ["Weight", task.weight > 1 ? task.weight : null],
        ["Attempts", `${task.attempt} of ${task.attempts}${task.runs > task.attempt ? `, ${task.runs} runs` : ""}`],
        ["Submitted", html`<${Ago} at=${task.submitted_at} />`],
        ["Submitted by", story.parent ? html`<a href=${href(["tasks", story.parent])}>task <span class="num">${story.parent}</span></a>` : html`<${Text} value=${task.submitted_by} />`],
        ["Due", task.state === "scheduled" ? html`<${Ago} at=${task.due_at} />` : null],
        ["Expires", task.expires_at ? html`<${Ago} at=${task.expires_at} />` : null],
        ["Timeout", task.timeout ? duration(task.timeout) : null],
        ["Worker", task.worker && html`<a href=${href(["workers"])}><${Text} value=${task.worker} /></a>`],
        ["Run", task.run && html`<a class="num" href=${href(["runs", task.run])}>${task.run}</a>`],
        ["On completion", code(story.on_complete)],
        ["Idempotency key", code(task.idempotency_key)],
        ["Trace", story.trace && (story.trace.url ? html`<a href=${story.trace.url} rel="noreferrer noopener" target="_blank">${story.trace.trace_id.slice(0, 16)}… <${Icon} name="external" label="opens in a new tab" size=${12} /></a>` : html`<span class="with-copy"><code>${story.trace.trace_id.slice(0, 16)}…</code><${Copy} text=${story.trace.trace_id} label="Copy the trace id" /></span>`)],
        ["Closure", task.closure ? "only the process that submitted it can run it" : null],
      ]}
    />
  </${Panel}>`;
}

export function Task({ name }) {
  const loaded = useLoad(`tasks/${encodeURIComponent(name)}`, {}, { live: false, every: 15_000 });
  const live = watchedTask.value?.id === name ? watchedTask.value : null;
  const mark = live ? `${live.status} ${live.attempt} ${live.runs} ${live.state}` : "";
  useEffect(() => {
    if (mark) loaded.again();
  }, [mark]);
  const story = loaded.data;
  const crumbs = [["Tasks", "#/tasks"]];
  if (!story) {
    return html`<${Heading} title="Task" crumbs=${crumbs} />
      ${loaded.error ? html`<${Problem} error=${loaded.error} again=${loaded.again} />` : html`<${Skeleton} rows=${10} />`}`;
  }
  const task = live?.function && story.task.status === live.status ? { ...story.task, ...live } : story.task;
  const canCancel = !ENDED.has(task.status) && !task.cancel_requested;
  const canRedrive = task.status === "failed" || task.status === "cancelled";
  return html`
    <${Heading} title=${task.function} crumbs=${[...crumbs, [task.pool, href(["tasks"], { pool: task.pool })]]} state=${html`<${State} state=${task.state} />`}>
      ${canRedrive && html`<${Button} icon="redrive" primary onClick=${() => redriveTask(task)}>Redrive</${Button}>`}
      ${task.state === "scheduled" && html`<${Button} icon="play" onClick=${() => runNow(task)}>Run now</${Button}>`}
      ${canCancel && html`<${Button} icon="cancel" danger onClick=${() => cancelTask(task)}>Cancel</${Button}>`}
      ${task.cancel_requested && !ENDED.has(task.status) && html`<span class="tag warn">cancel requested</span>`}
    </${Heading}>
    ${loaded.error && html`<${Problem} error=${loaded.error} again=${loaded.again} />`}
    <div class="with-side">
      <div class="stack">
        <${Why} task=${task} why=${story.why} />
        ${task.progress !== null && !ENDED.has(task.status) &&
        html`<div class="progress-line"><progress max="1" value=${task.progress} aria-label="Progress"></progress><span class="num">${percent(task.progress)}</span>${task.progress_text && html`<span class="soft"><${Text} value=${task.progress_text} /></span>`}</div>`}
        ${task.error && html`<${Panel} title=${task.status === "completed" ? "Error of an earlier attempt" : "Error"}>
          <p class="error-line"><b title=${task.error.type}><${Text} value=${shortType(task.error.type)} /></b> <${Text} value=${task.error.message} lines /></p>
          ${story.traceback && html`<details class="fold"><summary>Traceback</summary><${Code} text=${story.traceback} label="Traceback" /></details>`}
        </${Panel}>`}
        <${Story} story=${{ ...story, task }} />
        <${Attempts} attempts=${story.attempts} />
        ${story.follow_ups.length > 0 && html`<${Panel} title="Follow-ups" aside=${plural(story.follow_ups.length, "task")} class="flush"><${TaskTable} tasks=${story.follow_ups} caption="Follow-ups" /></${Panel}>`}
        <${Payload} id=${task.id} />
      </div>
      <div class="stack"><${Details} story=${{ ...story, task }} /></div>
    </div>
  `;
}
