// Shared by all parts: calls of the server, stored state, and small controls.
import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";

export { html, useEffect, useRef, useState };
export { useMemo, Component } from "./vendor/preact-htm.js";

export const percent = (share, digits = 1) => (share == null ? "–" : `${(100 * share).toFixed(digits)} %`);
export const whole = (number) => (number == null ? "–" : Math.round(number).toLocaleString("en"));
export const fixed = (number, digits = 3) => (number == null || Number.isNaN(number) ? "–" : number.toFixed(digits));

const UNREACHABLE = "The studio does not answer; it may have stopped. Start it again with unmask studio, and open its address.";

async function answerOf(response) {
  const type = response.headers.get("content-type") || "";
  const answer = type.includes("json") ? await response.json() : { error: await response.text() };
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}

export async function call(name, body, signal) {
  let response;
  try {
    response = body === undefined
      ? await fetch(`/api/${name}`, { signal })
      : await fetch(`/api/${name}`, {
        method: "POST", signal, body: JSON.stringify(body), headers: { "content-type": "application/json" },
      });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error(UNREACHABLE);
  }
  return answerOf(response);
}

// The answer to the latest arguments; the previous one stays until it arrives, so that nothing jumps.
// Another `again` repeats the call.
export function useCall(name, body, { delay = 0, when = true, again = 0 } = {}) {
  const [state, set] = useState({ busy: when });
  const key = when ? JSON.stringify(body ?? null) : null;
  useEffect(() => {
    if (key === null) return undefined;
    const stop = new AbortController();
    set((before) => ({ ...before, busy: true }));
    const timer = setTimeout(() => {
      call(name, body, stop.signal).then(
        (data) => set({ data, busy: false }),
        (error) => error.name !== "AbortError" && set((before) => ({ ...before, error: error.message, busy: false })),
      );
    }, delay);
    return () => { clearTimeout(timer); stop.abort(); };
  }, [name, key, again]);
  return state;
}

// State that survives a reload of this tab.
export function useKept(name, initial) {
  const [value, set] = useState(() => {
    try { return JSON.parse(sessionStorage.getItem(name)) ?? initial; } catch { return initial; }
  });
  useEffect(() => { try { sessionStorage.setItem(name, JSON.stringify(value)); } catch { /* it is full */ } }, [value]);
  return [value, set];
}

// The text between ranges and within them, in turn. Positions count characters, not units of UTF-16.
export function cut(text, ranges) {
  const letters = Array.from(text), edges = [0, ...ranges.flat(), letters.length];
  return edges.slice(1).map((edge, n) => letters.slice(edges[n], edge).join(""));
}

export const Problem = ({ of }) => of && html`<p class="problem" role="alert">${of}</p>`;
export const Busy = ({ when, what = "working" }) => html`<p class="soft busy" role="status">${when ? `${what} …` : ""}</p>`;

let fields = 0;
function useId() {
  const id = useRef(null);
  id.current ??= `field-${fields += 1}`;
  return id.current;
}

export function Field({ label, wide, children }) {
  const id = useId();
  return html`<div class=${wide ? "field wide" : "field"}><label for=${id}>${label}</label>${children(id)}</div>`;
}

export const Slider = ({ label, shown, value, onChange, ...rest }) => html`<${Field} label=${`${label}: ${shown}`}>
  ${(id) => html`<input type="range" id=${id} value=${value} aria-valuetext=${shown} ...${rest}
    onInput=${(event) => onChange(Number(event.target.value))} />`}<//>`;

export const NumberField = ({ label, value, onChange, ...rest }) => html`<${Field} label=${label}>
  ${(id) => html`<input type="number" id=${id} value=${value} ...${rest}
    onInput=${(event) => onChange(event.target.value === "" ? null : Number(event.target.value))} />`}<//>`;

export const TextArea = ({ label, value, onChange, ...rest }) => html`<${Field} label=${label} wide>
  ${(id) => html`<textarea id=${id} value=${value} ...${rest} onInput=${(event) => onChange(event.target.value)} />`}<//>`;

export const TextField = ({ label, value, onChange, wide = true, ...rest }) => html`<${Field} label=${label} wide=${wide}>
  ${(id) => html`<input id=${id} value=${value} ...${rest} onInput=${(event) => onChange(event.target.value)} />`}<//>`;

export const Choice = ({ label, value, options, onChange, none }) => html`<${Field} label=${label}>
  ${(id) => html`<select id=${id} value=${value ?? ""} onChange=${(event) => onChange(event.target.value || null)}>
    ${none !== undefined && html`<option value="">${none}</option>`}
    ${options.map(([key, name]) => html`<option key=${key} value=${key} selected=${key === value}>${name}</option>`)}
  </select>`}<//>`;

export const Segmented = ({ label, value, options, onChange }) => html`<div class="segmented" role="group" aria-label=${label}>
  ${options.map(([key, name]) => html`<button key=${key} aria-pressed=${String(key === value)}
    onClick=${() => onChange(key)}>${name}</button>`)}</div>`;

export const named = (things, ...kinds) => kinds.flatMap((kind) => things.filter((each) => each.kind === kind)).map((each) => [each.path, each.name]);

// "Copy as command" and "copy as Python", for the action that an answer describes.
export function Copy({ of }) {
  const [message, setMessage] = useState("");
  if (!of) return null;
  const copy = (name) => navigator.clipboard.writeText(of[name]).then(
    () => setMessage(`Copied: ${of[name]}`), () => setMessage(of[name]));
  return html`<div class="row tight">
    <button class="quiet" onClick=${() => copy("command")}>copy as command</button>
    <button class="quiet" onClick=${() => copy("python")}>copy as Python</button>
    <span class="soft" role="status">${message && html`<code>${message.slice(0, 300)}</code>`}</span></div>`;
}
