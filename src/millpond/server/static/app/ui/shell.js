// The frame around every page: where to go, whether it is live, light or dark.
import { useEffect, useRef, useState } from "preact/hooks";

import { failed } from "../actions.js";
import { logOut, session } from "../api.js";
import { count, plural } from "../format.js";
import { html } from "../html.js";
import { PLACES, helpOpen, paletteOpen } from "../keys.js";
import { connection, deadLetters } from "../live.js";
import { href, page, route } from "../router.js";
import { isDark, toggleTheme } from "../theme.js";
import { Icon } from "./icons.js";
import { Button } from "./parts.js";
import { Text } from "./text.js";

const ICONS = {
  pools: "pools",
  tasks: "tasks",
  runs: "runs",
  dead: "dead",
  workers: "workers",
  schedules: "schedules",
  events: "events",
  audit: "audit",
};
const LIVE = {
  connecting: "Connecting",
  live: "Live",
  lost: "Reconnecting",
  resting: "Resting",
};

function Places() {
  return html`<ul class="places">
    ${PLACES.map(([key, name, path]) => {
      const here = page.value === path[0];
      const dead = path[0] === "dead" && deadLetters.value;
      return html`<li key=${name}>
        <a href=${href(path)} aria-current=${here ? "page" : undefined} aria-keyshortcuts=${`g ${key}`}>
          <${Icon} name=${ICONS[path[0]]} />
          <span>${name}</span>
          ${dead ? html`<span class="count-badge num" title=${plural(dead, "dead letter")}>${count(dead)}</span>` : null}
        </a>
      </li>`;
    })}
  </ul>`;
}

function LiveDot() {
  const state = connection.value;
  return html`<span class=${`live is-${state}`} role="status"><span class="live-dot" aria-hidden="true"></span>${LIVE[state]}</span>`;
}

function ThemeButton() {
  const dark = isDark.value;
  return html`<${Button} icon=${dark ? "sun" : "moon"} quiet label=${dark ? "Light theme" : "Dark theme"} onClick=${toggleTheme} />`;
}

function Foot() {
  const { store, version, actions, token_required: hasToken } = session.value;
  return html`<div class="side-foot">
    <div class="side-status">
      <${LiveDot} />
      ${!actions && html`<span class="tag" title="Started without --allow-actions">Read-only</span>`}
    </div>
    <p class="side-store" title=${store}><${Text} value=${store} /></p>
    <div class="side-tools">
      <span class="side-version">${version}</span>
      <${ThemeButton} />
      <${Button} icon="keyboard" quiet label="Keyboard help" onClick=${() => (helpOpen.value = true)} />
      ${hasToken && html`<${Button} icon="logout" quiet label="Log out" onClick=${() => logOut().catch(failed)} />`}
    </div>
  </div>`;
}

function Brand() {
  return html`<a class="brand" href="#/pools"><img src="icons/millpond.svg" alt="" width="22" height="22" />Millpond</a>`;
}

// The drawer of a phone closes first: two dialogs would keep each other's focus.
function GoTo({ before }) {
  const open = () => {
    before?.();
    paletteOpen.value = true;
  };
  return html`<button type="button" class="go-to" aria-keyshortcuts="Control+K" onClick=${open}><${Icon} name="search" size=${14} /><span>Go to…</span><kbd aria-hidden="true">Ctrl K</kbd></button>`;
}

function Drawer({ close }) {
  const box = useRef(null);
  useEffect(() => {
    box.current.showModal();
    return () => box.current?.close();
  }, []);
  return html`<dialog ref=${box} class="drawer" aria-label="Menu" onCancel=${(event) => {
    event.preventDefault();
    close();
  }} onPointerDown=${(event) => event.target === box.current && close()}>
    <div class="drawer-body">
      <div class="drawer-head"><${Brand} /><${Button} icon="close" quiet label="Close the menu" onClick=${close} /></div>
      <${GoTo} before=${close} />
      <nav aria-label="Pages"><${Places} /></nav>
      <${Foot} />
    </div>
  </dialog>`;
}

export function Shell({ children }) {
  const [open, setOpen] = useState(false);
  const where = route.value;
  useEffect(() => setOpen(false), [where]);
  return html`
    <a class="skip" href="#content" onClick=${(event) => {
      event.preventDefault();
      document.querySelector("main h1")?.focus();
    }}>Skip to the content</a>
    <div class="shell">
      <aside class="side" aria-label="Millpond">
        <${Brand} />
        <${GoTo} />
        <nav aria-label="Pages"><${Places} /></nav>
        <${Foot} />
      </aside>
      <header class="top">
        <${Button} icon="menu" quiet label="Menu" onClick=${() => setOpen(true)} />
        <${Brand} />
        <${LiveDot} />
        <${ThemeButton} />
      </header>
      <main id="content">${children}</main>
    </div>
    ${open && html`<${Drawer} close=${() => setOpen(false)} />`}
  `;
}
