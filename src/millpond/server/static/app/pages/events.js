// Triggers, the events they are for, and what each made of one.
import { useState } from "preact/hooks";

import { get } from "../api.js";
import { html } from "../html.js";
import { usePages } from "../load.js";
import { href, route } from "../router.js";
import { State } from "../ui/icons.js";
import { Ago, Empty, Heading, More, Num, Problem, Skeleton } from "../ui/parts.js";
import { Text } from "../ui/text.js";

function Triggers() {
  const list = usePages("triggers", {});
  return html`
    ${list.error && html`<${Problem} error=${list.error} again=${list.again} />`}
    ${!list.data && !list.error && html`<${Skeleton} rows=${5} />`}
    ${list.data && !list.items.length &&
    html`<${Empty} title="No triggers yet" icon="events" command=${'mp.trigger("welcome", on="user.created", into=pool, task=send_mail)'}>A trigger submits a task for each event that it is for.</${Empty}>`}
    ${list.items.length > 0 &&
    html`<div class="panel flush"><table class="table triggers">
      <caption class="sr">Triggers</caption>
      <thead><tr><th scope="col">Trigger</th><th scope="col" class="right wide-only">Waiting</th><th scope="col" class="right">Submitted</th><th scope="col" class="right">Failed</th></tr></thead>
      <tbody>
        ${list.items.map(
          (one) => html`<tr key=${one.id} data-row tabindex="-1">
            <td><span class="strong"><${Text} value=${one.id} /></span>
              <span class="row-more"><${State} state=${one.state} /><span>on ${one.on.map((name) => html`<code key=${name}><${Text} value=${name} /></code> `)}</span>${one.task && html`<code><${Text} value=${one.task} /></code>`}<span>into <a href=${href(["pools", one.into])}><${Text} value=${one.into} /></a></span></span></td>
            <td class="right wide-only"><${Num} value=${one.waiting} /></td>
            <td class="right"><${Num} value=${one.submitted} /></td>
            <td class="right"><${Num} value=${one.failed} kind="bad" /></td>
          </tr>`,
        )}
      </tbody>
    </table></div>`}
    <${More} list=${list} what="triggers" />
  `;
}

function Receipts({ event }) {
  const [state, setState] = useState({ open: false, items: null, payload: undefined, error: null });
  const toggle = async (toggled) => {
    if (!toggled.target.open || state.items) return;
    try {
      const found = await get(`events/${event.task}/receipts`);
      setState({ open: true, items: found.items, error: null });
    } catch (error) {
      setState({ open: true, items: null, error });
    }
  };
  const names = Object.keys(event.deliveries);
  if (!names.length) return html`<span class="none">no trigger</span>`;
  return html`<details class="fold receipts" onToggle=${toggle}>
    <summary><${Text} value=${names.join(", ")} /></summary>
    ${state.error && html`<${Problem} error=${state.error} />`}
    ${state.items &&
    html`<ul>${state.items.map(
      (one) => html`<li key=${one.trigger}><${State} state=${one.outcome} /> <b><${Text} value=${one.trigger} /></b>
        ${one.task && html` <a href=${href(["tasks", one.task])}>its task</a>`}
        ${one.delivery && !one.task && html` <a href=${href(["tasks", one.delivery])}>its delivery</a>`}
        ${one.reason && html` <span class="soft"><${Text} value=${one.reason} /></span>`}</li>`,
    )}</ul>`}
  </details>`;
}

function EventList() {
  const list = usePages("events", { limit: 50 });
  return html`
    ${list.error && html`<${Problem} error=${list.error} again=${list.again} />`}
    ${!list.data && !list.error && html`<${Skeleton} rows=${5} />`}
    ${list.data && !list.items.length && !list.next &&
    html`<${Empty} title="No events yet" icon="events" command=${"millpond emit user.created '{\"name\": \"Ada\"}'"}>Events are kept here with what each trigger made of them.</${Empty}>`}
    ${list.items.length > 0 &&
    html`<div class="panel flush"><table class="table events">
      <caption class="sr">Events</caption>
      <thead><tr><th scope="col">Event</th><th scope="col">Receipts</th><th scope="col" class="wide-only">By</th><th scope="col" class="right">Age</th></tr></thead>
      <tbody>
        ${list.items.map(
          (one) => html`<tr key=${`${one.name} ${one.id} ${one.emitted_at}`} data-row>
            <td><a class="row-link strong" href=${href(["tasks", one.task])}><${Text} value=${one.name} /></a>
              <span class="row-more"><${State} state=${one.status} /><code><${Text} value=${one.id} /></code>${one.replay && html`<span class="tag">replay</span>`}</span></td>
            <td><${Receipts} event=${one} /></td>
            <td class="wide-only"><${Text} value=${one.emitted_by} /></td>
            <td class="right"><${Ago} at=${one.emitted_at} bare /></td>
          </tr>`,
        )}
      </tbody>
    </table></div>`}
    <${More} list=${list} what="events" />
  `;
}

export function Events() {
  const view = route.value.query.get("view") === "triggers" ? "triggers" : "events";
  return html`
    <${Heading} title="Events" />
    <nav class="tabs" aria-label="View">
      <a href="#/events" aria-current=${view === "events" ? "true" : undefined}>Events</a>
      <a href="#/events?view=triggers" aria-current=${view === "triggers" ? "true" : undefined}>Triggers</a>
    </nav>
    ${view === "events" ? html`<${EventList} key="events" />` : html`<${Triggers} key="triggers" />`}
  `;
}
