// The HTTP API: every answer is JSON, every refusal an ApiError with a code and a sentence.
import { signal } from "@preact/signals";

import { tellTime } from "./clock.js";

export const ROOT = new URL("api/v1/", document.baseURI);

// Who we are and what we may do; null until the server has answered.
export const session = signal(null);

export class ApiError extends Error {
  constructor(status, problem, retryAfter = null) {
    super(problem.message);
    this.status = status;
    this.code = problem.code;
    this.fields = problem.fields ?? {};
    this.docs = problem.docs ?? "";
    this.retryAfter = retryAfter;
  }
}

export function url(path, params = {}) {
  const found = new URL(path, ROOT);
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") found.searchParams.append(name, one);
    }
  }
  return found;
}

export function poolPath(pool, rest = "") {
  return `pools/${encodeURIComponent(pool)}${rest}`;
}

export async function get(path, params = {}, options = {}) {
  return request(url(path, params), { signal: options.signal }, options.exactNumbers);
}

export function post(path, body = {}) {
  return change("POST", path, body);
}

export function patch(path, body) {
  return change("PATCH", path, body);
}

function change(method, path, body) {
  const headers = { "content-type": "application/json" };
  if (session.value?.csrf) headers["x-csrf-token"] = session.value.csrf;
  return request(url(path), { method, headers, body: JSON.stringify(body) });
}

export async function remove(path) {
  const headers = session.value?.csrf ? { "x-csrf-token": session.value.csrf } : {};
  return request(url(path), { method: "DELETE", headers });
}

async function request(address, options, exactNumbers = false) {
  let response;
  try {
    response = await fetch(address, { ...options, credentials: "same-origin" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, {
      code: "unreachable",
      message: "The server does not answer. The page tries again by itself.",
    });
  }
  const text = await response.text();
  if (!response.ok) throw refusal(response, text);
  if (!text) return null;
  const found = JSON.parse(text, exactNumbers ? keepExact : undefined);
  tellTime(found?.at);
  return found;
}

function refusal(response, text) {
  const after = Number(response.headers.get("retry-after")) || null;
  let problem;
  try {
    problem = JSON.parse(text).error;
  } catch {
    problem = null;
  }
  if (!problem?.code) {
    problem = { code: `http_${response.status}`, message: response.statusText || "Refused." };
  }
  if (response.status === 401 && session.value) {
    session.value = { ...session.value, authenticated: false };
  }
  return new ApiError(response.status, problem, after);
}

// A payload may hold whole numbers beyond 2^53: they are shown digit by digit, not rounded.
function keepExact(_name, value, context) {
  if (typeof value !== "number" || !context?.source || !JSON.rawJSON) return value;
  return String(value) === context.source || Number.isSafeInteger(value)
    ? value
    : JSON.rawJSON(context.source);
}

export async function loadSession() {
  const found = await get("session");
  tellTime(found.now);
  session.value = found;
  return found;
}

export async function logIn(token) {
  const found = await post("session", { token });
  tellTime(found?.now);
  return loadSession();
}

export async function logOut() {
  await remove("session");
  return loadSession();
}

// What to do about a refusal, where more can be said than its own sentence.
export function advice(error) {
  switch (error.code) {
    case "unreachable":
      return "Is `millpond serve` still running?";
    case "read_only":
      return "Start the server with `millpond serve --allow-actions` to change things here.";
    case "csrf_required":
      return "Reload the page: the server was restarted since it was loaded.";
    case "token_required":
      return "Log in with the token the server was started with.";
    case "too_many_requests":
    case "overloaded":
      return `Try again${error.retryAfter ? ` in ${error.retryAfter} s` : " in a moment"}.`;
    case "internal_error":
      return "The log of `millpond serve` has the details.";
    default:
      return error.docs ? `More: ${error.docs}` : "";
  }
}
