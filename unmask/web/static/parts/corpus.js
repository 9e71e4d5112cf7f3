// A prepared text: counts, what was left out, texts of both splits, why one is held out, and tokens.
import { Busy, Choice, Problem, Segmented, TextArea, call, html, named, percent, useCall, useKept, useState, whole } from "../common.js";

function Why({ data, document }) {
  const [message, setMessage] = useState("");
  const ask = () => { setMessage("…"); call("why", { data, document }).then((answer) => setMessage(answer.reason), (error) => setMessage(error.message)); };
  return message ? html`<small role="status">${message}</small>` : html`<button class="quiet" onClick=${ask}>why here?</button>`;
}

function Tokens({ data }) {
  const [text, setText] = useKept("corpus.text", "What say you, my lord?");
  const { data: answer, error } = useCall("tokens", { data, text }, { delay: 120, when: text.length > 0 });
  return html`<section class="card" aria-label="Tokenizer"><h2>Tokenizer</h2><${TextArea} label="Text" value=${text} onChange=${setText} /><${Problem} of=${error} />
    ${answer && html`<p class="text">${answer.tokens.slice(0, 600).map(([token, id, , unknown], n) => html`<span class=${unknown ? "unit random" : "unit"} key=${n} title=${`id ${id}`}>${token}</span> `)}</p>
      <p class="soft">${whole(answer.tokens.length)} tokens, ${(text.length / Math.max(1, answer.tokens.length)).toFixed(2)} characters each; ${percent(answer.unknown, 2)} of the letters are unknown</p>`}</section>`;
}

export function Corpus({ things }) {
  const folders = named(things, "data");
  const [folder, setFolder] = useKept("corpus.data", null);
  const [split, setSplit] = useKept("corpus.split", "validation");
  const [begin, setBegin] = useKept("corpus.begin", 0);
  const data = folder ?? folders[0]?.[0];
  const { data: of, error, busy } = useCall("corpus", { data, split, begin }, { when: Boolean(data) });
  if (!data) return html`<p>There is no prepared data in the folders; runs and <code>unmask prepare</code> make it.</p>`;
  const turn = (to) => setBegin(Math.max(0, to));
  return html`<div class="row"><${Choice} label="Prepared data" value=${data} options=${folders} onChange=${(each) => { setFolder(each); setBegin(0); }} /></div>
    <${Problem} of=${error} /><${Busy} when=${busy && !of} what="opening" />
    ${of && html`<div class="figures"><div><b>${whole(of.splits.train.documents)}</b><small>documents to train on</small></div><div><b>${whole(of.splits.validation.documents)}</b><small>documents held out</small></div>
      <div><b>${whole(of.splits.train.tokens)}</b><small>tokens to train on</small></div><div><b>${whole(of.splits.validation.tokens)}</b><small>tokens held out</small></div>
      <div><b>${whole(of.vocab_size)}</b><small>entries of the vocabulary</small></div><div><b>${percent(of.unknown.share, 3)}</b><small>of the letters unknown to the tokenizer</small></div></div>
    <section class="card" aria-label="How it was made"><h2>How it was made</h2><p>${of.plan}.</p>
      <p class="soft">${of.sources.slice(0, 5).join(", ")}${of.sources.length > 5 ? ` and ${of.sources.length - 5} more` : ""}</p>
      <p>Left out: ${Object.entries(of.skipped).map(([why, count]) => `${whole(count)} ${why}`).join(", ") || "nothing"}.</p>
      <p>Near-duplicates: ${of.near.summary}.</p>${of.near.example && html`<p class="soft">Held out: “${of.near.example.held_out}”; in the training text: “${of.near.example.training}”</p>`}
      ${of.unknown.examples.length > 0 && html`<p>Unknown, for example: ${of.unknown.examples.join(", ")}</p>`}
      ${Object.keys(of.labels).length > 0 && html`<p>Classes: ${Object.entries(of.labels).map(([name, count]) => `${name} ${whole(count)}`).join(", ")}</p>`}</section>
    <section class="card" aria-label="Texts"><div class="spread"><h2>Texts</h2><${Segmented} label="Split" value=${split} options=${[["validation", "Held out"], ["train", "Training"]]} onChange=${(each) => { setSplit(each); setBegin(0); }} /></div>
      <div class="row tight"><button disabled=${begin === 0} onClick=${() => turn(begin - of.page)}>Earlier</button><small>${whole(of.begin + 1)} to ${whole(Math.min(of.begin + of.page, of.total))} of ${whole(of.total)}</small>
        <button disabled=${begin + of.page >= of.total} onClick=${() => turn(begin + of.page)}>Later</button></div>
      ${of.pieces.map(([number, document, offset, length, text]) => html`<div class="hit" key=${`${of.split}${number}`}><span>${text}</span>
        <span class="row tight"><small>document ${whole(document)}${offset ? `, from byte ${whole(offset)}` : ""}; ${whole(length)} tokens</small><${Why} key=${`${data} ${document}`} data=${data} document=${document} /></span></div>`)}</section>
    <${Tokens} data=${data} />`}`;
}
