// All pools at a glance, kept current by live events.
import { useSignal } from "@preact/signals";

import { pause, resume } from "../actions.js";
import { count, plural, rate } from "../format.js";
import { html } from "../html.js";
import { useLoad } from "../load.js";
import { ownPools, pools } from "../live.js";
import { href, replaceQuery, route } from "../router.js";
import { State } from "../ui/icons.js";
import { Ago, Button, Capacity, Empty, Heading, Num, Problem, Skeleton, Stat } from "../ui/parts.js";
import { Spark } from "../ui/spark.js";
import { Text } from "../ui/text.js";

const ORDERS = {
  name: (a, b) => a.name.localeCompare(b.name),
  running: (a, b) => b.running - a.running,
  queued: (a, b) => b.queued - a.queued,
  oldest: (a, b) => (a.oldest_queued_at ?? Infinity) - (b.oldest_queued_at ?? Infinity),
  throughput: (a, b) => b.recent.throughput - a.recent.throughput,
  dead: (a, b) => b.dead - a.dead,
};
const COLUMNS = [
  ["name", "Pool", ""],
  ["running", "Running", ""],
  ["queued", "Queued", "right"],
  ["oldest", "Oldest", "right wide-only"],
  ["throughput", "Throughput, 5 min", "spark-cell"],
  ["dead", "Dead", "right"],
];

const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);

function Summary({ list }) {
  const running = sum(list, (one) => one.running);
  const limit = sum(list, (one) => one.limit);
  const stuck = list.filter((one) => ["paused", "held", "parked"].includes(one.state)).length;
  const failures = sum(list, (one) => one.recent.failures);
  return html`<dl class="stats">
    <${Stat} label="Running" sub=${`of ${count(limit)}`}>${count(running)}</${Stat}>
    <${Stat} label="Queued" sub=${`${count(sum(list, (one) => one.scheduled))} scheduled`}>${count(sum(list, (one) => one.queued))}</${Stat}>
    <${Stat} label="Throughput" sub="completed">${rate(sum(list, (one) => one.recent.throughput))}</${Stat}>
    <${Stat} label="Failing" sub=${`${count(sum(list, (one) => one.dead))} dead`}><span class=${failures ? "bad" : ""}>${rate(failures)}</span></${Stat}>
    <${Stat} label="Pools" sub=${stuck ? `${stuck} held up` : "none held up"}>${count(list.length)}</${Stat}>
  </dl>`;
}

const PLAIN = new Set(["fifo", "priority"]);

// What makes this pool unlike a plain one.
function kindOf(pool) {
  const parts = [];
  if (!PLAIN.has(pool.queue)) parts.push(pool.queue.replaceAll("_", " "));
  if (pool.lanes) parts.push(plural(pool.lanes, "lane"));
  if (pool.bound !== null) parts.push(`bound ${count(pool.bound)}`);
  if (pool.limit !== pool.declared_limit) parts.push(`resized from ${count(pool.declared_limit)}`);
  return parts.join(" · ");
}

function Row({ pool }) {
  const target = href(["pools", pool.name]);
  const stopped = pool.paused;
  return html`<tr data-row>
    <td class="pool-cell">
      <a class="row-link strong" href=${target}><${Text} value=${pool.name} /></a>
      <span class="row-more"><${State} state=${pool.state} /><span class="wide-only">${kindOf(pool)}</span></span>
    </td>
    <td class="running-cell" data-label="Running">
      <span class="num"><b>${count(pool.running)}</b><span class="soft"> / ${count(pool.limit)}</span></span>
      <${Capacity} running=${pool.running} limit=${pool.limit} label=${`Running in ${pool.name}`} />
    </td>
    <td class="right" data-label="Queued"><${Num} value=${pool.queued} /></td>
    <td class="right wide-only" data-label="Oldest"><${Ago} at=${pool.oldest_queued_at} bare /></td>
    <td class="spark-cell">
      <${Spark} recent=${pool.recent} />
      <span class="num spark-rate">${rate(pool.recent.throughput)}</span>
    </td>
    <td class="right" data-label="Dead"><${Num} value=${pool.dead} kind="bad" /></td>
    <td class="act">
      <${Button}
        icon=${stopped ? "play" : "pause"}
        quiet
        small
        label=${`${stopped ? "Resume" : "Pause"} ${pool.name}`}
        onClick=${() => (stopped ? resume(pool.name) : pause(pool.name))}
      />
    </td>
  </tr>`;
}

function SortHead({ order, descending }) {
  return html`<tr>
    ${COLUMNS.map(([key, label, name]) => {
      const here = order === key;
      return html`<th key=${key} scope="col" class=${name} aria-sort=${here ? (key === "name" || key === "oldest" ? "ascending" : "descending") : undefined}>
        <button type="button" class=${`sort ${here ? "here" : ""}`} onClick=${() => replaceQuery({ ...Object.fromEntries(route.value.query), order: key })}>${label}</button>
      </th>`;
    })}
    <th scope="col" class="act"><span class="sr">Actions</span></th>
  </tr>`;
}

export function Pools() {
  const first = useLoad("pools", {}, { live: false, enabled: pools.value === null });
  const list = pools.value ? ownPools.value : first.data?.items;
  const { query } = route.value;
  const order = ORDERS[query.get("order")] ? query.get("order") : "name";
  const wanted = query.get("find")?.toLowerCase() ?? "";
  const typed = useSignal(query.get("find") ?? "");
  if (!list) {
    return html`<${Heading} title="Pools" />
      ${first.error ? html`<${Problem} error=${first.error} again=${first.again} />` : html`<${Skeleton} rows=${8} />`}`;
  }
  if (!list.length) {
    return html`<${Heading} title="Pools" />
      <${Empty}
        title="No pools yet"
        command=${'mp.pool("mail", max_concurrent=4)      # in your application\nmillpond worker app:mp                 # run its tasks'}
      >A pool appears here as soon as an application that declares it has opened this store.</${Empty}>`;
  }
  const shown = list.filter((one) => one.name.toLowerCase().includes(wanted)).sort(ORDERS[order]);
  const find = (event) => {
    typed.value = event.target.value;
    replaceQuery({ ...Object.fromEntries(query), find: event.target.value });
  };
  return html`
    <${Heading} title="Pools">
      <label class="find">
        <span class="sr">Find a pool by name</span>
        <input type="search" data-find placeholder="Find a pool" value=${typed.value} onInput=${find} />
        <kbd aria-hidden="true">/</kbd>
      </label>
    </${Heading}>
    <${Summary} list=${list} />
    <div class="panel flush">
      <table class="table pools">
        <caption class="sr">${plural(shown.length, "pool")}</caption>
        <thead><${SortHead} order=${order} /></thead>
        <tbody>
          ${shown.map((pool) => html`<${Row} key=${pool.name} pool=${pool} />`)}
          ${!shown.length && html`<tr><td colspan="7" class="nothing">No pool has “<${Text} value=${wanted} />” in its name.</td></tr>`}
        </tbody>
      </table>
    </div>
  `;
}
