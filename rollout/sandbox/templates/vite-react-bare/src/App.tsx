export default function App() {
  return <p>Replace this with the page.</p>
}
