// Plots of a pool over the last minutes, drawn by uPlot. The values under the pointer, or the
// latest ones, stand in the head of each plot, and in its label for those who do not see it.
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

import { html } from "../html.js";
import { isDark } from "../theme.js";

const HEIGHT = 168;
const sync = uPlot.sync("pool");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Custom properties hold light-dark(...): a probe element resolves them to a plain colour.
function resolved(name) {
  const probe = document.createElement("i");
  probe.className = "colour-probe";
  probe.style.color = colour(name);
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function faded(value, alpha) {
  return value.startsWith("rgb(") ? value.replace("rgb(", "rgba(").replace(")", `, ${alpha})`) : value;
}

// Two minutes at least: a plot that has just begun does not stretch seconds over its width.
const SHORTEST = 120;

function span(_plot, from, to) {
  return [Math.min(from, to - SHORTEST), to];
}

const hours = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

function clock(at) {
  const text = hours.format(new Date(at * 1000));
  return text.endsWith(":00") ? text.slice(0, -3) : text;
}

// Half of a label with seconds: one that is nearer to the edge would be cut off there.
const HALF_LABEL = 24;

function fits(plot, at) {
  return plot.valToPos(at, "x") < plot.over.clientWidth - HALF_LABEL;
}

const WHOLE = [1, 2, 5].flatMap((digit) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6].map((power) => digit * power)).sort((a, b) => a - b);

function options(series, format, whole, width, onCursor) {
  const line = resolved("--line");
  const muted = resolved("--muted");
  const font = "11px ui-sans-serif, system-ui, sans-serif";
  return {
    width,
    height: HEIGHT,
    padding: [8, 4, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { size: 6 }, sync: { key: sync.key }, drag: { x: false, y: false } },
    hooks: { setCursor: [(plot) => onCursor(plot.cursor.idx)] },
    scales: { x: { time: true, range: span }, y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.12 : 1] } },
    axes: [
      {
        stroke: muted,
        font,
        grid: { show: false },
        ticks: { show: false },
        size: 24,
        space: 72,
        incrs: [5, 10, 15, 30, 60, 120, 300],
        values: (plot, splits) => splits.map((at) => (fits(plot, at) ? clock(at) : "")),
      },
      {
        stroke: muted,
        font,
        size: 52,
        space: 34,
        grid: { stroke: line, width: 1 },
        ...(whole ? { incrs: WHOLE } : {}),
        ticks: { show: false },
        values: (_plot, splits) => splits.map((value) => format(value)),
      },
    ],
    series: [
      {},
      ...series.map((one) => {
        const stroke = resolved(one.colour);
        return {
          label: one.label,
          stroke,
          width: 1.5,
          dash: one.dash ? [4, 4] : undefined,
          fill: one.fill ? faded(stroke, 0.12) : undefined,
          spanGaps: true,
          points: { show: false },
        };
      }),
    ],
  };
}

export function Plot({ title, series, at, values, format, whole = false }) {
  const place = useRef(null);
  const plot = useRef(null);
  const cursor = useRef(null);
  cursor.current ??= signal(null);
  const data = [at, ...values];
  const dark = isDark.value;

  useLayoutEffect(() => {
    const box = place.current;
    plot.current = new uPlot(
      options(series, format, whole, Math.max(box.clientWidth, 120), (index) => {
        cursor.current.value = index ?? null;
      }),
      data,
      box,
    );
    const resize = new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width > 0) plot.current?.setSize({ width, height: HEIGHT });
    });
    resize.observe(box);
    return () => {
      resize.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [dark]);

  useEffect(() => {
    plot.current?.setData(data);
  }, [at]);

  const index = cursor.current.value ?? at.length - 1;
  const latest = (list) => {
    const value = list[index] ?? null;
    return value === null ? "–" : format(value);
  };
  const spoken = series.map((one, number) => `${one.label} ${latest(values[number])}`).join(", ");
  return html`<figure class="plot">
    <figcaption>
      <h3>${title}</h3>
      <ul class="legend">
        ${series.map(
          (one, number) =>
            html`<li key=${one.label} class=${one.class}><span class=${`swatch ${one.dash ? "dash" : ""}`}></span>${one.label} <b class="num">${latest(values[number])}</b></li>`,
        )}
      </ul>
    </figcaption>
    <div class="plot-box" ref=${place} role="img" aria-label=${`${title}: ${spoken}`}></div>
  </figure>`;
}
