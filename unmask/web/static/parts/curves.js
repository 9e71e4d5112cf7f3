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
        const { run, state, anew, columns } = JSON.parse(event.data);
        set((before) => {
          const known = anew ? {} : { ...before[run]?.columns };
          for (const [kind, more] of Object.entries(columns)) {
            const old = known[kind] || {};
            const length = Math.max(0, ...Object.values(old).map((each) => each.length));
            const added = Math.max(0, ...Object.values(more).map((each) => each.length));
            known[kind] = {};
            for (const name of new Set([...Object.keys(old), ...Object.keys(more)])) {
              known[kind][name] = [...(old[name] || Array(length).fill(null)), ...(more[name] || Array(added).fill(null))];
            }
          }
          return { ...before, [run]: { state, columns: known } };
        });
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
const areOfTokens = (runs) => runs.every(({ columns }) => columns.evaluation?.validation_loss);

function figuresOf(runs) {
  const names = areOfTokens(runs) ? { ...NAMES, loss: "loss, nats per token" } : NAMES;
  const known = new Set(["loss"]);
  for (const { columns } of runs) {
    for (const [kind, of] of Object.entries(columns)) {
      for (const [name, values] of Object.entries(of)) {
        if (!PLACES.includes(name) && !(kind === "evaluation" && name === "validation_loss") && values.some((each) => typeof each === "number")) known.add(name);
      }
    }
  }
  return [...known].map((name) => [name, names[name] ?? name.replaceAll("_", " ").replaceAll(".", ": ")]);
}

// If no run has the chosen scale (fine-tunings have no seconds), curves are drawn over epochs.
const placesOf = (runs) => runs.flatMap(({ columns }) => Object.values(columns));

function curvesOf(runs, x, figure) {
  return runs.flatMap(({ name, columns, number }, place) => pairsOf(figure).flatMap(([kind, field]) => {
    const of = columns[kind];
    if (!of?.[field]?.some((each) => each != null) || !of[x]) return [];
    const label = `${name}, ${kind === "finetuning" && field === "loss" ? "training" : KINDS[kind]}`;
    const seeds = [...new Set(of.seed ?? [null])];
    return seeds.map((seed) => {
      const points = of[x].map((each, n) => [each, of[field][n], of.seed?.[n] ?? null])
        .filter(([each, value, own]) => each != null && value != null && own === seed).sort((a, b) => a[0] - b[0]);
      const once = points.filter(([each], n) => each !== points[n + 1]?.[0]);
      return {
        label: seeds.length > 1 ? `${label}, seed ${seed}` : label, kind: kind === "train" ? "training" : "held out", number: number ?? place,
        places: once.map(([each]) => each), values: once.map(([, value]) => value),
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
  const x = placesOf(runs).some((of) => of[scale]) ? scale : "epoch";
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
