// Curves of several runs, as reports have them (plot.js).
import { Choice, html, useEffect, useRef, useState } from "../common.js";

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

function curvesOf(runs, scale, figure) {
  return runs.flatMap(({ name, columns }, number) => pairsOf(figure).flatMap(([kind, field]) => {
    const of = columns[kind];
    if (!of?.[field]?.some((each) => each != null)) return [];
    const points = (of[scale] ?? of.step ?? of.epoch).map((place, n) => [place, of[field][n]])
      .filter(([place, value]) => place != null && value != null).sort((a, b) => a[0] - b[0]);
    const once = points.filter(([place], n) => n === 0 || place !== points[n - 1][0]);
    const held = kind === "evaluation" ? "held out" : "training";
    return [{ label: `${name}, ${held}`, kind: held, number, places: once.map(([place]) => place), values: once.map(([, value]) => value) }];
  }));
}

export function Curves({ runs, scale, figure, setFigure }) {
  const box = useRef(null);
  const plot = useRef(null);
  const figures = figuresOf(runs);
  const shown = figures.some(([name]) => name === figure) ? figure : "loss";
  const curves = curvesOf(runs, scale, shown);
  useEffect(() => {
    plot.current = plotIn(box.current);
    return () => plot.current.end();
  }, []);
  useEffect(() => { plot.current.draw({ title: shown, x: scale, curves }); }, [scale, shown, curves.map(({ label, places }) => `${label}${places.length}`).join()]);
  return html`<div class="row"><${Choice} label="Figure" value=${shown} options=${figures} onChange=${(each) => setFigure(each ?? "loss")} /></div>
    <div class="plot" ref=${box}></div>
    ${!curves.length && html`<p class="soft">No figures yet; they come with the first steps.</p>`}`;
}
