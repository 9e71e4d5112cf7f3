// The frame: shows the part that the address's hash names, and lists the things in the folders.
import { render } from "./vendor/preact-htm.js";
import { Problem, call, html, useEffect, useState } from "./common.js";
import { Masks } from "./parts/masks.js";
import { Predict } from "./parts/predict.js";
import { Runs } from "./parts/runs.js";
import { Search } from "./parts/search.js";
import { Corpus } from "./parts/corpus.js";
import { Grammar } from "./parts/grammar.js";
import { Space } from "./parts/space.js";

const PARTS = {
  masks: ["Masks", Masks, "What each strategy masks in a text, and with what probability."],
  predict: ["Predict", Predict, "Hide words and see what a model predicts for them, or see which words surprise it."],
  runs: ["Runs", Runs, "Figures and curves of all runs, while they train and afterwards."],
  corpus: ["Corpus", Corpus, "What a prepared text holds, what was left out of it, and why."],
  search: ["Search", Search, "The same query by vectors, by words and by both, side by side."],
  grammar: ["Grammar", Grammar, "Which of two sentences a model finds likelier."],
  space: ["Space", Space, "A map of texts by their vectors."],
};
const part = () => (location.hash.slice(1) in PARTS ? location.hash.slice(1) : "masks");

// Saves what is shown as one file that needs no server, without controls and with canvases as pictures.
async function save(title) {
  const sheets = ["shared/look", "style", "shared/uplot"].map((name) => fetch(`/static/${name}.css`).then((sheet) => sheet.text()));
  const style = (await Promise.all(sheets)).join("\n");
  const main = document.querySelector("main").cloneNode(true);
  const drawn = document.querySelectorAll("main canvas");
  main.querySelectorAll("canvas").forEach((canvas, n) => {
    const picture = document.createElement("img");
    picture.src = drawn[n].toDataURL();
    picture.alt = canvas.getAttribute("aria-label") || "curves";
    picture.style.cssText = canvas.style.cssText;
    picture.className = canvas.className;
    canvas.replaceWith(picture);
  });
  const typed = "textarea, input:not([type])"; // texts, queries and sentences; other inputs are controls
  main.querySelectorAll(typed).forEach((field, n) => {
    const text = document.createElement("p");
    text.textContent = document.querySelector("main").querySelectorAll(typed)[n].value;
    field.replaceWith(text);
  });
  main.querySelectorAll("button, input, select, details, .busy").forEach((each) => each.remove());
  const head = `<meta charset="utf-8"><title>${title}: unmask studio</title><meta name="viewport" content="width=device-width"><style>${style}</style>`;
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([`<!doctype html>\n<html lang="en"><head>${head}</head><body>${main.outerHTML}</body></html>\n`], { type: "text/html" }));
  link.download = `${title.toLowerCase()}.html`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function App() {
  const [name, go] = useState(part);
  const [things, setThings] = useState([]);
  const [error, setError] = useState("");
  const look = () => call("things").then((answer) => {
    setThings(answer.things);
    setError(answer.is_cut ? `Only ${answer.things.length} runs, models and other things are shown, and newer ones may be missing: start the studio on fewer folders.` : "");
    // A studio that was started on a comparison opens with it.
    if (!location.hash && answer.things.some((each) => each.kind === "comparison" && answer.roots.includes(each.path))) location.hash = "runs";
  }, (e) => setError(e.message));
  useEffect(() => { look(); }, []);
  useEffect(() => {
    const moved = () => { go(part()); document.querySelector("main h1")?.focus(); };
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  const [title, Part, about] = PARTS[name];
  useEffect(() => { document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }); }, [name]);
  useEffect(() => { document.title = `${title}: unmask studio`; }, [name]);
  return html`<div class="frame">
    <nav aria-label="Parts"><b>unmask studio</b>
      ${Object.entries(PARTS).map(([key, [each]]) => html`<a key=${key} href=${`#${key}`}
        aria-current=${key === name ? "page" : undefined}>${each}</a>`)}</nav>
    <main><header><div class="spread"><h1 tabindex="-1">${title}</h1><button class="quiet" onClick=${() => save(title).catch((e) => setError(e.message))}>save as one file</button></div>
      <p class="soft">${about}</p></header>
      <${Problem} of=${error} /><${Part} key=${name} things=${things} look=${look} /></main></div>`;
}

// The token is a cookie now, so it need not stay visible in the address.
if (location.pathname !== "/") history.replaceState(null, "", `/${location.hash}`);
const root = document.getElementById("app");
root.replaceChildren();
render(html`<${App} />`, root);
