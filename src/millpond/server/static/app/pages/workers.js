// Workers: where each runs, what it runs now, and until when it holds that.
import { now } from "../clock.js";
import { age, count, duration, plural, share } from "../format.js";
import { html } from "../html.js";
import { usePages } from "../load.js";
import { href } from "../router.js";
import { State } from "../ui/icons.js";
import { Empty, Heading, More, Problem, Skeleton } from "../ui/parts.js";
import { Text } from "../ui/text.js";

const SHOWN = 6;

function Lease({ worker }) {
  const left = worker.expires_at - now.value;
  const part = share(left, worker.lease);
  const low = part < 0.25;
  return html`<div class="lease">
    <div class=${`meter ${low ? "is-bad" : ""}`} role="meter" aria-label="Lease" aria-valuemin="0" aria-valuemax=${Math.round(worker.lease)} aria-valuenow=${Math.max(Math.round(left), 0)}><span style=${{ width: `${part * 100}%` }}></span></div>
    <span class="num soft">${left > 0 ? `lease ${age(left)}` : `expired ${age(-left)} ago`}</span>
  </div>`;
}

function Worker({ worker }) {
  const alive = worker.expires_at > now.value;
  const hidden = worker.running - Math.min(worker.holding.length, SHOWN);
  return html`<li class="panel worker" data-row tabindex="-1">
    <header>
      <div>
        <h2><${Text} value=${worker.id} /></h2>
        <p class="soft">${worker.host && html`<${Text} value=${worker.host} />`}${worker.pid !== null && html`<span> · pid <span class="num">${worker.pid}</span></span>`}${worker.version && html`<span> · ${worker.version}</span>`}</p>
      </div>
      <${State} state=${alive ? "alive" : "lost"} label=${alive ? (worker.running ? "working" : "idle") : "lost"} />
    </header>
    <${Lease} worker=${worker} />
    ${worker.holding.length
      ? html`<ul class="holding">
          ${worker.holding.slice(0, SHOWN).map(
            (one) => html`<li key=${one.id}>
              <a href=${href(["tasks", one.id])}><${Text} value=${one.function} /></a>
              <span class="soft"><${Text} value=${one.pool} />${one.key !== null && html` · <${Text} value=${one.key} />`}</span>
              <span class="num">${one.started_at === null ? "–" : duration(Math.max(now.value - one.started_at, 0))}</span>
            </li>`,
          )}
        </ul>`
      : html`<p class="soft holding-none">Runs nothing at this moment.</p>`}
    <footer class="soft">
      <span>${plural(worker.running, "task")} running${hidden > 0 ? `, ${hidden} not shown` : ""}</span>
      ${worker.ahead > 0 && html`<span>${count(worker.ahead)} held ahead</span>`}
      <span title=${worker.functions?.join("\n")}>${worker.closures_only ? "closures of its process only" : worker.functions === null ? "all functions" : plural(worker.functions.length, "function")}</span>
    </footer>
  </li>`;
}

export function Workers() {
  const list = usePages("workers", { limit: 60 });
  const running = list.items.reduce((sum, one) => sum + one.running, 0);
  return html`
    <${Heading} title="Workers" sub=${list.items.length ? `${plural(list.items.length, "worker")}, ${plural(running, "task")} running` : null} />
    ${list.error && html`<${Problem} error=${list.error} again=${list.again} />`}
    ${!list.data && !list.error && html`<${Skeleton} rows=${6} />`}
    ${list.data && !list.items.length &&
    html`<${Empty} title="No worker is connected" icon="workers" command="millpond worker app:mp">Tasks wait until a worker that knows their functions runs.</${Empty}>`}
    <ul class="cards">${list.items.map((worker) => html`<${Worker} key=${worker.id} worker=${worker} />`)}</ul>
    <${More} list=${list} what="workers" />
  `;
}
