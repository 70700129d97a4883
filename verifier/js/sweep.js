// Isolated world. Scrolls through the page so that lazy images load and sections that wait to be
// seen appear; then back to the top. Returns the page's height in CSS px.
(async (maxHeight) => {
  const height = () => Math.min(document.documentElement.scrollHeight, maxHeight);
  const frame = () => new Promise((done) => { requestAnimationFrame(done); setTimeout(done, 250); });
  const seen = async () => { await frame(); await frame(); };
  for (const image of document.querySelectorAll('img[loading=lazy], iframe[loading=lazy]')) image.loading = 'eager';
  if (height() > innerHeight + 1) {
    const stepPx = 700;
    for (let y = stepPx, steps = 0; y < height() && steps < 40; y += stepPx, steps++) {
      scrollTo({ top: y, behavior: 'instant' });
      await seen();
    }
    scrollTo({ top: 0, behavior: 'instant' });
    await seen();
  }
  return height();
})
