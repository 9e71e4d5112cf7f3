import { html } from "../common.js"; export const Corpus = () => html`<p>soon</p>`;
