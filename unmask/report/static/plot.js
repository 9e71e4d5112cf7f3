// Curves over steps, seconds, tokens or epochs, in the studio and in reports, which embed this file. Colours and dashes
// distinguish runs; training curves are thin, held-out ones have points, and a level is a dashed line.
(() => {
  const COLOURS = ["blue", "vermilion", "green", "purple", "gold", "sky"];
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3], [5, 2], [1, 2]];
  const MANY = 200; // points are drawn on curves with fewer
  const HEIGHT = 280;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const short = (_, places) => places.map((each) => {
    if (each == null) return "";
    const size = Math.abs(each);
    return size >= 1e6 ? `${each / 1e6}M` : size >= 1e4 ? `${each / 1e3}k` : size && size < 1e-3 ? each.toExponential() : each;
  });

  const seriesOf = ({ label, kind, number, places }) => ({
    label, spanGaps: true, value: (_, value) => (value == null ? "–" : Number(value.toPrecision(4))),
    ...(kind === "level" ? { stroke: colour("soft"), width: 1, dash: [4, 4], points: { show: false } } : {
      stroke: colour(COLOURS[number % COLOURS.length]), dash: DASHES[number % DASHES.length],
      width: kind === "training" ? 1 : 2, alpha: kind === "training" ? 0.75 : 1,
      points: { show: kind !== "training" && places.length < MANY, size: 6, fill: colour("card") },
    }),
  });

  // Shows plots in a box, one after the other: { title, x, curves: [{ label, kind, number, places, values }], log, zero }.
  globalThis.plotIn = (box) => {
    let made = null, shape = "", last = null;
    const draw = (plot) => {
      last = plot;
      const { title, x, curves, log = false, zero = false } = plot;
      const data = curves.length ? uPlot.join(curves.map(({ places, values }) => [places, values])) : [[]];
      const series = [{ label: x }, ...curves.map(seriesOf)];
      const now = JSON.stringify([series, log, zero]);
      const ends = curves.map(({ label, values }) => `${label}: ${values.findLast((each) => each != null)}`);
      box.setAttribute("aria-label", `Curves of ${title} over ${x}. Latest: ${ends.join("; ")}`);
      if (now === shape) return void made?.setData(data, true);
      made?.destroy();
      [made, shape] = [null, now];
      if (!curves.length) return;
      const axis = { stroke: colour("soft"), grid: { stroke: colour("rule"), width: 1 }, ticks: { stroke: colour("rule") }, values: short };
      const y = log ? { distr: 3 } : zero ? { range: (_, low, high) => [Math.min(0, low), high * 1.05 || 1] } : {};
      made = new uPlot({
        width: box.clientWidth, height: HEIGHT, series, scales: { x: { time: false }, y },
        axes: [axis, { ...axis, size: 60 }], cursor: { drag: { x: true, y: false } },
      }, data, box);
    };
    const dark = matchMedia("(prefers-color-scheme: dark)"); // other colours need a new chart
    const again = () => last && draw(last);
    const resized = new ResizeObserver(() => made?.setSize({ width: box.clientWidth, height: HEIGHT }));
    dark.addEventListener("change", again);
    resized.observe(box);
    box.setAttribute("role", "img");
    return { draw, end: () => { dark.removeEventListener("change", again); resized.disconnect(); made?.destroy(); } };
  };

  // Means by name, each with its seeds and its interval: { estimates: { name: { values, mean, interval } }, zero }.
  globalThis.intervalsIn = (box, { estimates, zero }) => {
    const rows = Object.entries(estimates);
    const numbers = rows.flatMap(([, { values, mean, interval }]) => [...values, mean, ...(interval ?? []), ...(zero ? [0] : [])]).filter((each) => each != null);
    const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
    const percent = (value) => `${high > low ? (100 * (value - low)) / (high - low) : 50}%`;
    const plain = (value) => String(Number(value.toPrecision(4)));
    const described = ([name, { mean, interval }]) => `${name}: ${plain(mean)}${interval ? ` (${interval.map(plain).join(" to ")})` : ""}`;
    const add = (parent, name, text = "", at = null) => {
      const made = parent.appendChild(document.createElement("span"));
      made.className = name;
      made.textContent = text;
      if (at != null) made.style.left = percent(at);
      return made;
    };
    box.replaceChildren();
    box.setAttribute("role", "img");
    box.setAttribute("aria-label", rows.map(described).join("; "));
    for (const [name, of] of rows) {
      add(box, "", name);
      const track = add(box, "track");
      track.title = described([name, of]);
      if (zero) add(track, "zero", "", 0);
      if (of.interval) add(track, "range", "", of.interval[0]).style.right = `calc(100% - ${percent(of.interval[1])})`;
      of.values.filter((each) => each != null).forEach((each) => add(track, "seed", "", each));
      add(track, "mean", "", of.mean);
    }
    add(box, "");
    const ticks = add(box, "track ticks");
    const middle = zero && Math.min(-low, high) > 0.2 * (high - low) ? [0] : []; // if it has room
    new Set([low, ...middle, high]).forEach((each) => add(ticks, "", plain(each), each));
  };

  document.querySelectorAll("[data-intervals]").forEach((box) => intervalsIn(box, JSON.parse(box.dataset.intervals)));
  document.querySelectorAll("[data-plot]").forEach((box) => plotIn(box).draw(JSON.parse(box.dataset.plot)));
})();
