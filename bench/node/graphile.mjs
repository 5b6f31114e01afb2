// graphile-worker for bench/postgres.py, with the acts of bench/postgres_acts.py.
//
//   node graphile.mjs FOLDER CONTENDER ACT URL '{"count": 1000}'
//
// FOLDER holds node_modules. "graphile-worker localQueue" fetches jobs ahead and completes them by
// the batch, as its manual advises for speed; "graphile-worker default" does neither.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [folder, contender, act, url, text] = process.argv.slice(2);
const require = createRequire(`${folder}/`);
const { run, makeWorkerUtils, Logger } = require("graphile-worker");
const pg = require("pg");

const given = JSON.parse(text);
const CHUNK = 1000;
const quiet = new Logger(() => () => {});
const now = () => Number(process.hrtime.bigint());
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
// An exit does not wait for what is still to be written.
const say = (line) => new Promise((done) => process.stdout.write(`${line}\n`, done));
const utils = () => makeWorkerUtils({ connectionString: url, logger: quiet });

const lines = createInterface({ input: process.stdin });
const told = new Promise((resolve) => lines.once("line", resolve));
const ended = new Promise((resolve) => lines.once("close", resolve));

async function begin() {
  say("ready");
  await told;
}

let watching;
async function left() {
  watching ??= new pg.Pool({ connectionString: url, max: 1 });
  const found = await watching.query("SELECT count(*) FROM graphile_worker._private_jobs");
  return Number(found.rows[0].count);
}

async function store(tools, count) {
  for (let rest = count; rest > 0; rest -= CHUNK) {
    const length = Math.min(rest, CHUNK);
    const jobs = Array.from({ length }, () => ({ identifier: "noop", payload: { sent: now() } }));
    await tools.addJobs(jobs);
  }
}

function settings(concurrency) {
  const worker = { concurrentJobs: concurrency, maxPoolSize: 10 };
  if (contender !== "graphile-worker localQueue") return { worker };
  const localQueue = { size: Math.max(500, concurrency * 2) };
  return { worker: { ...worker, localQueue, completeJobBatchDelay: 0, failJobBatchDelay: 0 } };
}

function start(concurrency, handler) {
  return run({
    connectionString: url,
    concurrency,
    noHandleSignals: true,
    logger: quiet,
    taskList: { noop: async (payload) => handler(payload.sent) },
    preset: settings(concurrency),
  });
}

const acts = {
  async fill() {
    const tools = await utils();
    await tools.migrate();
    await begin();
    await store(tools, given.count);
    return { stored: await left() };
  },

  async submit() {
    const tools = await utils();
    await begin();
    const first = now();
    for (let i = 0; i < given.count; i++) await tools.addJob("noop", { sent: now() });
    return { seconds: (now() - first) / 1e9, stored: await left() };
  },

  async bulk() {
    const tools = await utils();
    await begin();
    const first = now();
    await store(tools, given.count);
    return { seconds: (now() - first) / 1e9, stored: await left() };
  },

  async beat() {
    const tools = await utils();
    await begin();
    for (let i = 0; i < given.count; i++) {
      await tools.addJob("noop", { sent: now() });
      await sleep(12 + Math.random() * 3);
    }
    return {};
  },

  async work() {
    const starts = [];
    const lags = [];
    let before;
    await begin();
    const deadline = now() + given.seconds * 1e9;
    await start(given.concurrency, (sent) => {
      const at = now();
      before ??= process.cpuUsage();
      starts.push(at);
      lags.push((at - sent) / 1e9);
    });
    while (starts.length < given.count && now() < deadline) await sleep(2);
    let empty = null;
    while (starts.length >= given.count && now() < deadline) {
      if ((await left()) === 0) {
        empty = now();
        break;
      }
      await sleep(2);
    }
    const used = process.cpuUsage(before);
    return {
      executed: starts.length,
      counted: Math.min(starts.length, given.count),
      first: starts[0] ?? null,
      last: starts[Math.min(starts.length, given.count) - 1] ?? null,
      empty,
      cpu: (used.user + used.system) / 1e6 / Math.max(starts.length, 1),
      lags: given.lags ? lags : [],
    };
  },

  async feed() {
    const tools = await utils();
    await begin();
    const since = now();
    let stored = 0;
    while (now() < since + given.seconds * 1e9) {
      const count = Math.floor((given.load * (now() - since)) / 1e9) - stored;
      await store(tools, count);
      stored += count;
      await sleep(100);
    }
    return { stored };
  },

  // As Tally in bench/acting.py: every 25th start of a second tells how long it had waited.
  async sustain() {
    const counts = new Array(Math.floor(given.seconds) + 2).fill(0);
    const lags = counts.map(() => []);
    await begin();
    const since = now();
    await start(given.concurrency, (sent) => {
      const at = now();
      const second = Math.min(Math.floor((at - since) / 1e9), counts.length - 1);
      counts[second] += 1;
      if (counts[second] % 25 === 1) lags[second].push(Math.round((at - sent) / 1e5) / 10);
    });
    await sleep(given.seconds * 1000);
    return { counts, lags };
  },

  async idle() {
    await start(given.concurrency, () => {});
    await begin();
    await ended;
    return {};
  },
};

try {
  await say(JSON.stringify(await acts[act]()));
} catch (error) {
  await say(JSON.stringify({ error: String(error) }));
}
process.exit(0);
