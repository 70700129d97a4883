// Runs before any script of the page, in every frame: a virtual clock, seeded randomness, no
// dialogs, a bounded console. `window.__wc_settle` lets the verifier pass virtual time.
(() => {
  'use strict';
  const real = {
    frame: window.requestAnimationFrame.bind(window), timeout: window.setTimeout.bind(window),
    now: performance.now.bind(performance), Date, report: window.reportError.bind(window),
  };
  const fix = (owner, key, value) => {
    try { Object.defineProperty(owner, key, { value, writable: false, configurable: false }); } catch { /* already fixed */ }
  };

  // ---- virtual time -------------------------------------------------------------------------
  const epoch = 1767225600000; // 2026-01-01T00:00:00Z
  let elapsed = 0, lastId = 0;
  const timers = new Map();
  const add = (callback, delay, args, every, isFrame) => {
    const id = ++lastId;
    const wait = Math.max(1, Math.min(Number(delay) || 0, 2 ** 31 - 1));
    const run = typeof callback === 'function' ? callback : new Function(String(callback));
    timers.set(id, { id, at: elapsed + wait, run, args, every: every ? wait : 0, isFrame });
    return id;
  };
  const drop = (id) => { timers.delete(Number(id)); };
  window.setTimeout = (callback, delay, ...args) => add(callback, delay, args, false);
  window.setInterval = (callback, delay, ...args) => add(callback, delay, args, true);
  window.requestAnimationFrame = (callback) => add(callback, 16, [], false, true);
  window.requestIdleCallback = (callback) => add(callback, 1, [{ didTimeout: false, timeRemaining: () => 50 }], false);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = window.cancelIdleCallback = drop;
  performance.now = () => elapsed;
  const VirtualDate = function (...args) {
    if (!new.target) return new real.Date(epoch + elapsed).toString();
    return Reflect.construct(real.Date, args.length ? args : [epoch + elapsed], new.target);
  };
  VirtualDate.prototype = real.Date.prototype;
  VirtualDate.now = () => epoch + elapsed;
  VirtualDate.parse = real.Date.parse;
  VirtualDate.UTC = real.Date.UTC;
  real.Date.prototype.constructor = VirtualDate;
  window.Date = VirtualDate;

  // A turn of the real event loop: promises, message channels (React's scheduler) get to run.
  const channel = new MessageChannel();
  const waiting = [];
  channel.port1.onmessage = () => waiting.shift()();
  const post = channel.port2.postMessage.bind(channel.port2);
  const turn = () => new Promise((done) => { waiting.push(done); post(0); });
  const frame = () => new Promise((done) => {
    let once = () => { once = () => {}; done(); };
    real.frame(() => once());
    real.timeout(() => once(), 250); // frames can stall on a loaded machine
  });
  const nextDue = () => { let due = Infinity; for (const t of timers.values()) if (t.at < due) due = t.at; return due; };
  const advance = async (to, stopAt) => {
    for (let fired = 0; fired < 2000 && real.now() < stopAt; fired++) {
      let next = null;
      for (const t of timers.values()) if (t.at <= to && (!next || t.at < next.at || (t.at === next.at && t.id < next.id))) next = t;
      if (!next) break;
      elapsed = Math.max(elapsed, next.at);
      if (next.every) next.at += next.every; else timers.delete(next.id);
      try { next.run.apply(window, next.isFrame ? [elapsed] : next.args); } catch (error) { real.report(error); }
      await turn();
    }
    elapsed = Math.max(elapsed, to);
  };

  // ---- settling -----------------------------------------------------------------------------
  let mutations = 0;
  const observer = new MutationObserver((records) => { mutations += records.length; });
  observer.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
  const endAnimations = () => {
    for (const animation of document.getAnimations()) {
      try {
        if (animation.effect.getComputedTiming().endTime === Infinity) animation.cancel(); else animation.finish();
      } catch { /* an animation without a target */ }
    }
  };
  const loading = () => document.fonts.status === 'loading'
    || Array.from(document.images).some((image) => !image.complete && image.loading !== 'lazy');
  const settle = async ({ virtualMs, realMs }) => {
    const stopAt = real.now() + realMs, end = elapsed + virtualMs;
    let still = 0, seen = -1, ticks = 0;
    while (real.now() < stopAt && still < 2) {
      endAnimations();
      const due = nextDue();
      if (due <= end) { await advance(Math.min(end, Math.max(elapsed + 100, due)), stopAt); ticks++; }
      await frame();
      const sample = mutations + document.documentElement.scrollHeight / 1e6;
      still = sample === seen && nextDue() > end && !loading() ? still + 1 : 0;
      seen = sample;
    }
    return { ticks, quiet: still >= 2, virtual: elapsed };
  };
  fix(window, '__wc_settle', settle);

  // ---- nothing that waits for a person or fills the disk ---------------------------------------
  for (const [key, value] of [['alert', undefined], ['confirm', false], ['prompt', null], ['print', undefined], ['open', null]]) fix(window, key, () => value);
  let lines = 300;
  const short = (value) => typeof value === 'string' ? value.slice(0, 500)
    : value instanceof Error ? String(value).slice(0, 500) : typeof value === 'object' ? '[object]' : value;
  for (const key of ['log', 'info', 'warn', 'error', 'debug', 'trace', 'table', 'dir', 'dirxml', 'group', 'groupCollapsed', 'count', 'timeEnd', 'timeLog', 'assert']) {
    const write = console[key].bind(console);
    fix(console, key, (...args) => { if (lines-- > 0) write(...args.slice(0, 8).map(short)); });
  }

  // ---- seeded randomness (mulberry32) --------------------------------------------------------
  let state = 12345;
  const random = () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  Math.random = random;
  Crypto.prototype.getRandomValues = function (array) {
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    for (let i = 0; i < bytes.length; i++) bytes[i] = random() * 256;
    return array;
  };
  Crypto.prototype.randomUUID = () => '10000000-1000-4000-8000-100000000000'.replace(/[018]/g, (c) => (+c ^ ((random() * 16) >> (+c / 4))).toString(16));
})();
