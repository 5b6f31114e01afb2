// The audit: what happened, the latest first, and who ordered what.
import { millis } from "../format.js";
import { html } from "../html.js";
import { ownPools } from "../live.js";
import { usePages } from "../load.js";
import { href, replaceQuery, route } from "../router.js";
import { StateIcon } from "../ui/icons.js";
import { Empty, Heading, Moment, More, Problem, Skeleton } from "../ui/parts.js";
import { Text } from "../ui/text.js";

const ICONS = {
  submit: "queued",
  update: "queued",
  claim: "queued",
  dequeue: "running",
  drop: "rejected",
  retry: "held",
  settle: "completed",
  cancel: "cancelled",
  lease_expired: "held",
  control: "saturated",
};

const KINDS = [
  ["control", "orders of operators"],
  ["submit", "submits"],
  ["update", "changes of tasks"],
  ["claim", "claims"],
  ["dequeue", "starts"],
  ["settle", "ends"],
  ["retry", "retries"],
  ["cancel", "cancels"],
  ["drop", "drops"],
  ["lease_expired", "expired leases"],
];

function Row({ record }) {
  const what = record.event ?? record.detail ?? record.kind;
  const icon = record.after && record.kind === "settle" ? record.after : ICONS[record.kind];
  return html`<tr data-row tabindex="-1">
    <td class="audit-time"><${Moment} at=${record.at} /><span class="none num wide-only">${millis(record.at)}</span></td>
    <td>
      <span class="task-name"><${StateIcon} state=${icon ?? "idle"} /><b class=${record.kind === "control" ? "accent" : ""}>${what.replaceAll("_", " ")}</b>
        ${record.task && html`<a class="plain" href=${href(["tasks", record.task])}><${Text} value=${record.function || record.task} /></a>`}
        <span class="row-more">
        ${record.attempt ? html`<span>attempt ${record.attempt}</span>` : null}
        ${record.event && record.detail && html`<span><${Text} value=${record.detail} /></span>`}
        ${record.reason && html`<span><${Text} value=${record.reason} /></span>`}
        ${record.by && html`<span>by <b><${Text} value=${record.by} /></b></span>`}
        ${record.worker && html`<span class="wide-only">on <${Text} value=${record.worker} /></span>`}
        ${record.key && html`<span>key <${Text} value=${record.key} /></span>`}
        </span>
      </span>
    </td>
    <td class="wide-only"><a class="plain" href=${href(["pools", record.pool])}><${Text} value=${record.pool} /></a></td>
  </tr>`;
}

export function Audit() {
  const pool = route.value.query.get("pool") ?? "";
  const kind = route.value.query.get("kind") ?? "";
  const list = usePages("audit", { pool, kind, limit: 100 });
  const choose = (name) => (event) => replaceQuery({ pool, kind, [name]: event.target.value });
  return html`
    <${Heading} title="Audit">
      <label class="select"><span class="sr">Pool</span>
        <select data-find value=${pool} onChange=${choose("pool")}>
          <option value="">All pools</option>
          ${ownPools.value.map((one) => one.name).sort().map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </label>
      <label class="select"><span class="sr">Kind</span>
        <select value=${kind} onChange=${choose("kind")}>
          <option value="">All kinds</option>
          ${KINDS.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}
        </select>
      </label>
    </${Heading}>
    ${list.error && html`<${Problem} error=${list.error} again=${list.again} />`}
    ${!list.data && !list.error && html`<${Skeleton} rows=${12} />`}
    ${list.data && !list.items.length && !list.next &&
    html`<${Empty} title="Nothing happened yet" icon="audit" command="millpond audit --follow">Every submit, start, end and order is written down here.</${Empty}>`}
    ${list.items.length > 0 &&
    html`<div class="panel flush"><table class="table audit">
      <caption class="sr">Audit records, the latest first</caption>
      <thead><tr><th scope="col" class="audit-time">Time</th><th scope="col">What</th><th scope="col" class="wide-only pool-col">Pool</th></tr></thead>
      <tbody>${list.items.map((record) => html`<${Row} key=${`${record.position ?? ""} ${record.at} ${record.task} ${record.event}`} record=${record} />`)}</tbody>
    </table></div>`}
    <${More} list=${list} what="records" />
  `;
}
