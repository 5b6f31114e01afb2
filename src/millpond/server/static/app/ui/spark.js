// Sparklines: completed tasks as an area, failed ones as bars before it.
import { rate } from "../format.js";
import { html } from "../html.js";

const WIDTH = 120;
const HEIGHT = 28;

// The points from the first that is known on: before it nothing was seen, which is not zero.
function points(values, most, first) {
  const step = WIDTH / Math.max(values.length - 1, 1);
  return values.slice(first).map((value, index) => {
    const y = HEIGHT - 1.5 - (value / most) * (HEIGHT - 4);
    return `${((first + index) * step).toFixed(1)},${y.toFixed(1)}`;
  });
}

// A bar for each step with failures, tall enough to be seen beside much that went well.
function bars(failed, most) {
  const step = WIDTH / Math.max(failed.length - 1, 1);
  return failed
    .map((value, index) => {
      const tall = Math.max((value / most) * (HEIGHT - 4), 3);
      return value > 0 ? `M${(index * step).toFixed(1)} ${HEIGHT - 1}v${(-tall).toFixed(1)}` : "";
    })
    .join("");
}

export function Spark({ recent }) {
  const { spark, failed_spark: failed, throughput, step, unknown } = recent;
  const most = Math.max(...spark, ...failed, 0.001);
  const first = Math.min(unknown, spark.length - 2);
  const line = points(spark, most, first);
  const start = line[0].split(",")[0];
  const minutes = Math.round((step * spark.length) / 60);
  const quiet = Math.max(...spark, ...failed) === 0;
  const label = quiet
    ? `nothing completed in ${minutes} minutes`
    : `throughput of the last ${minutes} minutes: now ${rate(throughput)}, at most ${rate(Math.max(...spark))}`;
  return html`<svg class="spark" viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}>
    <path class="spark-base" d=${`M0 ${HEIGHT - 1.5}H${WIDTH}`} />
    ${!quiet &&
    html`<polygon class="spark-area" points=${`${start},${HEIGHT} ${line.join(" ")} ${WIDTH},${HEIGHT}`} />
      <polyline class="spark-line" points=${line.join(" ")} />
      ${failed.some(Boolean) && html`<path class="spark-bad" d=${bars(failed, most)} />`}`}
  </svg>`;
}
