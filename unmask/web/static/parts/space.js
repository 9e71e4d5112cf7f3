import { html } from "../common.js"; export const Space = () => html`<p>soon</p>`;
