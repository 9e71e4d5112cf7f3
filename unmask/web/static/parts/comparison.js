// A comparison: its verdict, tables, intervals and paired differences as in its report, and the curves of its runs.
import { Busy, Problem, html, useCall, useEffect, useRef, useState } from "../common.js";
import { Curves, useLive } from "./curves.js";

function Intervals({ of }) {
  const box = useRef(null);
  useEffect(() => { intervalsIn(box.current, of); }, [of]);
  return html`<figure><figcaption class="soft">${of.title}</figcaption><div class="intervals" ref=${box}></div></figure>`;
}

const side = (head) => (head.startsWith(">") ? "number" : "");

function Sheet({ columns, rows }) {
  return html`<div class="scroll" tabindex="0"><table><thead><tr>${columns.map((head, n) => html`<th key=${n} class=${side(head)}>${head.replace(/^>/, "")}</th>`)}</tr></thead>
    <tbody>${rows.map((row, n) => html`<tr key=${n}>${row.map((cell, m) => html`<td key=${m} class=${side(columns[m])}>${cell}</td>`)}</tr>`)}</tbody></table></div>`;
}

export function Comparison({ folder, name }) {
  const [looks, look] = useState(0);
  const { data, error, busy } = useCall("comparison", { run: folder }, { again: looks });
  // While it trains, runs appear one after another, and the verdict at last.
  const trains = Boolean(data?.remark);
  useEffect(() => {
    if (!trains) return undefined;
    const timer = setInterval(() => look((before) => before + 1), 5000);
    return () => clearInterval(timer);
  }, [trains]);
  const runs = data?.runs ?? [];
  const [live, problem] = useLive(runs.map(([path]) => path));
  const known = runs.filter(([path]) => live[path]).map(([path, run, number]) => ({
    name: run, number, points: live[path].points.filter(({ kind }) => kind === "evaluation"),
  }));
  return html`<section class="card" aria-label=${`Comparison ${name}`}><h2>${name}</h2><${Problem} of=${error || problem} /><${Busy} when=${busy && !data} what="reading the comparison" />
      ${data && html`<p><b>${data.verdict ?? data.remark}</b></p>${data.tables?.map(([columns, rows], n) => html`<${Sheet} key=${n} columns=${columns} rows=${rows} />`)}
        <div class="grid">${data.intervals?.map((each) => html`<${Intervals} key=${each.title} of=${each} />`)}</div>`}</section>
    ${known.length > 0 && html`<${Curves} runs=${known} level=${data.entropy} title="Curves of the compared runs" />`}`;
}
