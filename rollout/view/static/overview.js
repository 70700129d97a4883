// The list: steps, newest first; within a step one row a task, one chip a rollout.

import { count, el, mean, number, rewardClass } from "/dom.js";
import { linePlot } from "/plot.js";

const groupBy = (items, key) => {
  const groups = new Map();
  for (const item of items) groups.set(key(item), [...(groups.get(key(item)) || []), item]);
  return groups;
};
const rewards = (rollouts) => rollouts.map((r) => r.reward).filter((reward) => reward !== null);

function tile(label, value) {
  return el("div", { class: "tile" }, el("b", {}, value), el("span", {}, label));
}

function chip(rollout) {
  const text = rollout.reward === null ? "infra" : number(rollout.reward);
  const hint = [
    rollout.rollout_id,
    `${rollout.stop}, ${rollout.num_turns} turns, ${rollout.num_segments} segments, ${count(rollout.num_generated_tokens)} tokens`,
    rollout.failed_gates.length ? `failed: ${rollout.failed_gates.join(", ")}` : "all gates passed",
  ].join("\n");
  const classes = ["chip", rewardClass(rollout.reward), rollout.failed_gates.length ? "gated" : ""].join(" ");
  return el("a", { class: classes, href: `#/rollout/${encodeURIComponent(rollout.key)}`, title: hint }, text);
}

function stepSection(step, rollouts, isOpen) {
  const phases = [...groupBy(rollouts, (r) => r.phase)].map(([phase, members]) =>
    el(
      "div",
      { class: "phase" },
      el("h3", {}, phase, el("span", { class: "quiet" }, ` mean ${number(mean(rewards(members)), 3)}`)),
      el(
        "table",
        {},
        [...groupBy(members, (r) => r.task_id)].map(([task, group]) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, task),
            el("td", { class: "mean" }, number(mean(rewards(group)))),
            el("td", { class: "chips" }, group.map(chip)),
          ),
        ),
      ),
    ),
  );
  return el("details", { class: "step", open: isOpen, "data-step": step }, el("summary", {}, `Step ${step}`), phases);
}

export function overview(data, openSteps) {
  const valid = rewards(data.rollouts);
  if (!data.rollouts.length) {
    return el("section", { class: "empty" }, el("h1", {}, data.name), el("p", {}, "No finished rollout yet. This page looks again every few seconds."));
  }
  const steps = [...groupBy(data.rollouts, (r) => r.step)].sort(([a], [b]) => b - a);
  const plots = [...groupBy(data.rollouts, (r) => r.phase)].map(([phase, members]) => {
    const means = [...groupBy(members, (r) => r.step)].sort(([a], [b]) => a - b).map(([, group]) => mean(rewards(group)));
    return el("figure", {}, el("figcaption", {}, `${phase}: mean reward`), linePlot(means, { xLabel: "steps shown", label: `mean reward of ${phase}` }));
  });
  return el(
    "section",
    {},
    el("h1", {}, data.name),
    el(
      "div",
      { class: "tiles" },
      tile("rollouts", count(data.rollouts.length)),
      tile("mean reward", number(mean(valid), 3)),
      tile("infrastructure failures", count(data.rollouts.length - valid.length)),
      tile("mean turns", number(mean(data.rollouts.map((r) => r.num_turns)), 1)),
    ),
    el("div", { class: "plots" }, plots),
    steps.map(([step, rollouts], i) => stepSection(step, rollouts, openSteps ? openSteps.has(String(step)) : i < 3)),
  );
}
