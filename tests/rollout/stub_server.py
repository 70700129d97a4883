"""A small HTTP server that answers what a test tells it to, for answers no healthy engine gives."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[str, dict[str, Any]], tuple[int, dict[str, Any]]]
"""(path with query, parsed body) -> (status, answer)."""


@contextmanager
def stub_server(answer: Answer) -> Iterator[str]:
    """Yields the base URL."""

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length) or b"null") or {}
            status, found = answer(self.path, body)
            data = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = _reply

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def generated(
    ids: list[int], reason: str, *, logp: list[float | None] | None = None, version: str = "step-4"
) -> dict[str, Any]:
    """An answer of `/inference/v1/generate`."""
    values = [-0.5] * len(ids) if logp is None else logp
    content = [{"token_id": token, "logprob": value} for token, value in zip(ids, values, strict=False)]
    spans = [{"version": version, "start": 0, "end": len(ids)}] if ids else []
    choice = {"token_ids": ids, "finish_reason": reason, "logprobs": {"content": content}, "weight_versions": spans}
    return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 32}}}
