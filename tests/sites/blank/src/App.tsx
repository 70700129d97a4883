// Mounts nothing.
export default function App() {
  return null
}
