// Templates without a build step: html`<p>${text}</p>` makes elements and text nodes, never markup.
import { h } from "preact";
import htm from "htm";

export const html = htm.bind(h);
