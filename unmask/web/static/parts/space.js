// A map of texts by their vectors: points on a canvas, the nearest texts of the chosen one, and a search among them.
import { Busy, Choice, Problem, TextField, html, named, useCall, useEffect, useKept, useMemo, useRef, useState, whole } from "../common.js";

function Map({ of, chosen, choose, matches }) {
  const canvas = useRef(null);
  const [over, setOver] = useState(null);
  const frame = useMemo(() => {
    const [x0, x1, y0, y1] = [of.x, of.y].flatMap((values) => [values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]);
    return { x0, y0, w: x1 - x0 || 1, h: y1 - y0 || 1 };
  }, [of]);
  // The visible part: its centre, in shares of the whole map, and its magnification.
  const [view, look] = useState({ x: 0.5, y: 0.5, zoom: 1 });
  useEffect(() => look({ x: 0.5, y: 0.5, zoom: 1 }), [of]);
  const zoom = (times) => look((old) => ({ ...old, zoom: Math.min(200, Math.max(1, old.zoom * times)) }));
  const move = (x, y) => look((old) => ({ ...old, x: old.x + x / old.zoom, y: old.y + y / old.zoom }));
  const drag = useRef(null);
  const keys = { "+": () => zoom(1.5), "-": () => zoom(1 / 1.5), ArrowLeft: () => move(-0.1, 0), ArrowRight: () => move(0.1, 0), ArrowUp: () => move(0, 0.1), ArrowDown: () => move(0, -0.1) };
  const placed = (width, height) => (n) => [
    width / 2 + ((of.x[n] - frame.x0) / frame.w - view.x) * view.zoom * (width - 24),
    height / 2 - ((of.y[n] - frame.y0) / frame.h - view.y) * view.zoom * (height - 24),
  ];
  useEffect(() => {
    const draw = () => {
      const box = canvas.current;
      if (!box) return;
      const { clientWidth: width, clientHeight: height } = box;
      const ratio = devicePixelRatio || 1;
      box.width = width * ratio;
      box.height = height * ratio;
      const pen = box.getContext("2d");
      pen.scale(ratio, ratio);
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(`--${name}`).trim();
      const at = placed(width, height);
      const dots = (numbers, fill, size, alpha) => {
        pen.fillStyle = fill;
        pen.globalAlpha = alpha;
        for (const n of numbers) { const [x, y] = at(n); pen.beginPath(); pen.arc(x, y, size, 0, 7); pen.fill(); }
      };
      dots(of.x.keys(), colour("blue"), 2, matches.length ? 0.2 : 0.5);
      dots(matches, colour("green"), 3, 0.9);
      if (chosen != null) {
        dots(of.near[chosen] ?? [], colour("gold"), 4, 1);
        dots([chosen], colour("vermilion"), 6, 1);
      }
    };
    draw();
    const resized = new ResizeObserver(draw);
    resized.observe(canvas.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", draw);
    return () => { resized.disconnect(); dark.removeEventListener("change", draw); };
  }, [of, chosen, matches, view]);
  const nearest = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const at = placed(box.width, box.height);
    let best = null;
    let least = 400;
    for (let n = 0; n < of.x.length; n += 1) {
      const [x, y] = at(n);
      const far = (x - event.clientX + box.left) ** 2 + (y - event.clientY + box.top) ** 2;
      if (far < least) [best, least] = [n, far];
    }
    return best;
  };
  return html`<canvas class="map" ref=${canvas} role="img" aria-label=${`Map of ${of.x.length} texts; find them by their words below`}
      tabindex="0" onKeyDown=${(event) => { if (keys[event.key]) { keys[event.key](); event.preventDefault(); } }}
      onWheel=${(event) => { event.preventDefault(); zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2); }}
      onPointerDown=${(event) => { drag.current = [event.clientX, event.clientY, false]; }} onPointerLeave=${() => { drag.current = null; setOver(null); }}
      onPointerMove=${(event) => {
        if (!drag.current) { setOver(nearest(event)); return; }
        const [x, y, moved] = drag.current;
        if (!moved && Math.hypot(event.clientX - x, event.clientY - y) < 4) return;
        move((x - event.clientX) / canvas.current.clientWidth, (event.clientY - y) / canvas.current.clientHeight);
        drag.current = [event.clientX, event.clientY, true];
      }}
      onPointerUp=${(event) => { if (drag.current && !drag.current[2]) choose(nearest(event)); drag.current = null; }}></canvas>
    <div class="row tight"><button aria-label="Zoom in" onClick=${() => zoom(1.5)}>+</button><button aria-label="Zoom out" onClick=${() => zoom(1 / 1.5)}>−</button>
      <small>${view.zoom.toFixed(1)} times; also with the wheel, by dragging, or with + − and the arrow keys</small></div>
    <p class="soft busy">${over != null ? of.texts[over] : ""}</p>`;
}

export function Space({ things }) {
  const maps = named(things, "map");
  const [file, setFile] = useKept("space.file", null);
  const [words, setWords] = useState("");
  const [chosen, choose] = useState(null);
  const shown = file ?? maps[0]?.[0];
  const { data, error, busy } = useCall("space", { file: shown }, { when: Boolean(shown) });
  const matches = useMemo(() => {
    const needle = words.trim().toLowerCase();
    return data && needle ? [...data.texts.keys()].filter((n) => data.texts[n].toLowerCase().includes(needle)) : [];
  }, [data, words]);
  const item = (n) => html`<div class="hit" key=${n}><button class="quiet" onClick=${() => choose(n)}>choose</button><span>${data.texts[n]}</span></div>`;
  return html`${!shown && html`<p>There is no map in the folders yet. Make one with <code>unmask embed MODEL TEXTS --map --out map.parquet</code>.</p>`}
    ${shown && html`<div class="row"><${Choice} label="Map" value=${shown} options=${maps} onChange=${(each) => { setFile(each); choose(null); }} /><${TextField} label="Find words" value=${words} onChange=${setWords} /></div>`}
    <${Problem} of=${error} /><${Busy} when=${busy} what="reading the map" />
    ${data && html`<${Map} of=${data} chosen=${chosen} choose=${choose} matches=${matches} />
      <p class="soft">${whole(data.x.length)} of ${whole(data.total)} texts. For larger maps, with clusters: <code>${data.atlas}</code></p>
      <div class="grid">${chosen != null && html`<section class="card" aria-label="Nearest texts"><h2>Nearest texts</h2><p><b>${data.texts[chosen]}</b></p>${(data.near[chosen] ?? []).map(item)}</section>`}
      ${words.trim() && html`<section class="card" aria-label="Found texts"><h2>${whole(matches.length)} with these words</h2>${matches.slice(0, 20).map(item)}</section>`}</div>`}`;
}
