// All runs: figures, live curves, differences of recipes, predictions for lines, and controls to start and stop runs.
import {
  Busy, Choice, Copy, NumberField, Problem, TextArea, TextField, call, cut, fixed, html, named, percent, useCall, useEffect, useKept, useRef, useState, whole,
} from "../common.js";
import { Comparison } from "./comparison.js";
import { Curves, useLive } from "./curves.js";

const KINDS = ["run", "finetuning", "embedder"];

const figuresOf = ({ facts }) => {
  if (facts.validation_loss != null) {
    const interval = facts.validation_loss_interval;
    return [`${fixed(facts.validation_loss)}${interval ? ` ± ${fixed((interval[1] - interval[0]) / 2)}` : ""} nats`, percent(facts.validation_accuracy)];
  }
  if (facts.metrics) return [Object.entries(facts.metrics).map(([name, value]) => `${name.replaceAll("_", " ")} ${value && Math.abs(value) < 0.001 ? Number(value.toPrecision(3)) : fixed(value)}`).join(", "), ""];
  if (facts.after) return [Object.entries(facts.after.kinds || {}).map(([name, each]) => `${name}: recall@10 ${percent(each.recall_at_10)}`).join(", "), ""];
  return ["", ""];
};

function Table({ runs, chosen, choose, live }) {
  return html`<div class="scroll card" tabindex="0" role="group" aria-label="Runs"><table><thead><tr><th>show</th><th>run</th><th>state</th><th>held out</th><th class="number">right</th>
    <th class="number">steps</th><th class="number">tokens a second</th><th class="number">parameters</th></tr></thead><tbody>
    ${runs.map((each) => {
      const [held, right] = figuresOf(each);
      const state = live[each.path]?.state ?? each.state;
      return html`<tr key=${each.path}><td><input type="checkbox" aria-label=${`show ${each.name}`} checked=${chosen.includes(each.path)}
          onChange=${() => choose(chosen.includes(each.path) ? chosen.filter((path) => path !== each.path) : [...chosen, each.path].slice(-6))} /></td>
        <td class="nowrap">${each.name}</td><td><span class=${`tag ${state}`}>${state}</span></td><td class="nowrap">${held}</td><td class="number">${right}</td>
        <td class="number">${whole(each.facts.steps)}</td><td class="number">${whole(each.facts.tokens_per_second)}</td>
        <td class="number">${whole(each.facts.num_parameters)}</td></tr>`;
    })}</tbody></table></div>`;
}

function Differences({ paths, names }) {
  const { data, error } = useCall("recipes", { runs: paths });
  if (error) return html`<${Problem} of=${error} />`;
  if (!data) return null;
  return html`<section class="card" aria-label="Differences of the recipes"><div class="spread"><h2>Differences of the recipes</h2><small>${data.same} settings are the same</small></div>
    <div class="scroll" tabindex="0"><table><thead><tr><th>setting</th>${paths.map((path) => html`<th key=${path}>${names[path]}</th>`)}</tr></thead>
    <tbody>${data.rows.map(([key, ...values]) => html`<tr key=${key}><td><code>${key}</code></td>${values.map((value, n) => html`<td key=${n}><code>${value || "–"}</code></td>`)}</tr>`)}</tbody></table></div></section>`;
}

// A line of text with the guesses of its hidden tokens.
function Line({ text, hidden }) {
  const parts = cut(text, hidden.map(({ begin, end }) => [begin, end]));
  return html`<p class="text">${parts.map((part, n) => {
    if (n % 2 === 0) return part;
    const { right, guesses } = hidden[(n - 1) / 2];
    return html`<span class=${right ? "guessed" : "missed"} title=${`${part}: ${guesses.map(([guess, share]) => `${guess} ${percent(share)}`).join(", ")}`}>${guesses[0][0]}</span>`;
  })}</p>`;
}

function Lines({ name, points }) {
  const known = points.filter(({ lines }) => lines);
  const [shown, show] = useState(null);
  if (!known.length) return null;
  const number = Math.min(shown ?? known.length, known.length - 1);
  const { step, lines } = known[number];
  return html`<section class="card" aria-label=${`Predictions of ${name}`}><div class="spread"><h2>Your sentences: ${name}</h2>
    <label>after step ${whole(step)} <input type="range" min="0" max=${known.length - 1} value=${number} onInput=${(event) => show(Number(event.target.value))} /></label></div>
    ${lines.map((line, n) => html`<${Line} key=${n} ...${line} />`)}</section>`;
}

