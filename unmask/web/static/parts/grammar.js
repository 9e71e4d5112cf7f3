// Minimal pairs: the right sentence, the wrong one, and which of them a model finds likelier.
import { Busy, Choice, Copy, Problem, Segmented, fixed, html, named, percent, useCall, useKept } from "../common.js";

const EXAMPLES = [["The king is here.", "The king are here."], ["My lords are here.", "My lords is here."]];
const TIE = 1e-4; // nats, as in unmask.measure.questions: counted as one half

export function Grammar({ things }) {
  const models = named(things, "model", "checkpoint");
  const [model, setModel] = useKept("grammar.model", null);
  const [second, setSecond] = useKept("grammar.second", null);
  const [form, setForm] = useKept("grammar.form", "plain");
  const [pairs, setPairs] = useKept("grammar.pairs", EXAMPLES);
  const first = model ?? models[0]?.[0];
  const both = [first, second].filter(Boolean);
  const whole = pairs.filter((pair) => pair.every((sentence) => sentence.trim()));
  const { data, error, busy } = useCall("grammar", { models: both, pairs: whole, form }, { delay: 250, when: both.length > 0 && whole.length > 0 });
  if (!first) return html`<p>There is no model in the folders yet.</p>`;
  const name = (path) => models.find(([each]) => each === path)?.[1] ?? path;
  const put = (row, side, text) => setPairs(pairs.map((pair, n) => (n === row ? pair.map((old, m) => (m === side ? text : old)) : pair)));
  const scoreOf = (result, row) => result.scores?.[whole.indexOf(pairs[row])];
  return html`<div class="row"><${Choice} label="Model" value=${first} options=${models} onChange=${setModel} />
      <${Choice} label="Compare with" none="none" value=${second} options=${models} onChange=${setSecond} />
      <${Segmented} label="Form of the score" value=${form} options=${[["plain", "One token hidden"], ["word_l2r", "With the rest of its word"]]} onChange=${setForm} /></div>
    <${Problem} of=${error} /><${Busy} when=${busy} what="scoring" />
    <div class="card scroll" tabindex="0"><table class="pairs"><thead><tr><th>right</th><th>wrong</th>${(data?.results ?? []).map((each) => html`<th key=${each.model} class="number">right − wrong, nats: ${name(each.model)}</th>`)}<td></td></tr></thead><tbody>
      ${pairs.map((pair, row) => html`<tr key=${row}>${pair.map((sentence, side) => html`<td key=${side}><input aria-label=${`${side ? "Wrong" : "Right"} sentence ${row + 1}`} value=${sentence} placeholder=${side ? "wrong" : "right"} onInput=${(event) => put(row, side, event.target.value)} /></td>`)}
        ${(data?.results ?? []).map((each) => {
          const scores = scoreOf(each, row);
          const better = scores && scores[0] - scores[1];
          const [look, mark] = Math.abs(better) <= TIE ? ["tag", "="] : better > 0 ? ["tag yes", "✓"] : ["tag no", "✗"];
          return html`<td class="number" key=${each.model}>${scores ? html`<span class=${look}>${mark} ${fixed(better, 2)}</span><br /><small>${fixed(scores[0], 2)} and ${fixed(scores[1], 2)}</small>` : "–"}</td>`;
        })}
        <td><button class="quiet" aria-label=${`Remove pair ${row + 1}`} onClick=${() => setPairs(pairs.filter((_, n) => n !== row))}>remove</button></td></tr>`)}</tbody></table></div>
    <div class="row"><button onClick=${() => setPairs([...pairs, ["", ""]])}>Add a pair</button></div>
    ${data?.results.map((each) => html`<p key=${each.model}>${each.error ? html`<${Problem} of=${`${name(each.model)}: ${each.error}`} />` : html`${name(each.model)} prefers the right one in ${percent(each.counted.accuracy)} of ${each.counted.pairs} pairs (95 %: ${percent(each.counted.interval[0])} to ${percent(each.counted.interval[1])}).`}</p>`)}
    ${data && html`<${Copy} of=${data.copy} />`}`;
}
