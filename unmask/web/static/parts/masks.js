// All strategies on one text: units, masks, probabilities, and shares over many epochs.
import {
  Busy, Choice, Component, Copy, NumberField, Problem, Segmented, Slider, TextArea, html, named, percent, useCall, useKept, whole,
} from "../common.js";

const EXAMPLE = "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: rough winds do shake "
  + "the darling buds of May, and summer's lease hath all too short a date.";
const VIEWS = [["masks", "Masks"], ["units", "Units and probabilities"], ["often", "How often, over 200 epochs"]];

const SCORES = { loss: "losses", accuracy: "mistakes", embedding: "embeddings", pos_loss: "losses by part of speech" };
const words = (names) => names.map((name) => SCORES[name] ?? name).join(" and ");

class Strategy extends Component { // rendered again only if its answer has changed
  shouldComponentUpdate(next) {
    return ["of", "tokens", "view"].some((name) => next[name] !== this.props[name]);
  }

  render({ of, tokens, begin, view }) {
    const seen = new Map(of.targets.map(([place, kind, text]) => [place, [kind, text]]));
    const token = (place, number) => {
      const [before, text] = tokens[place - begin];
      const gap = number ? before : ""; // a unit's first gap is put before the unit
      const [kind, shown] = seen.get(place) || [];
      if (view === "often" && of.often) {
        const share = of.often[place - begin];
        return html`${gap}<span class="scale" title=${`${percent(share)} of ${of.epochs} epochs`}
          style=${{ background: `color-mix(in srgb, var(--blue) ${Math.round(Math.min(1, share * 1.4) * 70)}%, transparent)` }}>${text}</span>`;
      }
      return html`${gap}${kind ? html`<span class=${kind} title=${`${text}: ${kind}`}>${kind === "masked" ? text : shown}</span>` : text}`;
    };
    // Tokens that belong to no unit, such as unknown ones, are never masked.
    const units = [];
    let next = begin;
    const plain = (end) => { for (; next < end; next += 1) units.push(tokens[next - begin].join("")); };
    for (const [first, size, chance] of of.units) {
      plain(Math.max(first, begin));
      const places = [];
      for (; next < Math.min(first + size, begin + tokens.length); next += 1) places.push(next);
      units.push(places.length > 0 && tokens[places[0] - begin][0], html`<span class=${view === "units" ? "unit" : ""} title=${`a unit of ${size}, probability ${percent(chance)}`}>
        ${places.map(token)}${view === "units" && html`<sup>${Math.round(100 * chance)}</sup>`}</span>`);
    }
    plain(begin + tokens.length);
    return html`<section class="card" aria-label=${of.name}>
      <div class="spread"><h2>${of.name}</h2><small>
        ${percent(of.rate)} hidden here, ${percent(of.expected)} expected${of.mean_rate != null && `, ${percent(of.mean_rate)} over ${of.epochs} epochs`};
        ${" "}${whole(of.num_units)} units</small></div>
      ${of.follows.length > 0 && html`<p class="soft">${of.missing.length ? `Needs the ${words(of.missing)} of a run; shown with equal weights.` : `Weights follow the ${words(of.follows)} of this run.`}</p>`}
      <p class="text">${units}</p></section>`;
  }
}

export function Masks({ things }) {
  const [source, setSource] = useKept("masks.source", null);
  const [text, setText] = useKept("masks.text", EXAMPLE);
  const [document, setDocument] = useKept("masks.document", null);
  const [rate, setRate] = useKept("masks.rate", 0.15);
  const [p, setP] = useKept("masks.p", 0.2);
  const [longest, setLongest] = useKept("masks.longest", 10);
  const [epoch, setEpoch] = useKept("masks.epoch", 0);
  const [seed, setSeed] = useKept("masks.seed", 0);
  const [view, setView] = useKept("masks.view", "masks");
  const [begin, setBegin] = useKept("masks.begin", 0);
  const arguments_ = {
    text: document == null ? text : "", source, document, rate, span_p: p, longest_span: longest, epoch, seed: seed ?? 0, begin,
  };
  const quick = useCall("masks", arguments_, { delay: 60 });
  const slow = useCall("masks", { ...arguments_, epochs: 200 }, { delay: 500, when: view === "often" });
  const { data } = view === "often" && slow.data && !slow.busy ? slow : quick;
  const mean = (1 - (1 - p) ** longest * (1 + p * longest)) / p / (1 - (1 - p) ** longest);
  return html`
    <div class="row">
      <${Choice} label="Tokenizer and counts" value=${source} none="Tiny Shakespeare"
        options=${named(things, "data", "run")} onChange=${(each) => { setSource(each); setDocument(null); setBegin(0); }} />
      ${source && html`<${NumberField} label="Piece of the data" min="0" value=${document} placeholder="typed text"
        onChange=${(each) => { setDocument(each); setBegin(0); }} />`}
      <${Slider} label="Rate" shown=${percent(rate, 0)} min="0.01" max="0.95" step="0.01" value=${rate} onChange=${setRate} />
      <${Slider} label="Span: mean words" shown=${mean.toFixed(1)} min="0.05" max="0.9" step="0.05" value=${0.95 - p}
        onChange=${(value) => setP(Math.round((0.95 - value) * 100) / 100)} />
      <${Slider} label="Longest span" shown=${longest} min="1" max="30" step="1" value=${longest} onChange=${setLongest} />
      <${NumberField} label="Seed" min="0" value=${seed} onChange=${setSeed} />
      <${NumberField} label="Epoch" min="0" value=${epoch} onChange=${(each) => setEpoch(each ?? 0)} />
      <button class="main" onClick=${() => setEpoch(epoch + 1)}>Next epoch</button>
    </div>
    ${document == null && html`<${TextArea} label="Text" value=${text} onChange=${(each) => { setText(each); setBegin(0); }} />`}
    <div class="spread"><${Segmented} label="What is shown" value=${view} options=${VIEWS} onChange=${setView} />
      <span class="row tight"><span class="masked">masked</span><span class="random">random token</span><span class="unchanged">unchanged</span></span></div>
    <${Problem} of=${quick.error} /><${Busy} when=${quick.busy || (view === "often" && slow.busy)} what="masking" />
    ${data && html`
      ${data.total > data.window && html`<div class="row tight" role="group" aria-label="Part of the text">
        <button disabled=${data.begin === 0} onClick=${() => setBegin(Math.max(0, begin - data.window))}>Earlier</button>
        <small>tokens ${whole(data.begin + 1)} to ${whole(Math.min(data.begin + data.window, data.total))} of ${whole(data.total)}; the rest is masked, too</small>
        <button disabled=${data.begin + data.window >= data.total} onClick=${() => setBegin(begin + data.window)}>Later</button></div>`}
      <div class="grid">${data.strategies.map((each) => html`<${Strategy} key=${each.name} of=${each}
        tokens=${data.tokens} begin=${data.begin} view=${view} />`)}</div>
      ${Object.entries(data.left_out).map(([name, why]) => html`<p class="soft" key=${name}><b>${name}</b> is not shown: ${why}</p>`)}
      <${Copy} of=${data.copy} />
      <p class="soft">The code has the text, rate, seed and tokenizer, but no spans, epoch, piece of the data or counts.</p>`}`;
}
