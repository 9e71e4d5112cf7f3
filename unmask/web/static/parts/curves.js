// Live curves of several runs, drawn as in reports (plot.js).
import { Choice, Segmented, html, useEffect, useKept, useRef, useState } from "../common.js";

const SCALES = [["seconds", "Seconds"], ["step", "Steps"], ["tokens", "Tokens"]];
const PLACES = ["step", "seconds", "tokens", "epoch", "seed"];
const NAMES = {
  loss: "loss", validation_accuracy: "held-out tokens predicted right", bits_per_token_byte: "bits per byte of hidden tokens",
  gradient_norm: "gradient norm", learning_rate: "learning rate",
};
// The `loss` of a fine-tuning is its training loss.
const KINDS = { train: "training", evaluation: "held out", finetuning: "validation file" };
const pairsOf = (figure) => [...Object.keys(KINDS).map((kind) => [kind, figure]), ...(figure === "loss" ? [["evaluation", "validation_loss"]] : [])];

// The metrics of runs so far, followed while they train.
export function useLive(paths) {
  const [runs, set] = useState({});
  const [problem, setProblem] = useState("");
  const key = paths.join("\n");
  useEffect(() => {
    set({});
    setProblem("");
    if (!paths.length) return undefined;
    // A browser has six connections for all its tabs, so hidden ones must hold none.
    let source = null;
    const follow = () => {
      source?.close();
      if (document.hidden) return;
      source = new EventSource(`/api/live?${paths.map((path) => `run=${encodeURIComponent(path)}`).join("&")}`);
      source.onopen = () => setProblem("");
      source.onmessage = (event) => {
        const { run, state, anew, points } = JSON.parse(event.data);
        set((before) => ({ ...before, [run]: { state, points: anew ? points : [...(before[run]?.points ?? []), ...points] } }));
      };
      source.onerror = () => setProblem("The studio does not answer; curves are paused until it does.");
    };
    follow();
    document.addEventListener("visibilitychange", follow);
    return () => {
      document.removeEventListener("visibilitychange", follow);
      source?.close();
    };
  }, [key]);
  return [runs, problem];
}

// Whether the losses of all runs are those of masked tokens. A fine-tuning's is of texts, an embedder's of pairs.
const areOfTokens = (runs) => runs.every(({ points }) => points.some(({ kind, validation_loss: loss }) => kind === "evaluation" && loss != null));

function figuresOf(runs) {
  const names = areOfTokens(runs) ? { ...NAMES, loss: "loss, nats per token" } : NAMES;
  const known = new Set(["loss"]);
  for (const { kind, ...figures } of runs.flatMap(({ points }) => points)) {
    for (const [name, value] of Object.entries(figures)) {
      if (typeof value === "number" && !PLACES.includes(name) && !(kind === "evaluation" && name === "validation_loss")) known.add(name);
    }
  }
  return [...known].map((name) => [name, names[name] ?? name.replaceAll("_", " ").replaceAll(".", ": ")]);
}

function curvesOf(runs, x, figure) {
  return runs.flatMap(({ name, points, number }, place) => pairsOf(figure).flatMap(([kind, field]) => {
    const known = points.filter((each) => each.kind === kind && each[x] != null && each[field] != null);
    const training = known.some(({ weighted }) => weighted) ? "training (weighted by 1 / rate)" : "training";
    const label = `${name}, ${kind !== "evaluation" && field === "loss" ? training : KINDS[kind]}`;
    const seeds = [...new Set(known.map((each) => each.seed))];
    return seeds.map((seed) => {
      const own = known.filter((each) => each.seed === seed).sort((a, b) => a[x] - b[x]);
      const once = own.filter((each, n) => each[x] !== own[n + 1]?.[x]);
      return {
        label: seeds.length > 1 ? `${label}, seed ${seed}` : label, kind: kind === "train" ? "training" : "held out", number: number ?? place,
        places: once.map((each) => each[x]), values: once.map((each) => each[field]),
      };
    });
  }));
}

// `level` is the loss of word frequencies alone, if it is known and the same for all runs.
export function Curves({ runs, level, title = "Curves" }) {
  const [scale, setScale] = useKept("runs.scale", "seconds");
  const [figure, setFigure] = useKept("runs.figure", "loss");
  const box = useRef(null);
  const plot = useRef(null);
  const figures = figuresOf(runs);
  const shown = figures.some(([name]) => name === figure) ? figure : "loss";
  // If no run has the chosen scale (fine-tunings have no seconds), curves are drawn over epochs.
  const x = runs.some(({ points }) => points.some((each) => each[scale] != null)) ? scale : "epoch";
  const curves = curvesOf(runs, x, shown);
  const ends = curves.flatMap(({ places }) => [places[0], places.at(-1)]);
  if (shown === "loss" && level != null && ends.length && areOfTokens(runs)) {
    curves.push({ label: "word frequencies alone", kind: "level", number: 0, places: [Math.min(...ends), Math.max(...ends)], values: [level, level] });
  }
  useEffect(() => {
    plot.current = plotIn(box.current);
    return () => plot.current.end();
  }, []);
  useEffect(() => { plot.current.draw({ title: shown, x, curves }); }, [x, shown, curves.map(({ label, places }) => `${label}${places.length}`).join()]);
  return html`<section class="card" aria-label=${title}><div class="spread"><h2>${title}</h2><${Segmented} label="Scale" value=${scale} options=${SCALES} onChange=${setScale} /></div>
    <div class="row"><${Choice} label="Figure" value=${shown} options=${figures} onChange=${(each) => setFigure(each ?? "loss")} /></div>
    <div class="plot" ref=${box}></div>
    ${!curves.length && html`<p class="soft">No figures yet; they appear with the first steps, those of a fine-tuning with its first seed.</p>`}</section>`;
}
