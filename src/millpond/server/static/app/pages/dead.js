// Dead letters, grouped by what went wrong.
import { bulk } from "../actions.js";
import { count, exact, plural, share, shortType } from "../format.js";
import { html } from "../html.js";
import { ownPools } from "../live.js";
import { useLoad } from "../load.js";
import { href, replaceQuery, route } from "../router.js";
import { Ago, Button, Empty, Heading, Problem, Skeleton } from "../ui/parts.js";
import { Text } from "../ui/text.js";

const LONGEST = 200;

// The type and the message up to its first placeholder: what the search compares.
function condition({ pool, function: called, type, message }) {
  const start = message.split("…")[0].trimEnd();
  const error = (start ? `${type}: ${start}` : type).slice(0, LONGEST);
  return { pool, status: "failed", function: called, error };
}

function Group({ group, most }) {
  const filter = condition(group);
  const about = `Tasks of ${group.function} in ${group.pool} that failed with ${filter.error}.`;
  return html`<li class="panel dead-group" data-row>
    <div class="dead-main">
      <h2><a class="row-link" href=${href(["tasks"], filter)} title=${group.type}><${Text} value=${shortType(group.type)} /></a></h2>
      <p class="dead-message"><${Text} value=${group.message} /></p>
      ${group.sample !== group.message && html`<p class="dead-sample" title="The latest of them">latest: <${Text} value=${group.sample} /></p>`}
      <p class="dead-where">
        <code><${Text} value=${group.function} /></code>
        <span>in <a href=${href(["pools", group.pool])}><${Text} value=${group.pool} /></a></span>
        <span>last <${Ago} at=${group.last_at} /></span>
        <span class="wide-only">first <${Ago} at=${group.first_at} /></span>
      </p>
    </div>
    <div class="dead-side">
      <span class="dead-count num">${count(group.count)}</span>
      <div class="meter is-bad" aria-hidden="true"><span style=${{ width: `${share(group.count, most) * 100}%` }}></span></div>
      <div class="dead-actions">
        <a class="button small" href=${href(["tasks", group.tasks[0]])}>Latest task</a>
        <${Button} icon="redrive" small label=${`Redrive ${shortType(group.type)} of ${group.function}`} onClick=${() => bulk("redrive", filter, about)}>Redrive…</${Button}>
      </div>
    </div>
  </li>`;
}

export function Dead() {
  const pool = route.value.query.get("pool") ?? "";
  const loaded = useLoad("dead", { pool });
  const groups = loaded.data?.items ?? [];
  const most = Math.max(...groups.map((one) => one.count), 1);
  return html`
    <${Heading} title="Dead letters" sub=${loaded.data && loaded.data.total > 0 ? `${plural(loaded.data.total, "task")} failed for good${loaded.data.partial ? `; grouped from the latest ${exact(loaded.data.scanned)}` : ""}` : null}>
      <label class="select"><span class="sr">Pool</span>
        <select data-find value=${pool} onChange=${(event) => replaceQuery({ pool: event.target.value })}>
          <option value="">All pools</option>
          ${ownPools.value.map((one) => one.name).sort().map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </label>
    </${Heading}>
    ${loaded.error && html`<${Problem} error=${loaded.error} again=${loaded.again} />`}
    ${!loaded.data && !loaded.error && html`<${Skeleton} rows=${6} />`}
    ${loaded.data && !groups.length &&
    html`<${Empty} title="No dead letters" icon="check" command="millpond dead">A task that fails for good, after its last attempt, is kept here until you redrive or forget it.</${Empty}>`}
    <ul class="dead-list">${groups.map((group) => html`<${Group} key=${`${group.pool} ${group.function} ${group.type} ${group.message}`} group=${group} most=${most} />`)}</ul>
  `;
}
