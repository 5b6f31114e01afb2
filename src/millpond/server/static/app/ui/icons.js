// Icons, drawn here: 16 by 16, in the colour of the text around them.
import { html } from "../html.js";

const PATHS = {
  pools: () => html`<path d="M2 5.5c2-1.8 4-1.8 6 0s4 1.8 6 0M2 10.5c2-1.8 4-1.8 6 0s4 1.8 6 0" />`,
  tasks: () => html`<path d="M6 4h8M6 8h8M6 12h8" /><path d="M2.5 4h.01M2.5 8h.01M2.5 12h.01" />`,
  runs: () => html`<circle cx="4" cy="8" r="1.7" /><circle cx="12" cy="3.8" r="1.7" /><circle cx="12" cy="12.2" r="1.7" /><path d="m5.5 7.2 5-2.6M5.5 8.8l5 2.6" />`,
  dead: () => html`<path d="M8 2.2 14.3 13.3H1.7zM8 6.5v3.2M8 11.6v.01" />`,
  workers: () => html`<rect x="2" y="2.8" width="12" height="4.4" rx="1.2" /><rect x="2" y="8.8" width="12" height="4.4" rx="1.2" /><path d="M4.6 5h.01M4.6 11h.01" />`,
  schedules: () => html`<circle cx="8" cy="8" r="6" /><path d="M8 4.5V8l2.3 1.5" />`,
  events: () => html`<path d="M9 1.8 3.2 9H8l-1 5.2L12.8 7H8z" />`,
  audit: () => html`<path d="M4 1.8h6l3 3v9.4H4zM6.5 7h4M6.5 10h4" />`,
  pause: () => html`<path d="M5.5 3.5v9M10.5 3.5v9" />`,
  play: () => html`<path d="M4.8 3.2v9.6L12.5 8z" />`,
  resize: () => html`<path d="M9.5 2.5h4v4M6.5 13.5h-4v-4M13.5 2.5 9 7M2.5 13.5 7 9" />`,
  purge: () => html`<path d="M2.5 4.3h11M6 4.3V2.5h4v1.8M4 4.3l.6 9.2h6.8l.6-9.2" />`,
  redrive: () => html`<path d="M13 8a5 5 0 1 1-1.5-3.6M13 2.3v2.7h-2.7" />`,
  cancel: () => html`<circle cx="8" cy="8" r="6" /><path d="m3.8 12.2 8.4-8.4" />`,
  close: () => html`<path d="m4 4 8 8M12 4l-8 8" />`,
  menu: () => html`<path d="M2 4h12M2 8h12M2 12h12" />`,
  sun: () => html`<circle cx="8" cy="8" r="3" /><path d="M8 1.2v1.5M8 13.3v1.5M1.2 8h1.5M13.3 8h1.5M3.2 3.2l1 1M11.8 11.8l1 1M12.8 3.2l-1 1M4.2 11.8l-1 1" />`,
  moon: () => html`<path d="M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7z" />`,
  keyboard: () => html`<rect x="1.5" y="4" width="13" height="8.5" rx="1.5" /><path d="M4.5 7h.01M7 7h.01M9.5 7h.01M12 7h.01M5 10h6" />`,
  search: () => html`<circle cx="7" cy="7" r="4.5" /><path d="m10.5 10.5 3.3 3.3" />`,
  copy: () => html`<rect x="5.5" y="5.5" width="8" height="8" rx="1.5" /><path d="M10.5 5.5v-3h-8v8h3" />`,
  check: () => html`<path d="m3 8.5 3.3 3.3L13 4.8" />`,
  right: () => html`<path d="m6 3.5 4.5 4.5L6 12.5" />`,
  external: () => html`<path d="M9 2.5h4.5V7M13.5 2.5 7.5 8.5M6 3.5H2.5v10h10V10" />`,
  eye: () => html`<path d="M1.5 8S4 3.5 8 3.5 14.5 8 14.5 8 12 12.5 8 12.5 1.5 8 1.5 8z" /><circle cx="8" cy="8" r="1.9" />`,
  bolt: () => html`<path d="M9 1.8 3.2 9H8l-1 5.2L12.8 7H8z" />`,
  key: () => html`<circle cx="5.5" cy="10.5" r="3" /><path d="m7.7 8.3 5.8-5.8M11 5l2 2" />`,
  logout: () => html`<path d="M6 2.5H2.5v11H6M10.5 4.8 13.7 8l-3.2 3.2M13.7 8H6" />`,
};

export function Icon({ name, label = null, size = 16 }) {
  const hidden = label === null;
  return html`<svg
    class="icon"
    viewBox="0 0 16 16"
    width=${size}
    height=${size}
    role=${hidden ? undefined : "img"}
    aria-hidden=${hidden ? "true" : undefined}
    aria-label=${label ?? undefined}
    focusable="false"
  >
    ${PATHS[name]()}
  </svg>`;
}

// Each state has a shape of its own: colour alone does not tell everybody.
const STATES = {
  running: () => html`<circle class="arc" cx="7" cy="7" r="5" /><circle class="dot" cx="7" cy="7" r="2.2" />`,
  saturated: () => html`<circle class="full" cx="7" cy="7" r="5.8" />`,
  queued: () => html`<circle class="ring dashed" cx="7" cy="7" r="5" />`,
  waiting: () => html`<circle class="ring dashed" cx="7" cy="7" r="5" />`,
  scheduled: () => html`<circle class="ring" cx="7" cy="7" r="5" /><path class="mark" d="M7 4.3V7l1.9 1.3" />`,
  parked: () => html`<circle class="ring" cx="7" cy="7" r="5" /><path class="mark" d="M5.7 9.5v-5h1.7a1.4 1.4 0 0 1 0 2.8H5.7" />`,
  held: () => html`<circle class="ring" cx="7" cy="7" r="5" /><path class="mark" d="M7 4.3V7l1.9 1.3" />`,
  paused: () => html`<circle class="ring" cx="7" cy="7" r="5" /><path class="mark" d="M5.6 5v4M8.4 5v4" />`,
  completed: () => html`<circle class="full" cx="7" cy="7" r="5.8" /><path class="cut" d="m4.5 7.2 1.8 1.8 3.3-3.7" />`,
  failed: () => html`<circle class="full" cx="7" cy="7" r="5.8" /><path class="cut" d="m5 5 4 4M9 5 5 9" />`,
  cancelled: () => html`<circle class="ring" cx="7" cy="7" r="5" /><path class="mark" d="m4.2 9.8 5.6-5.6" />`,
  rejected: () => html`<circle class="ring" cx="7" cy="7" r="5" /><path class="mark" d="M4.5 7h5" />`,
  closed: () => html`<circle class="ring" cx="7" cy="7" r="5" /><path class="mark" d="M4.5 7h5" />`,
  idle: () => html`<circle class="ring" cx="7" cy="7" r="5" />`,
};
const ALIAS = {
  active: "running",
  alive: "running",
  late: "held",
  removed: "closed",
  lost: "failed",
  finished: "completed",
  stopped: "cancelled",
  submitted: "completed",
  duplicate: "completed",
  skipped: "cancelled",
  pending: "queued",
};

export function StateIcon({ state }) {
  const drawn = STATES[state] ? state : (ALIAS[state] ?? "idle");
  return html`<svg class=${`state-icon is-${drawn}`} viewBox="0 0 14 14" width="14" height="14" aria-hidden="true">
    ${STATES[drawn]()}
  </svg>`;
}

export function State({ state, label = state }) {
  return html`<span class="state"><${StateIcon} state=${state} /><span>${label}</span></span>`;
}
