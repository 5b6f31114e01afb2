// Text from outside. What does not print is shown as an escape, as the command line shows it:
// a right-to-left mark must not turn a line around, nor a zero-width one hide in it.
import { html } from "../html.js";

const HIDDEN = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/u;
const ODD = /([\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}])/gu;
const LINE = new Set(["\n", "\t"]);

function escaped(character) {
  const code = character.codePointAt(0);
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  if (code < 0x10000) return `\\u${code.toString(16).padStart(4, "0")}`;
  return `\\U${code.toString(16).padStart(8, "0")}`;
}

export function pieces(text, lines = false) {
  if (!HIDDEN.test(text)) return text;
  return text.split(ODD).map((piece, index) => {
    if (index % 2 === 0 || (lines && LINE.has(piece))) return piece;
    return html`<span class="escape">${escaped(piece)}</span>`;
  });
}

export function Text({ value, lines = false, class: name = "" }) {
  return html`<bdi class=${name || undefined}>${pieces(String(value ?? ""), lines)}</bdi>`;
}

// JSON in colours, one text node for each token.
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d[\d.eE+-]*)|\b(true|false|null)\b/g;

export function Json({ value, label }) {
  const text = JSON.stringify(value, null, 2) ?? "null";
  const parts = [];
  let from = 0;
  for (const found of text.matchAll(TOKEN)) {
    if (found.index > from) parts.push(text.slice(from, found.index));
    const kind = found[2] ? "name" : found[1] ? "text" : found[3] ? "number" : "word";
    parts.push(html`<span class=${`json-${kind}`}>${pieces(found[1] ?? found[0])}</span>`);
    if (found[2]) parts.push(found[2]);
    from = found.index + found[0].length;
  }
  parts.push(text.slice(from));
  return html`<pre class="code" tabindex="0" role="region" aria-label=${label}><bdi>${parts}</bdi></pre>`;
}

export function Code({ text, label }) {
  return html`<pre class="code" tabindex="0" role="region" aria-label=${label}><${Text} value=${text} lines /></pre>`;
}

// `words` in back quotes become code.
export function Words({ text }) {
  return text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}
