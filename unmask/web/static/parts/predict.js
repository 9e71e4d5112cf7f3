// Hiding words by click or key, candidates for them, and surprise.
import {
  Busy, Choice, Component, Copy, Problem, Segmented, TextArea, call, html, named, percent, useCall, useEffect, useKept, useMemo, useRef, useState,
} from "../common.js";

const EXAMPLE = "What say you, my lord? The king is dead, and the night is long.";
// Scripts without spaces, where each letter is a word. A word has its marks
// (vowels in Hindi, accents) and joiners; an emoji its variants.
const SCRIPTS = ["Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Han", "Hiragana", "Katakana"];
const ALONE = `[${SCRIPTS.map((name) => String.raw`\p{scx=${name}}`).join("")}]`;
const WORD = new RegExp(String.raw`${ALONE}\p{M}*|(?:(?!${ALONE})[\p{L}\p{N}\p{M}'’\u200c\u200d])+|[^\s\p{L}\p{N}](?:[\p{M}\p{Emoji_Modifier}]|\u200d\p{Emoji})*`, "gu");
const BLOCK = 150; // words that are rendered together
const PASSAGE = 700; // characters that are scored at once
const countOf = (text) => Array.from(text).length; // as the server counts: characters, not units of UTF-16

class Block extends Component {
  shouldComponentUpdate(next) { return next.words !== this.props.words || next.marks !== this.props.marks; }

  render({ words, hidden }) {
    return html`<span>${words.map(([gap, word, number]) => html`${gap}<span class="word" role="button" data-n=${number}
      tabindex=${number === 0 ? 0 : -1} aria-pressed=${String(hidden.has(number))}>${word}</span>`)}</span>`;
  }
}

function Words({ text, hidden, toggle }) {
  const blocks = useMemo(() => {
    const made = [];
    let end = 0;
    [...text.matchAll(WORD)].forEach((match, number) => {
      if (number % BLOCK === 0) made.push([]);
      made.at(-1).push([text.slice(end, match.index), match[0], number]);
      end = match.index + match[0].length;
    });
    return made;
  }, [text]);
  const box = useRef(null);
  const key = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const number = Number(event.target.dataset.n);
    if (step) {
      const next = box.current.querySelector(`[data-n="${number + step}"]`);
      if (next) { event.target.tabIndex = -1; next.tabIndex = 0; next.focus(); }
    } else if (event.key === "Enter" || event.key === " ") toggle(number);
    else return;
    event.preventDefault();
  };
  return html`<p class="card text long" ref=${box} role="group" aria-label="Words: Enter hides one, arrow keys move" onKeyDown=${key}
    onClick=${(event) => event.target.dataset.n && toggle(Number(event.target.dataset.n))}>
    ${blocks.map((words, number) => html`<${Block} key=${number} words=${words} hidden=${hidden}
      marks=${words.map(([, , each]) => hidden.has(each)).join()} />`)}</p>`;
}

const Bar = ({ text, share, right }) => html`<div class=${right ? "bar right" : "bar"}><i style=${{ width: `${100 * share}%` }}></i>
  <span>${text === " " ? "␣" : text}${right ? " ✓" : ""}</span><span class="number">${percent(share)}</span></div>`;

function Filled({ of, name, words }) {
  if (of.error) return html`<section class="card"><h2>${name}</h2><${Problem} of=${of.error} /></section>`;
  return html`<section class="card" aria-label=${`Predictions of ${name}`}><h2>${name}</h2><div class="grid">
    ${of.masks.map((mask, number) => html`<div key=${number}><small>${words[number] ? `“${words[number]}”` : `mask ${number + 1}`}${mask.truth != null && `: ${percent(mask.truth, 2)}`}</small>
      ${mask.candidates.map(([text, share]) => html`<${Bar} key=${text} text=${text} share=${share} right=${text === words[number]} />`)}</div>`)}</div>
    ${of.fillings.length > 0 && html`<small>all masks together</small>${of.fillings.slice(0, 5).map(([text, share]) => html`<p key=${text}><span class="number soft">${percent(share, 2)}</span> ${text.length > 400 ? `…${text.slice(0, 400)}…` : text}</p>`)}`}</section>`;
}

class Passage extends Component { // rendered once
  shouldComponentUpdate(next) { return next.letters !== this.props.letters || next.tokens !== this.props.tokens; }

  render({ letters, begin, end, tokens }) {
    const part = (from, to) => letters.slice(from, to).join("");
    let last = begin;
    const spans = tokens.map(([first, stop, loss]) => {
      const from = Math.max(first, last); // tokens of bytes may share a character
      const gap = part(last, from);
      last = stop;
      return html`${gap}<span class="scale" title=${`${loss.toFixed(2)} nats`}
        style=${{ background: `color-mix(in srgb, var(--vermilion) ${Math.round(Math.min(1, loss / 10) * 65)}%, transparent)` }}>${part(from, stop)}</span>`;
    });
    return html`<span>${spans}${part(last, end)}</span>`;
  }
}

