// Everything that the task asks for, part of it shown by effects and state.
import { useEffect, useState } from 'react'

const breads = [
  { name: 'Rye loaf', price: 6 },
  { name: 'Spelt roll', price: 2.5 },
]

export default function App() {
  const [hours, setHours] = useState('')
  useEffect(() => {
    const timer = setTimeout(() => setHours('Open daily, 7–18'), 900)
    return () => clearTimeout(timer)
  }, [])
  return (
    <main>
      <h1 style={{ textTransform: 'uppercase' }}>Rye &amp; Co</h1>
      <section>
        <h2>Menu</h2>
        <ul>
          {breads.map((bread) => (
            <li key={bread.name}>
              {bread.name} <b>${bread.price.toFixed(2)}</b>
            </li>
          ))}
        </ul>
      </section>
      <section>
        <h2>Hours</h2>
        <p>{hours}</p>
        <button>Order now</button>
        <button>Call us</button>
      </section>
    </main>
  )
}
