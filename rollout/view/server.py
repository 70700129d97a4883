"""The local web server of the viewer: a few fixed routes, read only, on this machine only.

What it serves was written by a policy and by pages that it made, so all of it is hostile: content leaves
here as JSON or PNG, never as HTML, under a policy that lets the browser load our own files and no others.
"""

import errno
import json
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from rollout.view.data import rollout_detail, run_overview
from rollout.view.tokens import TokenText

HOST = "127.0.0.1"
_STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/overview.js": ("overview.js", "text/javascript; charset=utf-8"),
    "/rollout.js": ("rollout.js", "text/javascript; charset=utf-8"),
    "/plot.js": ("plot.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class PortTakenError(RuntimeError):
    """Another program listens there; the text says what to type."""


class Viewer(ThreadingHTTPServer):
    """Serves the rollouts below one run folder. `serve_forever` it; `shutdown` and `server_close` end it."""

    daemon_threads = True

    def __init__(self, run_dir: Path, *, port: int = 0, token_text: TokenText | None = None) -> None:
        self.run_dir = run_dir
        self.token_text = token_text
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            raise PortTakenError(
                f"port {port} cannot be used ({error.strerror}); choose another with --port N, or --port 0 for any"
            ) from None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"

    def folder(self, key: str) -> Path | None:
        """The rollout's folder for a key of the listing; None for anything else, whatever it is."""
        root = (self.run_dir / "rollouts").resolve()
        parts = key.split("/")
        if len(parts) != 4 or any(part in ("", ".", "..") or "\0" in part for part in parts):
            return None
        found = root.joinpath(*parts).resolve()
        inside = found.is_relative_to(root) and (found / "summary.json").is_file()
        return found if inside else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no news; anything else is shown."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: Viewer
    protocol_version = "HTTP/1.1"
    server_version = "rollout-view"
    sys_version = ""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        # A page elsewhere could point its own host name at this address; it must not read the run.
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            return self._send_error(HTTPStatus.MISDIRECTED_REQUEST, "open this page as " + self.server.url)
        if url.path in _STATIC:
            name, content_type = _STATIC[url.path]
            return self._send(resources.files("rollout.view").joinpath("static", name).read_bytes(), content_type)
        routes: dict[str, Callable[[str], None]] = {
            "/api/run": self._run,
            "/api/rollout": self._rollout,
            "/api/screenshot": self._screenshot,
        }
        if url.path not in routes:
            return self._send_error(HTTPStatus.NOT_FOUND, "no such page")
        return routes[url.path](parse_qs(url.query).get("key", [""])[0])

    def _run(self, _key: str) -> None:
        self._send_json(run_overview(self.server.run_dir))

    def _rollout(self, key: str) -> None:
        folder = self.server.folder(key)
        if folder is None:
            return self._send_error(HTTPStatus.NOT_FOUND, "no such rollout")
        try:
            return self._send_json(rollout_detail(folder, self.server.token_text))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return self._send_error(HTTPStatus.UNPROCESSABLE_ENTITY, f"this rollout cannot be read: {error}")

    def _screenshot(self, key: str) -> None:
        folder = self.server.folder(key)
        shot = folder and folder / "final.png"
        if shot is None or not shot.is_file():
            return self._send_error(HTTPStatus.NOT_FOUND, "no screenshot")
        return self._send(shot.read_bytes(), "image/png")

    def _send_json(self, data: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(data, allow_nan=False).encode(), "application/json", status)

    def _send_error(self, status: HTTPStatus, message: str) -> None:
        self._send_json({"error": message}, status)

    def _send(self, body: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: one line a request would bury the address."""
