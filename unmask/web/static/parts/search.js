// One query, ranked by vectors, by words and by both; hits are judged with two keys.
import { Busy, Choice, Copy, Problem, Slider, TextField, cut, fixed, html, named, useCall, useEffect, useKept, useState, whole } from "../common.js";

const storedJudgements = (index) => { try { return JSON.parse(localStorage.getItem(`judgements ${index}`)) || {}; } catch { return {}; } };

// Identifies a document in any index and after any change of it, unlike its number.
const keyOf = (hit) => JSON.stringify([hit.file, hit.id]);

// The documents of a judged query, each with its file, id and grade.
const graded = ({ grades }) => Object.entries(grades).map(([key, grade]) => [...JSON.parse(key), grade]);

const Marked = ({ text, marks }) => html`<span>${cut(text, marks).map((part, n) => (n % 2 ? html`<mark>${part}</mark>` : part))}</span>`;

function Hit({ hit, grade, judge }) {
  const key = (event) => {
    const value = { y: 1, n: 0 }[event.key];
    if (value === undefined) return;
    event.preventDefault();
    judge(keyOf(hit), value);
    event.currentTarget.nextElementSibling?.focus();
  };
  return html`<article class="hit" tabindex="0" onKeyDown=${key} aria-label=${`Hit ${hit.rank}${grade == null ? "" : grade ? ", relevant" : ", not relevant"}`}>
    <span class="row tight"><b>${hit.rank}</b><small>${fixed(hit.score)}</small>${hit.title && html`<b>${hit.title}</b>`}
      <button class="quiet" aria-pressed=${String(grade === 1)} onClick=${() => judge(keyOf(hit), 1)}>relevant</button>
      <button class="quiet" aria-pressed=${String(grade === 0)} onClick=${() => judge(keyOf(hit), 0)}>not</button>
      ${grade != null && html`<span class=${grade ? "tag yes" : "tag no"}>${grade ? "relevant" : "not relevant"}</span>`}</span>
    <${Marked} text=${hit.snippet} marks=${hit.marks} /><small>${String(hit.file).split(/[/\\]/).pop()}, ${hit.id}</small></article>`;
}

export function Search({ things }) {
  const indexes = named(things, "index");
  const [first, setFirst] = useKept("search.index", null);
  const [second, setSecond] = useKept("search.second", null);
  const [query, setQuery] = useKept("search.query", "a storm at sea");
  const [weight, setWeight] = useKept("search.weight", 0.5);
  const index = first ?? indexes[0]?.[0];
  const both = [index, second].filter(Boolean);
  const [judgements, setJudgements] = useState({});
  useEffect(() => { setJudgements(index ? storedJudgements(index) : {}); }, [index]);
  const { data, error, busy } = useCall("search", { indexes: both, query, words_weight: weight }, { delay: 150, when: both.length > 0 && query.trim().length > 0 });
  const column = (each) => (both.length > 1 ? `${each.name}, ${indexes.find(([path]) => path === each.index)?.[1]}` : each.name);
  const judge = (key, grade) => {
    const now = { ...judgements, [query]: { grades: { ...judgements[query]?.grades, [key]: grade } } };
    setJudgements(now);
    try { localStorage.setItem(`judgements ${index}`, JSON.stringify(now)); } catch { /* it is full */ }
  };
  // The judged queries are ranked again, by these indexes and with this weight.
  const queries = Object.fromEntries(Object.entries(judgements).map(([text, each]) => [text, graded(each)]));
  const { data: figures, error: unranked, busy: ranking } = useCall("judged", { indexes: both, words_weight: weight, grades: queries }, { delay: 1500, when: Object.keys(queries).length > 0 });
  if (!index) return html`<p>There is no index in the folders: make one with <code>unmask search index MODEL TEXT --out INDEX</code>.</p>`;
  const grades = judgements[query]?.grades ?? {};
  return html`<div class="row"><${Choice} label="Index" value=${index} options=${indexes} onChange=${setFirst} />
      <${Choice} label="Compare with" none="none" value=${second} options=${indexes.filter(([path]) => path !== index)} onChange=${setSecond} />
      <${TextField} label="Query" value=${query} onChange=${setQuery} />
      <${Slider} label="Weight of words in both" shown=${weight.toFixed(2)} min="0" max="1" step="0.05" value=${weight} onChange=${setWeight} /></div>
    <p class="soft">Judge the selected hit with y (relevant) or n (not relevant). Judgements stay in this browser.</p>
    <${Problem} of=${error} /><${Busy} when=${busy} what="searching" />
    ${Object.keys(queries).length > 0 && html`<section class="card" aria-label="Your judgements"><div class="spread"><h2>nDCG@10 of your judgements</h2><button class="quiet" onClick=${() => { localStorage.removeItem(`judgements ${index}`); setJudgements({}); }}>forget them</button></div>
      <${Problem} of=${unranked} /><${Busy} when=${ranking} what="ranking the judged queries" />${figures && html`<table><thead><tr><th>ranked by</th><th class="number">nDCG@10</th><th class="number">95 %, over queries</th><th class="number">queries</th></tr></thead><tbody>
      ${figures.columns.map((each) => html`<tr key=${column(each)}><td>${column(each)}</td><td class="number">${fixed(each.ndcg_at_10)}</td><td class="number">${each.interval ? `${fixed(each.interval[0])} to ${fixed(each.interval[1])}` : "–"}</td><td class="number">${whole(each.queries)}</td></tr>`)}</tbody></table>
      ${figures.left_out > 0 && html`<p class="soft">Queries without a relevant hit so far are left out: ${figures.left_out}. Unjudged hits count as not relevant.</p>`}`}</section>`}
    ${data && html`<div class="grid">${data.columns.map((each) => html`<section class="card" key=${column(each)} aria-label=${column(each)}><div class="spread"><h2>${column(each)}</h2>${each.seconds != null && html`<small>${(1000 * each.seconds).toFixed(0)} ms</small>`}</div>
      <${Problem} of=${each.error} />${!each.error && !each.hits.length && html`<p class="soft">No document shares a word with the query.</p>`}
      ${each.hits.map((hit) => html`<${Hit} key=${keyOf(hit)} hit=${hit} grade=${grades[keyOf(hit)]} judge=${judge} />`)}</section>`)}</div><${Copy} of=${data.copy} />`}`;
}
