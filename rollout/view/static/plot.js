// One small line plot: values over their index, gaps where a value is missing.

import { number, svg } from "/dom.js";

export function linePlot(values, { width = 320, height = 120, min = 0, max = 1, label = "", xLabel = "" } = {}) {
  const pad = { left: 30, right: 10, top: 10, bottom: 24 };
  const x = (i) => pad.left + (values.length < 2 ? 0 : (i * (width - pad.left - pad.right)) / (values.length - 1));
  const y = (v) => pad.top + (1 - (v - min) / (max - min || 1)) * (height - pad.top - pad.bottom);
  const plot = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": label });
  for (const tick of [min, (min + max) / 2, max]) {
    plot.append(
      svg("line", { x1: pad.left, x2: width - pad.right, y1: y(tick), y2: y(tick), class: "grid" }),
      svg("text", { x: pad.left - 5, y: y(tick) + 3, class: "tick", "text-anchor": "end" }, number(tick, 1)),
    );
  }
  plot.append(svg("text", { x: (pad.left + width) / 2, y: height - 4, class: "tick", "text-anchor": "middle" }, xLabel));
  let run = [];
  const flush = () => {
    if (run.length > 1) plot.append(svg("polyline", { points: run.join(" "), class: "line" }));
    run = [];
  };
  values.forEach((value, i) => {
    if (value === null) return flush();
    run.push(`${x(i)},${y(value)}`);
    const dot = svg("circle", { cx: x(i), cy: y(value), r: values.length > 40 ? 1.5 : 3, class: "dot" });
    dot.append(svg("title", {}, `${i}: ${number(value, 3)}`));
    plot.append(dot);
  });
  flush();
  return plot;
}
