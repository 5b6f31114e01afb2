// Small parts that pages are made of.
import { useState } from "preact/hooks";

import { advice } from "../api.js";
import { now } from "../clock.js";
import { age, ago, count, exact, fullMoment, isoMoment, moment, percent, share } from "../format.js";
import { html } from "../html.js";
import { Icon } from "./icons.js";
import { Text, Words } from "./text.js";

export function Button({ icon, children, danger, primary, quiet, small, label, ...rest }) {
  const classes = ["button"];
  if (danger) classes.push("danger");
  if (primary) classes.push("primary");
  if (quiet) classes.push("quiet");
  if (small) classes.push("small");
  if (!children) classes.push("square");
  return html`<button type="button" class=${classes.join(" ")} aria-label=${label} title=${children ? undefined : label} ...${rest}>
    ${icon && html`<${Icon} name=${icon} />`}${children}
  </button>`;
}

// How long ago; the moment itself is a hover away.
export function Ago({ at, bare = false }) {
  if (at === null || at === undefined) return html`<span class="none">–</span>`;
  const text = bare ? age(now.value - at) : ago(at, now.value);
  return html`<time class="num" datetime=${isoMoment(at)} title=${fullMoment(at)}>${text}</time>`;
}

export function Moment({ at }) {
  if (at === null || at === undefined) return html`<span class="none">–</span>`;
  return html`<time class="num" datetime=${isoMoment(at)} title=${fullMoment(at)}>${moment(at, now.value)}</time>`;
}

export function Num({ value, quietZero = true, kind = "" }) {
  const zero = quietZero && !value;
  return html`<span class=${`num ${zero ? "none" : kind}`} title=${value >= 100_000 ? exact(value) : undefined}>${count(value)}</span>`;
}

export function Capacity({ running, limit, label }) {
  const part = share(running, limit);
  const full = limit > 0 && running >= limit;
  return html`<div
    class=${`meter ${full ? "is-full" : ""}`}
    role="meter"
    aria-label=${label}
    aria-valuemin="0"
    aria-valuemax=${Math.max(limit, running)}
    aria-valuenow=${running}
    aria-valuetext=${`${running} of ${limit}`}
  >
    <span style=${{ width: `${part * 100}%` }}></span>
  </div>`;
}

// Parts of a whole, one after another: [{kind, value, label}].
export function Stacked({ parts, total, label }) {
  const shown = parts.filter((part) => part.value > 0);
  const spoken = shown.map((part) => `${part.label} ${exact(part.value)}`).join(", ");
  return html`<div class="stacked" role="img" aria-label=${`${label}: ${spoken || "nothing yet"}`}>
    ${shown.map(
      (part) =>
        html`<span key=${part.kind} class=${`is-${part.kind}`} style=${{ width: `${share(part.value, total) * 100}%` }}></span>`,
    )}
  </div>`;
}

export function Stat({ label, children, sub }) {
  return html`<div class="stat">
    <dt>${label}</dt>
    <dd>
      <span class="stat-value num">${children}</span>
      ${sub && html`<span class="stat-sub">${sub}</span>`}
    </dd>
  </div>`;
}

export function Panel({ title, aside, children, class: name = "", level = 2 }) {
  const id = `panel-${title?.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  return html`<section class=${`panel ${name}`} aria-labelledby=${title ? id : undefined}>
    ${title &&
    html`<header class="panel-head">
      ${level === 2 ? html`<h2 id=${id}>${title}</h2>` : html`<h3 id=${id}>${title}</h3>`}
      ${aside && html`<div class="panel-aside">${aside}</div>`}
    </header>`}
    ${children}
  </section>`;
}

// What a page shows where there is nothing: why, and the command that changes that.
export function Empty({ title, children, command, icon = "pools" }) {
  return html`<div class="empty">
    <div class="empty-icon"><${Icon} name=${icon} size=${22} /></div>
    <h2>${title}</h2>
    ${children && html`<p>${children}</p>`}
    ${command && html`<${Command} text=${command} />`}
  </div>`;
}

export function Command({ text }) {
  return html`<div class="command"><pre tabindex="0" role="region" aria-label="Command"><code>${text}</code></pre><${Copy} text=${text} label="Copy the command" /></div>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(true);
      setTimeout(() => setDone(false), 1500);
    } catch {
      // Without permission the text can still be selected.
    }
  };
  return html`<${Button} icon=${done ? "check" : "copy"} quiet small label=${done ? "Copied" : label} onClick=${copy} />`;
}

export function Problem({ error, again }) {
  const fields = Object.entries(error.fields ?? {}).filter(([, value]) => value !== null);
  return html`<div class="problem" role="alert">
    <${Icon} name="dead" />
    <div>
      <p class="problem-text"><${Words} text=${error.message} /></p>
      <p class="problem-more">
        ${error.code && html`<code>${error.code}</code> `}<${Words} text=${advice(error)} />
      </p>
      ${fields.length > 0 &&
      html`<ul class="problem-fields">
        ${fields.slice(0, 6).map(([name, value]) => html`<li key=${name}><code>${name}</code> <${Text} value=${value} /></li>`)}
      </ul>`}
    </div>
    ${again && html`<${Button} small onClick=${again}>Try again</${Button}>`}
  </div>`;
}

export function Note({ kind = "note", icon = null, title, children }) {
  return html`<div class=${`callout is-${kind}`}>
    ${icon}
    <div>${title && html`<strong>${title}</strong>`} ${children}</div>
  </div>`;
}

export function Skeleton({ rows = 6 }) {
  return html`<div class="skeleton" aria-hidden="true">
    ${Array.from({ length: rows }, (_, index) => html`<span key=${index}></span>`)}
  </div>`;
}

export function More({ list, what = "tasks" }) {
  if (list.moreError) return html`<${Problem} error=${list.moreError} again=${list.loadMore} />`;
  if (!list.next && !list.extended) return null;
  return html`<div class="more">
    ${list.next &&
    html`<${Button} onClick=${list.loadMore} disabled=${list.loadingMore}>
      ${list.loadingMore ? "Loading…" : `Load more ${what}`}
    </${Button}>`}
    ${list.extended && html`<${Button} quiet onClick=${list.startAgain}>Back to live</${Button}>`}
  </div>`;
}

// The heading of a page. It takes the focus when the page opens, so that it is read out.
export function Heading({ title, crumbs = [], children, state, sub }) {
  return html`<header class="page-head">
    <div class="page-title">
      ${crumbs.length > 0 &&
      html`<nav class="crumbs" aria-label="Breadcrumb">
        ${crumbs.map(([text, target]) => html`<a key=${target} href=${target}><${Text} value=${text} /></a><span aria-hidden="true">/</span>`)}
      </nav>`}
      <div class="page-line">
        <h1 tabindex="-1" data-heading><${Text} value=${title} /></h1>
        ${state}
        ${sub && html`<p class="page-sub">${sub}</p>`}
      </div>
    </div>
    ${children && html`<div class="page-actions">${children}</div>`}
  </header>`;
}

export function Labels({ labels }) {
  const entries = Object.entries(labels ?? {});
  if (!entries.length) return null;
  return html`<span class="labels">
    ${entries.map(([name, value]) => html`<span key=${name} class="label"><${Text} value=${`${name}=${value}`} /></span>`)}
  </span>`;
}

export function Facts({ entries }) {
  const shown = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`<dl class="facts">
    ${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

export { percent };
