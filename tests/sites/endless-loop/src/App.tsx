// Never lets the browser go.
export default function App() {
  for (let n = 0; n >= 0; n = (n + 1) % 1000) {
    if (n < 0) break
  }
  return <h1>Rye &amp; Co</h1>
}
