// The router: #/ is the list, #/rollout/KEY one rollout.

import { el, getJson } from "/dom.js";
import { overview } from "/overview.js";
import { rolloutPage } from "/rollout.js";

const page = document.getElementById("page");
const crumbs = document.getElementById("crumbs");
const REFRESH_MS = 5000;
let shown = "";

function neighbors(run, key) {
  const here = run.rollouts.findIndex((r) => r.key === key);
  const link = (rollout, text) => (rollout ? el("a", { href: `#/rollout/${encodeURIComponent(rollout.key)}` }, text) : null);
  return here < 0 ? [] : [link(run.rollouts[here - 1], "← previous"), link(run.rollouts[here + 1], "next →")];
}

async function showList() {
  const run = await getJson("/api/run");
  const text = JSON.stringify(run);
  if (text === shown) return;
  const sections = [...page.querySelectorAll("details.step")];
  const open = sections.length ? new Set(sections.filter((s) => s.open).map((s) => s.dataset.step)) : null;
  shown = text;
  crumbs.replaceChildren(el("a", { href: "#/" }, "All rollouts"));
  page.replaceChildren(overview(run, open));
}

async function showRollout(key) {
  const [run, data] = await Promise.all([getJson("/api/run"), getJson(`/api/rollout?key=${encodeURIComponent(key)}`)]);
  crumbs.replaceChildren(el("a", { href: "#/" }, "All rollouts"), ...neighbors(run, key).filter(Boolean));
  page.replaceChildren(rolloutPage(data, key));
  window.scrollTo(0, 0);
}

async function route() {
  const match = location.hash.match(/^#\/rollout\/(.+)$/);
  shown = "";
  page.classList.toggle("wide", Boolean(match));
  try {
    await (match ? showRollout(decodeURIComponent(match[1])) : showList());
  } catch (error) {
    crumbs.replaceChildren(el("a", { href: "#/" }, "All rollouts"));
    page.replaceChildren(el("p", { class: "empty" }, `Could not load this: ${error.message}`));
  }
}

addEventListener("hashchange", route);
setInterval(() => {
  const isList = !location.hash.startsWith("#/rollout/");
  if (isList && !document.hidden) showList().catch(() => {});
}, REFRESH_MS);
route();
