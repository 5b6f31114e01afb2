// What changes something: asked for, carried out, and told how it went.
import { signal } from "@preact/signals";

import { advice, get, patch, poolPath, post, session } from "./api.js";
import { exact, plural } from "./format.js";
import { refreshAll } from "./refresh.js";

// The question that is open, or null: {title, lines, action, danger, field, answer}.
export const question = signal(null);

export const toasts = signal([]);
let toastId = 0;

export function toast(text, kind = "good", detail = "") {
  const id = (toastId += 1);
  toasts.value = [...toasts.value, { id, text, kind, detail }];
  setTimeout(() => dismiss(id), kind === "bad" ? 12_000 : 5000);
}

export function dismiss(id) {
  toasts.value = toasts.value.filter((one) => one.id !== id);
}

export function failed(error) {
  toast(error.message, "bad", [error.code, advice(error)].filter(Boolean).join(" · "));
}

// Resolves to null when it is declined, else to the value of the question's field, or true.
export function ask(about) {
  return new Promise((resolve) => {
    question.value = {
      ...about,
      answer: (value) => {
        question.value = null;
        resolve(value);
      },
    };
  });
}

export function mayAct() {
  if (session.value?.actions) return true;
  toast("This server is read-only.", "note", "Start it with `millpond serve --allow-actions`.");
  return false;
}

async function carryOut(path, body, said, send = post) {
  try {
    const answer = await send(path, body);
    toast(typeof said === "function" ? said(answer) : said);
    refreshAll();
    return answer;
  } catch (error) {
    failed(error);
    return null;
  }
}

const unitBody = (unit) => (unit ? { [unit.kind]: unit.name } : {});
const named = (pool, unit) => (unit ? `${unit.kind} ${unit.name} of ${pool}` : pool);

export function pause(pool, unit = null) {
  if (!mayAct()) return null;
  return carryOut(poolPath(pool, "/pause"), unitBody(unit), `Paused ${named(pool, unit)}`);
}

export function resume(pool, unit = null) {
  if (!mayAct()) return null;
  return carryOut(poolPath(pool, "/resume"), unitBody(unit), `Resumed ${named(pool, unit)}`);
}

export async function resize(pool) {
  if (!mayAct()) return null;
  const limit = await ask({
    title: `Resize ${pool.name}`,
    lines: [
      `At most ${exact(pool.limit)} tasks run at a time now; the application declares ` +
        `${exact(pool.declared_limit)}. What runs already goes on.`,
    ],
    field: { label: "Tasks at a time", type: "number", value: pool.limit, min: 0, max: 1_000_000 },
    action: "Resize",
  });
  if (limit === null) return null;
  const body = { limit: Number(limit) };
  return carryOut(poolPath(pool.name, "/resize"), body, `${pool.name} now runs ${limit} at a time`);
}

export async function purge(pool) {
  if (!mayAct()) return null;
  if (!pool.queued) {
    toast(`Nothing to purge: no task waits in ${pool.name}.`, "note");
    return null;
  }
  const sure = await ask({
    title: `Purge ${pool.name}?`,
    lines: [
      `This cancels ${plural(pool.queued, "queued task")}. What runs already goes on.`,
      "A redrive brings cancelled tasks back, as long as they are kept.",
    ],
    action: `Cancel ${plural(pool.queued, "task")}`,
    decline: "Keep them",
    danger: true,
  });
  if (!sure) return null;
  return carryOut(poolPath(pool.name, "/purge"), {}, (answer) =>
    `Cancelled ${plural(answer.changed, "task")} of ${pool.name}`,
  );
}

export async function cancelTask(task) {
  if (!mayAct()) return null;
  const running = task.status === "running";
  const sure = await ask({
    title: "Cancel this task?",
    lines: [
      running
        ? "Its handler is asked to stop, and the task ends as cancelled."
        : "It is taken out of the queue and does not run.",
    ],
    action: "Cancel the task",
    decline: "Keep it",
    danger: true,
  });
  return sure ? carryOut(`tasks/${task.id}/cancel`, {}, "Cancelled the task") : null;
}

export function redriveTask(task) {
  if (!mayAct()) return null;
  return carryOut(`tasks/${task.id}/redrive`, {}, "Queued the task again");
}

export function runNow(task) {
  if (!mayAct()) return null;
  return carryOut(`tasks/${task.id}`, { delay: 0 }, "It starts as soon as its pool allows", patch);
}

export async function fire(schedule) {
  if (!mayAct()) return null;
  const sure = await ask({
    title: `Fire ${schedule.id} now?`,
    lines: ["It fires once, besides its own times."],
    action: "Fire now",
  });
  return sure ? carryOut(schedulePath(schedule, "fire"), {}, `Fired ${schedule.id}`) : null;
}

const schedulePath = (schedule, what) => `schedules/${encodeURIComponent(schedule.id)}/${what}`;

export function pauseSchedule(schedule) {
  if (!mayAct()) return null;
  return carryOut(schedulePath(schedule, "pause"), {}, `Paused ${schedule.id}`);
}

export function resumeSchedule(schedule) {
  if (!mayAct()) return null;
  return carryOut(schedulePath(schedule, "resume"), {}, `Resumed ${schedule.id}`);
}

export async function cancelRun(run) {
  if (!mayAct()) return null;
  const sure = await ask({
    title: `Cancel the run ${run.name ?? run.id}?`,
    lines: [`This cancels ${plural(run.live, "task")} that are queued or running.`],
    action: "Cancel the run",
    decline: "Keep it",
    danger: true,
  });
  return sure ? carryOut(`runs/${run.id}/cancel`, {}, "Cancelled the run") : null;
}

const VERBS = {
  redrive: ["Redrive", "queued again", "They are queued again, with all their attempts."],
  cancel: ["Cancel", "cancelled", "Queued ones do not run; running ones are asked to stop."],
};

// Counts what a filter shows, asks, and then does it to exactly those.
export async function bulk(action, filter, described) {
  if (!mayAct()) return null;
  const [verb, done, effect] = VERBS[action];
  let counted;
  try {
    counted = await get("tasks/count", filter);
  } catch (error) {
    failed(error);
    return null;
  }
  if (!counted.count) {
    toast(`No task to ${action}: nothing fits the filter any more.`, "note");
    return null;
  }
  const number = plural(counted.count, "task");
  const sure = await ask({
    title: `${verb} ${counted.more ? "the first " : ""}${number}?`,
    lines: [described, effect, counted.more ? "More tasks fit the filter: do it again for them." : ""],
    action: `${verb} ${number}`,
    decline: "Do nothing",
    danger: action === "cancel",
  });
  if (!sure) return null;
  const { label, system, ...rest } = filter;
  const body = {
    action,
    filter: { ...cleaned(rest), label: [label ?? []].flat(), before: counted.at, ended_before: counted.at },
    expect: counted.count,
  };
  return carryOut("tasks/bulk", body, (answer) =>
    `${plural(answer.changed, "task")} ${done}${answer.more ? "; there are more" : ""}`,
  );
}

function cleaned(filter) {
  const kept = Object.entries(filter).filter(([, value]) => value !== "" && value != null);
  return Object.fromEntries(
    kept.map(([name, value]) => [name, name.endsWith("_age") ? Number(value) : value]),
  );
}
