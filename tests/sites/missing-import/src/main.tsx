// A development server answers 200 for the page of this project; the build says what is wrong.
import './missing.css'
import { createRoot } from 'react-dom/client'
import App from './App.tsx'

createRoot(document.getElementById('root')!).render(<App />)
