import { html } from "../common.js"; export const Search = () => html`<p>soon</p>`;
