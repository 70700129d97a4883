// One rollout: the conversation by segment on the left, the judgement on the right.

import { count, el, mean, number, rewardClass, signed } from "/dom.js";
import { linePlot } from "/plot.js";

// Eight steps from certain (0 nats) to surprising (4 nats and more).
const surprise = (logp) => `s-${Math.min(7, Math.floor(-logp * 2))}`;

function piece([text, logp]) {
  if (logp === null) return text;
  return el("span", { class: surprise(logp), title: `log-probability ${number(logp, 3)}` }, text);
}

function message(node) {
  const template =
    node.template === null
      ? el("span", { class: "template" }, `[${node.num_template} template tokens]\n`)
      : el("span", { class: "template" }, node.template);
  const facts = [
    `${count(node.num_template)} template`,
    node.num_generated ? `${count(node.num_generated)} generated` : null,
    node.finish_reason ? `finish: ${node.finish_reason}` : null,
    node.versions.length ? `weights ${node.versions.join(", ")}` : null,
    node.origin === null ? null : `copy of ${node.origin}, context only`,
  ].filter(Boolean);
  return el(
    "article",
    { class: `message ${node.role}${node.origin === null ? "" : " copy"}`, id: `node-${node.id}` },
    el("header", {}, el("b", {}, node.role), el("span", { class: "quiet" }, `message ${node.id}: ${facts.join(", ")}`)),
    el("pre", {}, template, node.generated.length ? el("span", { class: "generated" }, node.generated.map(piece)) : null),
  );
}

function segment(k, data, seen) {
  const ids = data.segments[k];
  const fresh = ids.filter((id) => !seen.has(id));
  const shared = ids.filter((id) => seen.has(id));
  ids.forEach((id) => seen.add(id));
  const [opens, closes] = [data.potentials[k] ?? null, data.potentials[k + 1] ?? null];
  const title = [
    el("h2", {}, `Segment ${k}`),
    el("span", { class: "badge" }, `Φ ${number(opens)} → ${number(closes)}`),
    data.advantages && data.advantages[k] !== undefined
      ? el("span", { class: `badge ${data.advantages[k] < 0 ? "bad" : "good"}` }, `advantage ${signed(data.advantages[k])}`)
      : null,
    k > 0 ? el("span", { class: "badge fold" }, "opened by a context rewrite") : null,
  ];
  return el(
    "section",
    { class: "segment" },
    el("div", { class: "segment-title" }, title),
    shared.length
      ? el("details", { class: "shared" }, el("summary", {}, `${shared.length} earlier messages, unchanged`), shared.map((id) => message(data.nodes[id])))
      : null,
    fresh.map((id) => message(data.nodes[id])),
  );
}

function judgement(report) {
  return el(
    "section",
    { class: "card" },
    el("h2", {}, "Verifier"),
    el("ul", { class: "gates" }, report.gates.map((gate) => el("li", { class: gate.ok ? "good" : "bad" }, `${gate.ok ? "✓" : "✗"} ${gate.name}`, gate.reason ? el("small", {}, ` ${gate.reason}`) : null))),
    el(
      "dl",
      {},
      el("dt", {}, "deterministic leg"), el("dd", {}, number(report.f_det, 3)),
      el("dt", {}, "judge leg"), el("dd", {}, report.f_vlm === null ? "absent" : number(report.f_vlm, 3)),
      el("dt", {}, "time penalty"), el("dd", {}, number(report.penalty)),
    ),
    el(
      "table",
      { class: "requirements" },
      report.requirements.map((r) =>
        el(
          "tr",
          { title: r.wanted.join("\n") },
          el("th", { scope: "row" }, r.id),
          el("td", {}, el("meter", { min: 0, max: 1, low: 0.34, high: 0.99, optimum: 1, value: r.value })),
          el("td", { class: "mean" }, number(r.value)),
        ),
      ),
    ),
  );
}

function accounts(data) {
  const sum = (name) => data.turns.reduce((total, turn) => total + turn[name], 0);
  const prompt = sum("num_prompt_tokens");
  return el(
    "section",
    { class: "card" },
    el("h2", {}, "Accounts"),
    el(
      "dl",
      {},
      el("dt", {}, "turns"), el("dd", {}, count(data.turns.length)),
      el("dt", {}, "longest prompt"), el("dd", {}, count(Math.max(0, ...data.turns.map((t) => t.num_prompt_tokens)))),
      el("dt", {}, "generated tokens"), el("dd", {}, count(sum("num_output_tokens"))),
      el("dt", {}, "prompt from cache"), el("dd", {}, prompt ? `${Math.round((100 * sum("num_cached_tokens")) / prompt)} %` : "–"),
      el("dt", {}, "generating"), el("dd", {}, `${number(sum("generate_s"), 1)} s`),
      el("dt", {}, "in tools"), el("dd", {}, `${number(sum("tools_s"), 1)} s`),
      el("dt", {}, "tool errors"), el("dd", {}, count(data.num_tool_errors)),
    ),
  );
}

function projectFiles(files) {
  const one = (file) =>
    el(
      "details",
      {},
      el("summary", {}, file.path, el("span", { class: "quiet" }, ` ${count(file.num_bytes)} bytes`)),
      file.text === null ? el("p", { class: "quiet" }, "not text") : el("pre", {}, file.text),
    );
  return el("section", { class: "card" }, el("h2", {}, "Final project"), files.map(one));
}

function side(data, key) {
  const url = `/api/screenshot?key=${encodeURIComponent(key)}`;
  return el(
    "aside",
    {},
    data.report && data.report.has_screenshot
      ? el("section", { class: "card" }, el("h2", {}, "Final page"), el("a", { href: url, target: "_blank", rel: "noopener" }, el("img", { src: url, alt: "screenshot of the final page" })))
      : null,
    data.report ? judgement(data.report) : el("section", { class: "card" }, el("h2", {}, "Not judged"), el("pre", {}, data.error)),
    el("section", { class: "card" }, el("h2", {}, "Potential at the boundaries"), linePlot(data.potentials, { xLabel: "boundary", label: "potential at each segment boundary" })),
    accounts(data),
    projectFiles(data.files),
  );
}

export function rolloutPage(data, key) {
  const seen = new Set();
  const reward = data.report ? data.report.reward : null;
  const page = el("section", { class: "rollout" });
  const toggle = el("button", { type: "button", onclick: () => page.classList.toggle("by-logp") }, "Shade tokens by surprise");
  page.append(
    el(
      "div",
      { class: "title" },
      el("span", { class: `reward ${rewardClass(reward)}` }, reward === null ? "no reward" : number(reward)),
      el("h1", {}, data.rollout_id),
      el("span", { class: "badge" }, data.stop.replaceAll("_", " ")),
      data.advantages ? el("span", { class: "badge" }, `mean advantage ${signed(mean(data.advantages))}`) : null,
      toggle,
    ),
    el("p", { class: "legend" }, el("span", { class: "template" }, "template, tool and user tokens"), " ", el("span", { class: "generated" }, "tokens the policy generated")),
    el(
      "div",
      { class: "columns" },
      el("div", {}, data.segments.map((_, k) => segment(k, data, seen)), data.segments.length ? null : el("p", { class: "quiet" }, "This attempt left no conversation.")),
      side(data, key),
    ),
  );
  return page;
}
