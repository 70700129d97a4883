// Isolated world: its own copies of every built-in, so that the page cannot answer for itself.
// Returns what a person can see and count. Text nodes are judged one by one: by style, by size, by
// place; each block is a line, and a visible gap between two inline pieces is a space.
((maxText, maxNodes) => {
  const root = document.documentElement, body = document.body;
  if (!body) return { text: '', title: '', counts: {}, broken: [], overflow: false, height: 0, overlay: false };
  const pageWidth = root.clientWidth, styles = new Map(), hidden = new Map();
  const style = (element) => { let s = styles.get(element); if (!s) styles.set(element, s = getComputedStyle(element)); return s; };
  const cutsX = style(root).overflowX === 'hidden' || style(body).overflowX === 'hidden' || style(body).overflowX === 'clip';
  const clips = (s) => s.overflowX === 'hidden' || s.overflowX === 'clip' || s.overflowY === 'hidden' || s.overflowY === 'clip';
  // Squeezed away: an ancestor that clips its content to less than 2 px, or clip-path to nothing.
  const squeezed = (element) => {
    if (!element || element === body || element === root) return false;
    let value = hidden.get(element);
    if (value === undefined) {
      const s = style(element);
      value = false;
      if (parseFloat(s.opacity) < 0.05) value = true;
      else if (s.display !== 'contents' && (clips(s) || s.clip !== 'auto' || s.clipPath !== 'none')) {
        const r = element.getBoundingClientRect();
        value = (clips(s) && s.display !== 'inline' && (r.width < 2 || r.height < 2))
          || /^rect\((0|1)px,? (0|1)px,? (0|1)px,? (0|1)px\)$/.test(s.clip) || /^inset\((50|100)%\)$|^circle\(0/.test(s.clipPath);
      }
      value = value || squeezed(element.parentElement);
      hidden.set(element, value);
    }
    return value;
  };
  const shown = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true, contentVisibilityAuto: false }) && !squeezed(element);
  const onPage = (r) => r.width > 0 && r.height > 0 && r.right + scrollX > 0 && r.bottom + scrollY > 0 && !(cutsX && r.left >= pageWidth);
  const inked = (s) => {
    if (parseFloat(s.fontSize) < 4) return false;
    const color = s.webkitTextFillColor || s.color;
    return !/(rgba\(.*, 0\)|\/ 0\))$/.test(color) || s.backgroundClip === 'text' || s.webkitBackgroundClip === 'text';
  };
  // Text in the color of its own ground. The ground is the nearest ancestor with a color; a picture,
  // or something else of another color that lies under the text, makes it readable after all.
  const rgb = (text) => { const m = /^rgba?\((\d+), (\d+), (\d+)(?:, ([\d.]+))?\)$/.exec(text); return m && { c: [+m[1], +m[2], +m[3]], a: m[4] === undefined ? 1 : +m[4] }; };
  const differs = (a, b) => a.some((v, i) => Math.abs(v - b[i]) > 12);
  let grounds = null; // everything that paints an area, found once and only if asked for
  const paintsAreas = () => grounds ??= Array.from(body.querySelectorAll('*')).slice(0, maxNodes).filter((e) => {
    const s = style(e), g = rgb(s.backgroundColor);
    return /^(IMG|VIDEO|CANVAS|svg|IFRAME|PICTURE|OBJECT|EMBED)$/.test(e.tagName) || s.backgroundImage !== 'none' || !g || g.a > 0;
  }).map((e) => ({ e, r: e.getBoundingClientRect(), g: style(e).backgroundImage === 'none' ? rgb(style(e).backgroundColor) : null }));
  const drowned = (element, r) => {
    const s = style(element), ink = rgb(s.webkitTextFillColor || s.color);
    if (!ink || s.textShadow !== 'none' || parseFloat(s.webkitTextStrokeWidth) > 0) return false;
    let ground = [255, 255, 255];
    for (let e = element; e; e = e.parentElement) {
      const t = style(e), g = rgb(t.backgroundColor);
      if (t.backgroundImage !== 'none' || !g || (g.a > 0 && g.a < 1)) return false;
      if (g.a === 1) { ground = g.c; break; }
    }
    if (differs(ink.c, ground)) return false;
    const x = r.left + r.width / 2, y = r.top + r.height / 2;
    return !paintsAreas().some(({ e, r: q, g }) => q.left <= x && x <= q.right && q.top <= y && y <= q.bottom && !e.contains(element)
      && (!g || g.a === 0 || differs(g.c, ink.c)));
  };
  const block = (element) => { // the nearest ancestor that starts a line of its own
    let e = element;
    while (e && e !== body && (style(e).display === 'inline' || style(e).display === 'contents')) e = e.parentElement;
    return e || body;
  };

  const lines = [];
  let line = '', lineBlock = null, lastRect = null, size = 0, pendingSpace = false;
  const flush = () => { const t = line.trim(); if (t) { lines.push(t); size += t.length + 1; } line = ''; lastRect = null; pendingSpace = false; };
  const put = (text, owner, first, last) => {
    const home = block(owner);
    if (home !== lineBlock) { flush(); lineBlock = home; }
    if (line && lastRect && first) {
      const sameLine = first.top < lastRect.bottom && first.bottom > lastRect.top;
      const gap = Math.max(first.left - lastRect.right, lastRect.left - first.right);
      if (!sameLine || gap > 0.12 * parseFloat(style(owner).fontSize)) pendingSpace = true;
    }
    if (/^\s/.test(text)) pendingSpace = true;
    const body = text.replace(/\s+/g, ' ').trim();
    if (!body) return;
    line += (line && pendingSpace ? ' ' : '') + body;
    pendingSpace = /\s$/.test(text);
    lastRect = last;
  };
  const putText = (node) => {
    const owner = node.parentElement;
    if (!owner || !node.data) return;
    if (!node.data.trim()) { if (line && style(owner).display !== 'none') pendingSpace = true; return; }
    if (!shown(owner) || !inked(style(owner))) return;
    if (owner.tagName === 'DETAILS' && !owner.open) return; // bare text of a closed one: its owner is shown
    const range = document.createRange();
    range.selectNodeContents(node);
    const rects = Array.from(range.getClientRects()).filter(onPage);
    if (!rects.length || drowned(owner, rects[0])) return;
    if (/^pre|^break-spaces/.test(style(owner).whiteSpaceCollapse || style(owner).whiteSpace)) {
      const rows = node.data.split('\n');
      rows.forEach((row, i) => { put(row, owner, rows.length > 1 ? null : rects[0], rects[rects.length - 1]); if (i < rows.length - 1) flush(); });
    } else put(node.data, owner, rects[0], rects[rects.length - 1]);
  };
  const putField = (element) => { // what a control shows: value or placeholder, the chosen option
    const type = element.type;
    if (type === 'hidden' || type === 'password' || type === 'checkbox' || type === 'radio' || type === 'range' || type === 'color' || type === 'file') return;
    const text = element.tagName === 'SELECT' ? (element.selectedOptions[0] || { label: '' }).label : element.value || element.placeholder || '';
    const r = element.getBoundingClientRect();
    if (text.trim() && shown(element) && onPage(r) && inked(style(element))) { flush(); put(text, element, r, r); flush(); }
  };
  const skip = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD']);
  const walker = document.createTreeWalker(body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) => node.nodeType === 1
    && (skip.has(node.tagName) || ['SELECT', 'TEXTAREA', 'OPTION'].includes((node.parentElement || node).tagName)) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
  let visited = 0;
  for (let node = walker.nextNode(); node && visited < maxNodes && size < maxText; node = walker.nextNode(), visited++) {
    if (node.nodeType === 3) { if (!['SELECT', 'TEXTAREA', 'OPTION'].includes(node.parentElement.tagName)) putText(node); }
    else if (node.tagName === 'BR' || node.tagName === 'HR') flush();
    else if (['INPUT', 'SELECT', 'TEXTAREA'].includes(node.tagName)) putField(node);
  }
  flush();

  const visible = (element) => shown(element) && Array.from(element.getClientRects()).some((r) => onPage(r) && r.width >= 2 && r.height >= 2);
  const count = (selector, also = () => true) => Array.from(document.querySelectorAll(selector)).slice(0, maxNodes).filter((e) => visible(e) && also(e)).length;
  const images = Array.from(document.images).slice(0, maxNodes);
  const broken = images.filter((i) => i.complete && i.naturalWidth === 0 && (i.currentSrc || i.src));
  const says = (e) => (e.innerText || e.value || e.getAttribute('aria-label') || e.title || '').trim() || e.querySelector('img, svg');
  return {
    text: lines.join('\n').slice(0, maxText),
    title: document.title.trim().slice(0, 300),
    counts: {
      buttons: count('button, [role=button], input[type=button], input[type=submit], input[type=reset]', says),
      headings: count('h1, h2, h3, h4, h5, h6, [role=heading]', says),
      images: count('img', (i) => i.naturalWidth > 0),
      inputs: count('input:not([type=hidden]):not([type=button]):not([type=submit]):not([type=reset]), select, textarea'),
      links: count('a[href]', says),
      list_items: count('li, [role=listitem]', says),
      sections: count('section, article, [role=region]', says),
    },
    broken: broken.slice(0, 50).map((i) => (i.currentSrc || i.src).slice(0, 300)),
    overflow: root.scrollWidth > pageWidth + 1 && !cutsX,
    height: root.scrollHeight,
    overlay: Boolean(document.querySelector('vite-error-overlay')),
  };
})
