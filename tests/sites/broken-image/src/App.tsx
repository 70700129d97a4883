// One picture that does not exist, one that does.
export default function App() {
  return (
    <main>
      <h1>Rye &amp; Co</h1>
      <img src="/bread.png" alt="Rye loaf" width="200" height="100" />
      <img src="/favicon.svg" alt="" width="32" height="32" />
    </main>
  )
}
