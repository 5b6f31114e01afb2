// Questions before something changes, the help of the keyboard, and short messages.
import { useLayoutEffect, useRef, useState } from "preact/hooks";

import { dismiss, question, toasts } from "../actions.js";
import { html } from "../html.js";
import { OTHER_KEYS, PLACES, helpOpen } from "../keys.js";
import { Button } from "./parts.js";
import { Text, Words } from "./text.js";

export function Dialog({ title, onClose, children, class: name = "" }) {
  const box = useRef(null);
  // Before anything is painted: what is typed right after the key that opened it goes into it.
  useLayoutEffect(() => {
    const dialog = box.current;
    const before = document.activeElement;
    dialog.showModal();
    // The back button leaves the page that the question is about.
    addEventListener("hashchange", onClose);
    return () => {
      removeEventListener("hashchange", onClose);
      dialog.close();
      // Where the focus was may be gone by now.
      if (before?.isConnected) before.focus();
    };
  }, []);
  const onPointerDown = (event) => {
    if (event.target === box.current) onClose();
  };
  return html`<dialog ref=${box} class=${`dialog ${name}`} aria-labelledby="dialog-title" onCancel=${(event) => {
    event.preventDefault();
    onClose();
  }} onPointerDown=${onPointerDown}>
    <div class="dialog-body">
      <h2 id="dialog-title"><${Text} value=${title} /></h2>
      ${children}
    </div>
  </dialog>`;
}

function Question({ asked }) {
  const { field } = asked;
  const [value, setValue] = useState(field?.value ?? "");
  const submit = (event) => {
    event.preventDefault();
    asked.answer(field ? value : true);
  };
  return html`<${Dialog} title=${asked.title} onClose=${() => asked.answer(null)}>
    <form onSubmit=${submit}>
      ${asked.lines.filter(Boolean).map((line) => html`<p key=${line}><${Text} value=${line} /></p>`)}
      ${field &&
      html`<label class="field">
        <span>${field.label}</span>
        <input
          type=${field.type}
          value=${value}
          min=${field.min}
          max=${field.max}
          required
          autofocus
          onInput=${(event) => setValue(event.target.value)}
        />
      </label>`}
      <div class="dialog-actions">
        <${Button} onClick=${() => asked.answer(null)} autofocus=${!field && asked.danger}>
          ${asked.decline ?? "Cancel"}
        </${Button}>
        <button type="submit" class=${`button ${asked.danger ? "danger solid" : "primary"}`} autofocus=${!field && !asked.danger}>
          ${asked.action}
        </button>
      </div>
    </form>
  </${Dialog}>`;
}

function Help() {
  const close = () => {
    helpOpen.value = false;
  };
  return html`<${Dialog} title="Keyboard" onClose=${close} class="help">
    <div class="help-columns">
      <dl>
        ${PLACES.map(([key, name]) => html`<div key=${key}><dt><kbd>g</kbd> <kbd>${key}</kbd></dt><dd>${name}</dd></div>`)}
      </dl>
      <dl>
        ${OTHER_KEYS.map(([key, name]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${name}</dd></div>`)}
      </dl>
    </div>
    <div class="dialog-actions"><${Button} onClick=${close} autofocus>Close</${Button}></div>
  </${Dialog}>`;
}

export function Dialogs() {
  return html`
    ${question.value && html`<${Question} key=${question.value.title} asked=${question.value} />`}
    ${helpOpen.value && html`<${Help} />`}
    <div class="toasts" role="status" aria-live="polite">
      ${toasts.value.map(
        (one) => html`<div key=${one.id} class=${`toast is-${one.kind}`}>
          <div>
            <p><${Text} value=${one.text} /></p>
            ${one.detail && html`<p class="toast-detail"><${Words} text=${one.detail} /></p>`}
          </div>
          <${Button} icon="close" quiet small label="Dismiss" onClick=${() => dismiss(one.id)} />
        </div>`,
      )}
    </div>
  `;
}
