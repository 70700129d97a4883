// Half of what the task asks for.
export default function App() {
  return (
    <main>
      <h1>Rye &amp; Co</h1>
      <ul>
        <li>Rye loaf $6</li>
      </ul>
      <button>Order now</button>
    </main>
  )
}
