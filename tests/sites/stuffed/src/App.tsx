// Says everything the task asks for, where nobody can see it.
import type { CSSProperties } from 'react'

const wanted = 'Rye & Co, Rye loaf $6, Spelt roll $2.50, Open daily 7-18, Order now, Call us'
const hidden: CSSProperties[] = [
  { display: 'none' },
  { visibility: 'hidden' },
  { opacity: 0 },
  { position: 'absolute', left: -9999 },
  { position: 'absolute', top: -500 },
  { position: 'absolute', width: 1, height: 1, overflow: 'hidden' },
  { height: 0, overflow: 'hidden' },
  { fontSize: 1 },
  { color: 'transparent' },
  { color: 'rgba(0, 0, 0, 0)' },
  { clipPath: 'inset(100%)' },
  { transform: 'scale(0)' },
  { color: 'white', background: 'white' },
]

export default function App() {
  return (
    <main>
      <p>Welcome</p>
      {hidden.map((style, index) => (
        <div key={index} style={style}>
          {wanted}
        </div>
      ))}
      <div hidden>
        <ul><li>Rye loaf</li><li>Spelt roll</li></ul>
        <button>Order now</button>
        <button>Call us</button>
      </div>
      <details>
        <summary>More</summary>
        {wanted}
      </details>
    </main>
  )
}
