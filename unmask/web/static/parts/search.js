// One query, ranked by vectors, by words and by both.
import { Busy, Choice, Copy, Problem, Slider, TextField, cut, fixed, html, named, useCall, useKept } from "../common.js";

const Marked = ({ text, marks }) => html`<span>${cut(text, marks).map((part, n) => (n % 2 ? html`<mark>${part}</mark>` : part))}</span>`;

const Hit = ({ hit }) => html`<article class="hit" tabindex="0" aria-label=${`Hit ${hit.rank}`}>
    <span class="row tight"><b>${hit.rank}</b><small>${fixed(hit.score)}</small>${hit.title && html`<b>${hit.title}</b>`}</span>
    <${Marked} text=${hit.snippet} marks=${hit.marks} /><small>${String(hit.file).split(/[/\\]/).pop()}, ${hit.id}</small></article>`;

export function Search({ things }) {
  const indexes = named(things, "index");
  const [first, setFirst] = useKept("search.index", null);
  const [second, setSecond] = useKept("search.second", null);
  const [query, setQuery] = useKept("search.query", "a storm at sea");
  const [weight, setWeight] = useKept("search.weight", 0.5);
  const index = first ?? indexes[0]?.[0];
  const both = [index, second].filter(Boolean);
  const { data, error, busy } = useCall("search", { indexes: both, query, words_weight: weight }, { delay: 150, when: both.length > 0 && query.trim().length > 0 });
  const column = (each) => (both.length > 1 ? `${each.name}, ${indexes.find(([path]) => path === each.index)?.[1]}` : each.name);
  if (!index) return html`<p>There is no index in the folders: make one with <code>unmask search index MODEL TEXT --out INDEX</code>.</p>`;
  return html`<div class="row"><${Choice} label="Index" value=${index} options=${indexes} onChange=${setFirst} />
      <${Choice} label="Compare with" none="none" value=${second} options=${indexes.filter(([path]) => path !== index)} onChange=${setSecond} />
      <${TextField} label="Query" value=${query} onChange=${setQuery} />
      <${Slider} label="Weight of words in both" shown=${weight.toFixed(2)} min="0" max="1" step="0.05" value=${weight} onChange=${setWeight} /></div>
    <${Problem} of=${error} /><${Busy} when=${busy} what="searching" />
    ${data && html`<div class="grid">${data.columns.map((each) => html`<section class="card" key=${column(each)} aria-label=${column(each)}><div class="spread"><h2>${column(each)}</h2>${each.seconds != null && html`<small>${(1000 * each.seconds).toFixed(0)} ms</small>`}</div>
      <${Problem} of=${each.error} />${!each.error && !each.hits.length && html`<p class="soft">No document shares a word with the query.</p>`}
      ${each.hits.map((hit) => html`<${Hit} key=${hit.rank} hit=${hit} />`)}</section>`)}</div><${Copy} of=${data.copy} />`}`;
}