function Finetuning({ path, name }) {
  const { data, error } = useCall("finetuning", { run: path });
  if (!data) return html`<${Problem} of=${error} />`;
  const { confusion } = data;
  if (!confusion && !data.worst.length && !data.warning) return null;
  return html`<section class="card" aria-label=${`Classes of ${name}`}><h2>${name}: ${data.task}</h2><${Problem} of=${error || data.warning} />
    ${confusion && html`<p class="soft">${whole(data.examples)} validation examples</p>
      <div class="scroll" tabindex="0"><table class="heat"><thead><tr><th>right ↓ predicted →</th>${confusion.names.map((each) => html`<th class="number" key=${each}>${each || "(none)"}</th>`)}
        <th class="number">precision</th><th class="number">recall</th><th class="number">F1</th></tr></thead><tbody>
      ${confusion.rows.map((row) => {
        const total = row.counts.reduce((sum, each) => sum + each, 0) || 1;
        return html`<tr key=${row.name}><th>${row.name || "(none)"}</th>${row.counts.map((count, m) => html`<td class="shade number" key=${m}><i style=${{ opacity: 0.5 * (count / total) }}></i>${whole(count)}</td>`)}
          ${row.scores.map((value, m) => html`<td class="number" key=${m}>${fixed(value)}</td>`)}</tr>`;
      })}</tbody></table></div>`}
    ${data.worst.length > 0 && html`<h2>Surest mistakes</h2><div class="scroll" tabindex="0"><table><thead><tr><th>text</th><th>label</th><th>prediction</th><th class="number">probability</th></tr></thead>
      <tbody>${data.worst.map(({ texts, right, predicted, probability }, n) => html`<tr key=${n}><td>${texts.map(([before, part, behind]) => html`<p>${before}${part && html`<span class="masked">${part}</span>`}${behind}</p>`)}</td>
        <td>${right}</td><td>${predicted}</td><td class="number">${percent(probability)}</td></tr>`)}</tbody></table></div>`}</section>`;
}

const EMPTY = { name: "studio/first", data: null, from_: null, recipe: null, minutes: 2, steps: null, strategy: null, rate: null, seed: 0, prompts: "" };

function Begin({ things, look, choose }) {
  const [form, setForm] = useKept("runs.form", EMPTY);
  const [state, set] = useState({});
  const { data: choices } = useCall("choices", {});
  const put = (name) => (value) => setForm({ ...form, [name]: value });
  const request = { ...form, seed: form.seed ?? 0, prompts: form.prompts.split("\n").filter((line) => line.trim()) };
  const act = (what) => {
    set({ busy: what });
    call("begin", { ...request, what }).then((answer) => {
      set(answer);
      if (answer.run) { setTimeout(look, 1500); choose(answer.run); }
    }, (error) => set({ error: error.message }));
  };
  return html`<details class="card"><summary>Start a run</summary>
    <div class="row"><${TextField} label=${`Folder, below ${choices?.root ?? ""}`} wide=${false} value=${form.name} onChange=${put("name")} />
      <${Choice} label="Text" none="Tiny Shakespeare" value=${form.data} options=${named(things, "data", "text")} onChange=${put("data")} />
      <${Choice} label="Start from" none="new weights" value=${form.from_} options=${named(things, "model")} onChange=${put("from_")} />
      <${Choice} label="Recipe" none="fits the minutes" value=${form.recipe} options=${(choices?.recipes ?? []).map((each) => [each, each])} onChange=${put("recipe")} />
      <${Choice} label="Strategy" none="the recipe's" value=${form.strategy} options=${(choices?.strategies ?? []).map((each) => [each, each])} onChange=${put("strategy")} />
      <${NumberField} label="Minutes" min="0.1" step="any" value=${form.minutes} onChange=${(value) => setForm({ ...form, minutes: value, steps: null })} />
      <${NumberField} label="or steps" min="1" value=${form.steps} onChange=${(value) => setForm({ ...form, steps: value, minutes: null })} />
      <${NumberField} label="Rate" min="0.01" max="0.99" step="0.01" value=${form.rate} placeholder="usual" onChange=${put("rate")} />
      <${NumberField} label="Seed" min="0" value=${form.seed} onChange=${put("seed")} /></div>
    <${TextArea} label="Your sentences, one per line: predicted at every evaluation" value=${form.prompts} onChange=${put("prompts")} />
    <div class="row"><button onClick=${() => act("forecast")} disabled=${Boolean(state.busy)}>Forecast</button>
      <button class="main" onClick=${() => act("start")} disabled=${Boolean(state.busy)}>Start</button>
      <button onClick=${() => act("command")} disabled=${Boolean(state.busy)}>Show the command</button></div>
    <${Busy} when=${state.busy === "forecast"} what="trying a few steps; this may take a minute" /><${Problem} of=${state.error} />
    ${state.forecast && html`<pre tabindex="0">${state.forecast}</pre>`}
    ${state.copy && html`<pre tabindex="0">${state.copy.command}</pre><${Copy} of=${state.copy} />`}</details>`;
}

