import { defineConfig } from 'vite'

// No React plugin: the bundler compiles JSX itself, and a page that is only built needs no fast refresh.
export default defineConfig({
  server: { host: '127.0.0.1', port: 5173, strictPort: true },
  build: { minify: false, reportCompressedSize: false },
})
