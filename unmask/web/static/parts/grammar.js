import { html } from "../common.js"; export const Grammar = () => html`<p>soon</p>`;
