// Does not compile: the tag is never closed.
export default function App() {
  return <main><h1>Rye &amp; Co</h1>
}
