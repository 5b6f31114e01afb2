// Asks for the token that the server was started with.
import { useState } from "preact/hooks";

import { logIn } from "../api.js";
import { html } from "../html.js";
import { Problem } from "../ui/parts.js";

export function Login() {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await logIn(token);
    } catch (refused) {
      setError(refused);
    }
  };
  return html`<main class="alone">
    <form class="login panel" onSubmit=${submit}>
      <img src="icons/millpond.svg" alt="" width="36" height="36" />
      <h1 data-heading tabindex="-1">Millpond</h1>
      <p>This server asks for its token: the value of <code>--token</code> or <code>MILLPOND_TOKEN</code>.</p>
      <label class="field">
        <span>Token</span>
        <input type="password" autocomplete="current-password" required autofocus value=${token} onInput=${(event) => setToken(event.target.value)} />
      </label>
      ${error && html`<${Problem} error=${error} />`}
      <button class="button primary wide" type="submit">Log in</button>
    </form>
  </main>`;
}
