"""Does the built site's entry point resolve: index.html and every local file that it loads."""

from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit


class _References(HTMLParser):
    """Collects what the document needs to start: scripts, preloaded modules, stylesheets."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "script" and given.get("src"):
            self.urls.append(given["src"])
        relations = set(given.get("rel", "").lower().split()) if tag == "link" else set()
        if given.get("href") and relations & {"stylesheet", "modulepreload"}:
            self.urls.append(given["href"])


def missing_entry(dist: Mapping[str, bytes]) -> str:
    """What is missing, in words; empty when the entry point resolves.

    >>> missing_entry({"index.html": b"<script type=module src=/assets/a.js></script>"})
    'index.html loads /assets/a.js, which the build did not write'
    """
    document = dist.get("index.html", b"")
    if not document.strip():
        return "the build wrote no index.html" if "index.html" not in dist else "index.html is empty"
    references = _References()
    references.feed(document.decode("utf-8", "replace"))
    for url in references.urls:
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue  # another host: blocked when rendering, listed there
        path = unquote(parts.path).lstrip("/")
        path = path.removeprefix("./")
        if path and path not in dist:
            return f"index.html loads {url}, which the build did not write"
    return ""