function Control({ path, name, state, resumes, look }) {
  const [message, setMessage] = useState("");
  const [text, setText] = useState("");
  const running = state === "running";
  useEffect(() => {
    const read = () => call("log", { run: path }).then((answer) => setText(answer.text), () => {});
    read();
    const timer = state !== "finished" && setInterval(read, 2000);
    return () => clearInterval(timer);
  }, [path, state]);
  const act = (part, body, said) => call(part, body).then(() => { setMessage(said); setTimeout(look, 1500); }, (error) => setMessage(error.message));
  const stop = () => act("stop", { run: path }, "The run saves and stops.");
  const resume = () => act("begin", { what: "resume", name: path }, "The run is resumed; its output is below.");
  if (state === "finished" && !text) return null;
  return html`<section class="card" aria-label=${`Process of ${name}`}><div class="spread"><h2>${name} <span class=${`tag ${state}`}>${state}</span></h2>
    <span class="row tight">${running && html`<button onClick=${stop}>Stop</button>`}${state === "stopped" && resumes && html`<button onClick=${resume}>Resume</button>`}</span></div>
    <p class="soft" role="status">${message}</p>${text && html`<details open=${state !== "finished"}><summary class="soft">output</summary><pre tabindex="0">${text.slice(-3000)}</pre></details>`}</section>`;
}

export function Runs({ things, look }) {
  const runs = things.filter((each) => KINDS.includes(each.kind));
  const [chosen, choose] = useKept("runs.chosen", null);
  const compared = named(things, "comparison");
  const [comparison, compare] = useKept("runs.comparison", null);
  const shown = compared.some(([path]) => path === comparison) ? comparison : runs.length ? null : compared[0]?.[0];
  const first = useRef(null);
  if (chosen === null && runs.length) first.current ??= [runs[0].path];
  const paths = chosen ?? first.current ?? [];
  const [live, problem] = useLive(paths);
  const gone = paths.filter((path) => live[path]?.state === "gone");
  useEffect(() => { if (Object.values(live).some((each) => ["running", "finished"].includes(each.state))) look(); }, [Object.values(live).map((each) => each.state + (each.points.length > 0)).join()]);
  const names = Object.fromEntries(paths.map((path) => [path, things.find((each) => each.path === path)?.name ?? path.split(/[/\\]/).slice(-2).join("/")]));
  const levels = new Set(paths.map((path) => things.find((each) => each.path === path)?.facts.unigram_entropy).filter(Boolean));
  const kind = (path) => things.find((each) => each.path === path)?.kind;
  // A run that has just begun has no recipe yet.
  const pretrained = paths.filter((path) => kind(path) === "run" && live[path]?.points.length > 0);
  return html`${runs.length ? html`<${Table} runs=${runs} chosen=${paths} choose=${choose} live=${live} />` : html`<p>There is no run in the folders yet.</p>`}
    ${compared.length > 0 && html`<div class="row"><${Choice} label="Comparison" none="none" value=${shown} options=${compared} onChange=${compare} /></div>`}
    ${shown && html`<${Comparison} key=${shown} folder=${shown} name=${compared.find(([path]) => path === shown)[1]} />`}
    <${Begin} things=${things} look=${look} choose=${(path) => choose([...paths, path].slice(-6))} />
    <${Problem} of=${problem} />${gone.map((path) => html`<div class="row tight" key=${path}><${Problem} of=${`${names[path]} was not found: it was removed, is outside the studio's folders, or failed to start (see its output).`} />
      <button onClick=${() => choose(paths.filter((each) => each !== path))}>Remove from the page</button></div>`)}
    ${paths.length > 0 && html`<${Curves} runs=${paths.filter((path) => live[path]).map((path) => ({ name: names[path], points: live[path].points }))} level=${levels.size === 1 ? [...levels][0] : null} />`}
    ${paths.map((path) => live[path] && html`<${Control} key=${path} path=${path} name=${names[path]} state=${live[path].state} resumes=${!["finetuning", "embedder"].includes(kind(path))} look=${look} />`)}
    ${paths.map((path) => live[path] && html`<${Lines} key=${path} name=${names[path]} points=${live[path].points} />`)}
    ${paths.filter((path) => kind(path) === "finetuning" && live[path]?.state === "finished").map((path) => html`<${Finetuning} key=${path} path=${path} name=${names[path]} />`)}
    ${pretrained.length > 1 && !gone.length && html`<${Differences} paths=${pretrained} names=${names} />`}`;
}
