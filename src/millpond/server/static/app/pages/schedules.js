// Schedules, when each fires next, and a way to fire one now.
import { fire, pauseSchedule, resumeSchedule } from "../actions.js";
import { now } from "../clock.js";
import { duration } from "../format.js";
import { html } from "../html.js";
import { usePages } from "../load.js";
import { href } from "../router.js";
import { State } from "../ui/icons.js";
import { Ago, Button, Empty, Heading, Moment, More, Problem, Skeleton } from "../ui/parts.js";
import { Text } from "../ui/text.js";

function Row({ schedule }) {
  return html`<tr data-row tabindex="-1">
    <td>
      <span class="strong"><${Text} value=${schedule.id} /></span>
      <span class="row-more">
        <${State} state=${schedule.state} />
        ${schedule.task && html`<code><${Text} value=${schedule.task} /></code>`}
        ${schedule.into && html`<span>into <a href=${href(["pools", schedule.into])}><${Text} value=${schedule.into} /></a></span>`}
        ${schedule.emits && html`<span>emits <code><${Text} value=${schedule.emits} /></code></span>`}
      </span>
    </td>
    <td><code><${Text} value=${schedule.expression ?? `every ${duration(schedule.every)}`} /></code><span class="row-more"><span><${Text} value=${schedule.tz} /></span></span></td>
    <td class="next-cell">
      ${schedule.paused
        ? html`<span class="soft">paused</span>`
        : html`<span class="num strong">${schedule.next_at > now.value ? html`<${Ago} at=${schedule.next_at} />` : "due now"}</span>
            <span class="row-more firings">${schedule.upcoming.slice(0, 3).map((at) => html`<${Moment} key=${at} at=${at} />`)}</span>`}
    </td>
    <td class="act wide">
      <${Button} icon=${schedule.paused ? "play" : "pause"} quiet small label=${`${schedule.paused ? "Resume" : "Pause"} ${schedule.id}`} onClick=${() => (schedule.paused ? resumeSchedule(schedule) : pauseSchedule(schedule))} />
      <${Button} icon="bolt" small label=${`Fire now: ${schedule.id}`} onClick=${() => fire(schedule)}>Fire now</${Button}>
    </td>
  </tr>`;
}

export function Schedules() {
  const list = usePages("schedules", {});
  return html`
    <${Heading} title="Schedules" />
    ${list.error && html`<${Problem} error=${list.error} again=${list.again} />`}
    ${!list.data && !list.error && html`<${Skeleton} rows=${5} />`}
    ${list.data && !list.items.length &&
    html`<${Empty} title="No schedules yet" icon="schedules" command=${'mp.cron("nightly", "30 2 * * *", tz="Europe/Berlin", task=report)'}>A schedule submits a task, or emits an event, at its times.</${Empty}>`}
    ${list.items.length > 0 &&
    html`<div class="panel flush"><table class="table schedules">
      <caption class="sr">Schedules</caption>
      <thead><tr><th scope="col">Schedule</th><th scope="col">When</th><th scope="col">Next, in your time</th><th scope="col" class="act wide"><span class="sr">Actions</span></th></tr></thead>
      <tbody>${list.items.map((one) => html`<${Row} key=${one.id} schedule=${one} />`)}</tbody>
    </table></div>`}
    <${More} list=${list} what="schedules" />
  `;
}
