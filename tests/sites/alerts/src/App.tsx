// Dialogs on load: none of them may hold up the page.
import { useEffect } from 'react'

alert('Welcome to Rye & Co!')

export default function App() {
  useEffect(() => {
    if (!confirm('Cookies?')) prompt('Why not?')
    window.open('/', '_blank')
    print()
  }, [])
  return <h1>Rye &amp; Co</h1>
}
