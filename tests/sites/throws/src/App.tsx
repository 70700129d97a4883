// Throws in the first component: React leaves the page white.
export default function App() {
  const menu = JSON.parse('{"breads": null}') as { breads: string[] }
  return <ul>{menu.breads.map((bread) => <li key={bread}>{bread}</li>)}</ul>
}
