// Go to a page, a pool or a task by a few letters of its name: Ctrl K.
import { useState } from "preact/hooks";

import { html } from "../html.js";
import { PLACES, paletteOpen } from "../keys.js";
import { ownPools } from "../live.js";
import { go } from "../router.js";
import { Dialog } from "./dialogs.js";
import { Icon } from "./icons.js";
import { Text } from "./text.js";

const MOST = 8;

// Where the letters stand in order, close together and near the start first; -1 = not all are there.
function distance(name, letters) {
  const at = name.toLowerCase().indexOf(letters);
  if (at >= 0) return at;
  let place = 0;
  for (const letter of letters) {
    place = name.toLowerCase().indexOf(letter, place) + 1;
    if (!place) return -1;
  }
  return 100 + place;
}

function targets(typed) {
  const letters = typed.trim().toLowerCase();
  const found = [
    ...PLACES.map(([key, name, path]) => ({ name, path, icon: path[0], hint: `g ${key}` })),
    ...ownPools.value.map(({ name }) => ({ name, path: ["pools", name], icon: "pools", hint: "pool" })),
  ]
    .map((one) => ({ ...one, far: distance(one.name, letters) }))
    .filter((one) => one.far >= 0)
    .sort((a, b) => a.far - b.far);
  if (/^[0-9]{4,19}$/.test(letters)) {
    found.unshift(
      { name: `Task ${letters}`, path: ["tasks", letters], icon: "tasks", hint: "by its id" },
      { name: `Run ${letters}`, path: ["runs", letters], icon: "runs", hint: "by its id" },
    );
  }
  return found.slice(0, MOST);
}

export function Palette() {
  const [typed, setTyped] = useState("");
  const [at, setAt] = useState(0);
  const close = () => {
    paletteOpen.value = false;
  };
  const found = targets(typed);
  const here = Math.min(at, found.length - 1);
  const open = (one) => {
    close();
    if (one) go(one.path);
  };
  const onKeyDown = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      event.preventDefault();
      setAt((here + step + found.length) % Math.max(found.length, 1));
    } else if (event.key === "Enter") {
      event.preventDefault();
      open(found[here]);
    }
  };
  return html`<${Dialog} title="Go to" onClose=${close} class="palette">
    <input
      type="text" role="combobox" aria-label="A page, a pool, or the id of a task" aria-expanded="true"
      aria-controls="palette-list" aria-activedescendant=${found.length ? `palette-${here}` : undefined}
      placeholder="A page, a pool, or the id of a task" autocomplete="off" spellcheck="false" autofocus
      value=${typed} onKeyDown=${onKeyDown}
      onInput=${(event) => {
        setTyped(event.target.value);
        setAt(0);
      }}
    />
    <ul id="palette-list" role="listbox" aria-label="Where to go">
      ${found.map(
        (one, index) =>
          html`<li key=${one.path.join("/")} id=${`palette-${index}`} role="option" aria-selected=${index === here ? "true" : "false"} onClick=${() => open(one)} onPointerMove=${() => setAt(index)}>
            <${Icon} name=${one.icon} /><span class="palette-name"><${Text} value=${one.name} /></span><span class="soft wide-only">${one.hint}</span>
          </li>`,
      )}
    </ul>
    ${!found.length && html`<p class="soft">Nothing is called so. An id has digits only.</p>`}
  </${Dialog}>`;
}
