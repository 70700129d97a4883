// The network is never idle: a timer, a chain of requests, an event stream, a socket.
import { useEffect, useState } from 'react'

export default function App() {
  const [ticks, setTicks] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => setTicks((n) => n + 1), 500)
    const poll = () => { fetch('/status.json').catch(() => null).then(poll) }
    poll()
    new EventSource('/events')
    const socket = new WebSocket(`ws://${location.host}/live`)
    return () => { clearInterval(timer); socket.close() }
  }, [])
  return <h1>Rye &amp; Co, tick {ticks}</h1>
}
