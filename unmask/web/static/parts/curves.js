// Curves of several runs. Colours and dashes tell runs apart; training is thin, what is held out has points.
import uPlot from "../vendor/uplot.js";
import { Choice, html, useEffect, useRef, useState } from "../common.js";

const COLOURS = ["blue", "vermilion", "green", "purple", "gold", "sky"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 2]];
const PLACES = ["step", "seconds", "tokens", "epoch", "seed"];
const NAMES = {
  loss: "loss, nats per token", validation_accuracy: "held-out tokens predicted right", bits_per_token_byte: "bits per byte of tokens",
  gradient_norm: "gradient norm", learning_rate: "learning rate",
};
const pairsOf = (figure) => (figure === "loss" ? [["train", "loss"], ["evaluation", "validation_loss"], ["evaluation", "loss"]] : [["train", figure], ["evaluation", figure]]);

function figuresOf(runs) {
  const known = new Set(["loss"]);
  for (const { columns } of runs) {
    for (const [kind, of] of Object.entries(columns)) {
      for (const [name, values] of Object.entries(of)) {
        if (!PLACES.includes(name) && !(kind === "evaluation" && name === "validation_loss") && values.some((each) => typeof each === "number")) known.add(name);
      }
    }
  }
  return [...known].map((name) => [name, NAMES[name] ?? name.replaceAll("_", " ").replaceAll(".", ": ")]);
}

function seriesOf(runs, scale, figure, colour) {
  const tables = [];
  const series = [{ label: scale }];
  runs.forEach(({ name, columns }, number) => {
    for (const [kind, field] of pairsOf(figure)) {
      const of = columns[kind];
      if (!of?.[field]?.some((each) => each != null)) continue;
      const places = of[scale] ?? of.step ?? of.epoch;
      const points = places.map((place, n) => [place, of[field][n]]).filter(([place, value]) => place != null && value != null).sort((a, b) => a[0] - b[0]);
      const once = points.filter(([place], n) => n === 0 || place !== points[n - 1][0]);
      tables.push([once.map(([place]) => place), once.map(([, value]) => value)]);
      const held = kind === "evaluation";
      series.push({
        label: `${name}${held ? ", held out" : ", training"}`, stroke: colour(COLOURS[number % 6]), width: held ? 2 : 1, dash: DASHES[number % 6],
        points: { show: held && once.length < 200, size: 6, fill: colour("card") }, spanGaps: true, alpha: held ? 1 : 0.75,
        value: (_, value) => (value == null ? "–" : Number(value.toPrecision(4))),
      });
    }
  });
  return [tables.length ? uPlot.join(tables) : [[]], series];
}

export function Curves({ runs, scale, figure, setFigure }) {
  const box = useRef(null);
  const plot = useRef(null);
  const [, draw] = useState(0);
  useEffect(() => { // other colours are another shape
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => draw((times) => times + 1);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);
  const figures = figuresOf(runs);
  const shown = figures.some(([name]) => name === figure) ? figure : "loss";
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(`--${name}`).trim();
  const [data, series] = seriesOf(runs, scale, shown, colour);
  const shape = JSON.stringify([series, scale]);
  useEffect(() => {
    if (series.length < 2) return undefined;
    const axis = { stroke: colour("soft"), grid: { stroke: colour("rule"), width: 1 }, ticks: { stroke: colour("rule") } };
    const values = (_, places) => places.map((each) => (Math.abs(each) >= 1e6 ? `${each / 1e6}M` : Math.abs(each) >= 1e4 ? `${each / 1e3}k` : each));
    const made = new uPlot({
      width: box.current.clientWidth, height: 280, scales: { x: { time: false } }, series,
      axes: [{ ...axis, values }, { ...axis, size: 60, values }], cursor: { drag: { x: true, y: false } },
    }, data, box.current);
    plot.current = made;
    const resized = new ResizeObserver(() => box.current && made.setSize({ width: box.current.clientWidth, height: 280 }));
    resized.observe(box.current);
    return () => { resized.disconnect(); made.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { plot.current?.setData(data, true); }, [data[0].length, data.length]);
  const said = series.slice(1).map(({ label }, n) => `${label}: ${data[n + 1].findLast((each) => each != null)}`).join("; ");
  return html`<div class="row"><${Choice} label="Figure" value=${shown} options=${figures} onChange=${(each) => setFigure(each ?? "loss")} /></div>
    <div class="plot" ref=${box} role="img" aria-label=${`Curves of ${shown} over ${scale}. Latest: ${said}`}></div>
    ${series.length < 2 && html`<p class="soft">No figures yet; they come with the first steps.</p>`}`;
}
