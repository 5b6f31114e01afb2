// Reading from the API into a component, and reading anew as live events come in.
import { useEffect, useRef, useState } from "preact/hooks";

import { get } from "./api.js";
import { changes } from "./live.js";
import { refreshed } from "./refresh.js";

const SETTLE = 1500;
const RETRY = 4000;
const HOPS = 10;
const REST = 20;

// A request searches some rows only: what it has not filled, the next ones go on to fill.
async function getPage(path, params, options) {
  let page = await get(path, params, options);
  for (let hop = 1; hop < HOPS && page.partial && page.next && page.items.length < params.limit; hop += 1) {
    const rest = { ...params, after: page.next, limit: params.limit - page.items.length };
    const following = await get(path, rest, options);
    page = { ...following, items: [...page.items, ...following.items] };
  }
  return page;
}

// {data, error, loading, again}: data stays while newer data is on its way, so that nothing jumps.
export function useLoad(path, params = {}, { live = true, every = 0, enabled = true, from = get } = {}) {
  const [state, setState] = useState({ data: null, error: null, loading: true, of: null });
  const key = JSON.stringify([path, params]);
  const reload = useRef(() => {});

  useEffect(() => {
    if (!enabled || path === null) return undefined;
    let over = false;
    let busy = false;
    let timer = 0;
    let readAt = 0;
    let took = 0;
    const controller = new AbortController();

    const read = async () => {
      clearTimeout(timer);
      timer = 0;
      if (busy || over) return;
      busy = true;
      const began = performance.now();
      try {
        const data = await from(path, params, { signal: controller.signal });
        if (!over) setState({ data, error: null, loading: false, of: key });
        if (every) later(every);
      } catch (error) {
        if (over || error.name === "AbortError") return;
        setState((before) => ({
          data: before.of === key ? before.data : null,
          error,
          loading: false,
          of: key,
        }));
        if (error.status === 0 || error.status >= 500 || error.status === 429) later(RETRY);
      } finally {
        busy = false;
        readAt = performance.now();
        took = readAt - began;
      }
    };
    const later = (after) => {
      if (!timer && !over) timer = setTimeout(read, after);
    };

    setState((before) => ({ ...before, loading: true, error: null }));
    reload.current = read;
    read();
    const unsubscribe = [
      onNext(refreshed, read),
      onNext(changes, () => {
        // What a question is about must not move away under it.
        if (live && !document.querySelector("dialog[open]")) {
          // What takes long to read is read less often.
          later(Math.max(Math.max(SETTLE, REST * took) - (performance.now() - readAt), 0));
        }
      }),
    ];
    return () => {
      over = true;
      controller.abort();
      clearTimeout(timer);
      for (const one of unsubscribe) one();
    };
  }, [key, enabled, live]);

  const fresh = state.of === key;
  return {
    data: state.data,
    stale: !fresh,
    error: fresh ? state.error : null,
    loading: state.loading || !fresh,
    again: () => reload.current(),
  };
}

// A signal calls its subscribers at once; here only what comes later counts.
function onNext(source, call) {
  let first = true;
  return source.subscribe(() => {
    if (first) first = false;
    else call();
  });
}

// Pages of a list: the first one is read anew as things change, until more have been loaded.
export function usePages(path, params, options = {}) {
  const [more, setMore] = useState({ key: "", items: [], next: null, busy: false, error: null });
  const key = JSON.stringify([path, params]);
  const extended = more.key === key;
  const first = useLoad(path, params, { ...options, from: getPage, live: !extended && (options.live ?? true) });
  const items = extended ? [...(first.data?.items ?? []), ...more.items] : first.data?.items ?? [];
  const next = extended ? more.next : first.data?.next ?? null;

  const loadMore = async () => {
    setMore((before) => ({ ...before, busy: true, error: null }));
    try {
      const page = await getPage(path, { ...params, after: next });
      setMore((before) => ({
        key,
        items: before.key === key ? [...before.items, ...page.items] : page.items,
        next: page.next,
        busy: false,
        error: null,
      }));
    } catch (error) {
      setMore((before) => ({ ...before, busy: false, error }));
    }
  };
  const startAgain = () => {
    setMore({ key: "", items: [], next: null, busy: false, error: null });
    first.again();
  };
  return {
    ...first,
    items,
    next: first.stale ? null : next,
    extended,
    loadMore,
    loadingMore: more.busy,
    moreError: more.error,
    startAgain,
  };
}
