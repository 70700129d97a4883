"""Serves built sites from memory on 127.0.0.1: one server, one host name per site.

A site's name comes from its content, so the same site always sees the same address and two sites
served at once can neither read nor guess each other.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import cast
from urllib.parse import unquote, urlsplit

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "mjs": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "json": "application/json",
    "map": "application/json",
    "txt": "text/plain; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "avif": "image/avif",
    "ico": "image/x-icon",
    "woff": "font/woff",
    "woff2": "font/woff2",
    "ttf": "font/ttf",
    "otf": "font/otf",
    "wasm": "application/wasm",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "webm": "video/webm",
    "webmanifest": "application/manifest+json",
}

_IDLE_S = 20.0  # a kept-alive connection without a request for so long is dropped


def content_type(path: str) -> str:
    """By extension, from a table of our own: the machine's mime files must not change rewards."""
    return _TYPES.get(path.rpartition(".")[2].lower(), "application/octet-stream")


def files_digest(files: Mapping[str, bytes]) -> str:
    """Hex SHA-256 of names and contents; equal exactly for equal mappings."""
    digest = hashlib.sha256()
    for path in sorted(files):
        for part in (path.encode("utf-8", "surrogateescape"), files[path]):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_S

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").partition(":")[0].lower()
        dist = cast("_Server", self.server).sites.get(host)
        if dist is None:
            return self._answer(404, b"no such site\n", "text/plain; charset=utf-8")
        path = unquote(urlsplit(self.path).path).lstrip("/")
        # Only a look-up in a mapping: there is no file system to climb out into.
        for name in (path, f"{path.rstrip('/')}/index.html".lstrip("/")):
            if name in dist:
                return self._answer(200, dist[name], content_type(name))
        if path == "favicon.ico":
            return self._answer(204, b"", "image/x-icon")
        if "." not in path.rpartition("/")[2] and "index.html" in dist:
            # A route of the application, not a file: the single page answers.
            return self._answer(200, dist["index.html"], content_type("index.html"))
        return self._answer(404, b"not found\n", "text/plain; charset=utf-8")

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news; the browser reports the failed ones."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = False  # a port in use must fail, not be shared

    def __init__(self) -> None:
        self.sites: dict[str, Mapping[str, bytes]] = {}
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that hangs up in the middle of a transfer is ordinary."""


class StaticServer:
    """Any number of sites behind one port of 127.0.0.1, chosen by the system at binding time.

    Files are served as they are; a path without an extension that is no file gets `index.html`
    (client-side routes); other missing files are 404, never a page.
    """

    def __init__(self) -> None:
        self._server = _Server()
        self._uses: dict[str, int] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="static-server", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @contextmanager
    def site(self, dist: Mapping[str, bytes]) -> Iterator[str]:
        """Serves `dist` (relative path -> bytes) for the block and yields its host name."""
        host = f"{files_digest(dist)[:20]}.localhost"
        with self._lock:
            self._uses[host] = self._uses.get(host, 0) + 1
            self._server.sites[host] = dist
        try:
            yield host
        finally:
            with self._lock:
                self._uses[host] -= 1
                if not self._uses[host]:
                    del self._uses[host], self._server.sites[host]

    def close(self) -> None:
        """Frees the port. Safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)