// Passages are scored one after another, so that a long text is coloured step by step.
function Surprise({ model, text }) {
  const [state, set] = useState({ passages: [], done: 0 });
  const letters = useMemo(() => Array.from(text), [text]);
  const part = (from, to) => letters.slice(from, to).join("");
  useEffect(() => {
    const stop = new AbortController();
    (async () => {
      set({ passages: [], done: 0 });
      for (let begin = 0; begin < letters.length;) {
        let end = Math.min(letters.length, begin + PASSAGE);
        if (end < letters.length) end = Math.max(letters.lastIndexOf(" ", end), begin + PASSAGE / 2);
        const passage = { begin, end, tokens: [] };
        if (part(begin, end).trim()) {
          const { tokens } = await call("surprise", { model, text: part(begin, end) }, stop.signal);
          passage.tokens = tokens.map(([first, last, loss]) => [passage.begin + first, passage.begin + last, loss]);
        }
        begin = end;
        set((before) => ({ passages: [...before.passages, passage], done: end }));
      }
    })().catch((error) => error.name !== "AbortError" && set((before) => ({ ...before, error: error.message })));
    return () => stop.abort();
  }, [model, text]);
  const { passages, done, error } = state;
  const tokens = passages.flatMap((each) => each.tokens);
  const total = tokens.reduce((sum, token) => sum + token[2], 0);
  const worst = [...tokens].sort((a, b) => b[2] - a[2]).slice(0, 12);
  return html`<${Problem} of=${error} /><${Busy} when=${!error && done < letters.length} what=${`each token is hidden in turn, ${percent(done / Math.max(1, letters.length), 0)}`} />
    <p class="card text long" tabindex="0">${passages.map((each) => html`<${Passage} key=${each.begin} letters=${letters} ...${each} />`)}${part(done)}</p>
    ${tokens.length > 0 && html`<p class="soft">pseudo-log-likelihood ${(-total).toFixed(2)} nats, ${(total / tokens.length).toFixed(2)} per token; passages are scored separately</p>
    <section class="card" aria-label="Largest surprises"><h2>Largest surprises</h2>
      ${worst.map(([first, last, loss], n) => html`<p key=${n}><span class="number soft">${loss.toFixed(2)} nats</span>${" "}
        …${part(Math.max(0, first - 30), first)}<mark>${part(first, last)}</mark>${part(last, last + 30)}…</p>`)}</section>`}`;
}

export function Predict({ things }) {
  const models = named(things, "model", "checkpoint");
  const [model, setModel] = useKept("predict.model", null);
  const [second, setSecond] = useKept("predict.second", null);
  const [text, setText] = useKept("predict.text", EXAMPLE);
  const [numbers, setNumbers] = useKept("predict.hidden", [2]);
  const [view, setView] = useKept("predict.view", "fill");
  const [editing, edit] = useState(false);
  const chosen = model ?? models[0]?.[0];
  const hidden = useMemo(() => new Set(numbers), [numbers]);
  const matches = useMemo(() => [...text.matchAll(WORD)], [text]);
  const places = numbers.filter((n) => n < matches.length).sort((a, b) => a - b).map((n) => [matches[n].index, matches[n].index + matches[n][0].length]);
  const counted = places.map((place) => place.map((unit) => countOf(text.slice(0, unit))));
  const both = [chosen, second].filter(Boolean);
  const typed = /\[MASK\]|<mask>/.test(text);
  const { data, error, busy } = useCall("predict", { models: both, text, hidden: counted },
    { when: view === "fill" && both.length > 0 && (places.length > 0 || typed), delay: 20 });
  if (!models.length) return html`<p>There is no model in the folders yet. Train one in <a href="#runs">Runs</a>, or start the studio with the folder of a model.</p>`;
  const name = (path) => models.find(([each]) => each === path)?.[1] ?? path;
  return html`<div class="row">
      <${Choice} label="Model" value=${chosen} options=${models} onChange=${setModel} />
      <${Choice} label="Compare with" value=${second} none="none" options=${models} onChange=${setSecond} />
      <${Segmented} label="What is shown" value=${view} options=${[["fill", "Hide words"], ["surprise", "Surprise"]]} onChange=${setView} />
      <button aria-pressed=${String(editing)} onClick=${() => edit(!editing)}>Edit the text</button>
      <button disabled=${!numbers.length} onClick=${() => setNumbers([])}>Show all words</button></div>
    ${editing && html`<${TextArea} label="Text" value=${text} onChange=${(each) => { setText(each); setNumbers([]); }} />`}
    ${view === "surprise" ? both.map((path) => html`<div key=${path}>${both.length > 1 && html`<h2>${name(path)}</h2>`}<${Surprise} model=${path} text=${text} /></div>`) : html`
      <${Words} text=${text} hidden=${hidden} toggle=${(n) => setNumbers(hidden.has(n) ? numbers.filter((each) => each !== n) : [...numbers, n])} />
      <${Problem} of=${error} /><${Busy} when=${busy && both.length > 0 && places.length > 0} what="predicting" />
      ${places.length === 0 && !typed ? html`<p class="soft">To hide a word, click it, or choose it with the arrow keys and Enter.</p>`
    : data && html`<div class="grid">${data.results.map((each) => html`<${Filled} key=${each.model} of=${each} name=${name(each.model)}
        words=${data.results[0].masks?.length === places.length ? places.map(([begin, stop]) => text.slice(begin, stop)) : []} />`)}</div><${Copy} of=${data.copy} />`}`}`;
}
