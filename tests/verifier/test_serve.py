import http.client
import socket

import pytest

from verifier.serve import StaticServer, content_type, files_digest

DIST = {
    "index.html": b"<h1>A</h1>",
    "assets/app-1.js": b"export {}",
    "docs/index.html": b"docs",
    "a b.txt": b"spaced",
}


def get(port: int, host: str, path: str, method: str = "GET") -> tuple[int, bytes, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, headers={"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.getheader("Content-Type") or ""
    finally:
        connection.close()


def test_files_routes_and_missing_files() -> None:
    server = StaticServer()
    try:
        with server.site(DIST) as host:
            port = server.port
            assert get(port, host, "/") == (200, b"<h1>A</h1>", "text/html; charset=utf-8")
            assert get(port, host, "/assets/app-1.js?v=1")[2].startswith("text/javascript")
            assert get(port, f"{host}:{port}", "/menu/rye#top")[:2] == (200, b"<h1>A</h1>")
            assert get(port, host, "/docs/")[1] == get(port, host, "/docs")[1] == b"docs"
            assert get(port, host, "/a%20b.txt")[1] == b"spaced"
            assert get(port, host, "/favicon.ico")[0] == 204
            assert get(port, host, "/assets/none.js")[0] == 404  # never the page itself
            assert get(port, host, "/../../etc/passwd.txt")[0] == 404
            assert get(port, host, "/", "POST")[0] == 501
            assert get(port, host, "/", "HEAD")[:2] == (200, b"")
        assert get(port, host, "/")[0] == 404  # no longer served
    finally:
        server.close()


def test_a_server_answers_for_its_own_sites_only() -> None:
    """Each server binds before it names its port, so nobody else's page can be judged."""
    one, two = StaticServer(), StaticServer()
    try:
        assert one.port != two.port
        with one.site({"index.html": b"one"}) as host, two.site({"index.html": b"two"}) as other:
            assert host != other
            assert get(one.port, host, "/")[1] == b"one"
            assert get(two.port, host, "/")[0] == 404
            assert get(one.port, "localhost", "/")[0] == 404
    finally:
        one.close()
        two.close()


def test_the_same_site_twice_stays_until_its_last_user_leaves() -> None:
    server = StaticServer()
    try:
        with server.site(DIST) as first:
            with server.site(dict(DIST)) as second:
                assert first == second
            assert get(server.port, first, "/")[0] == 200
    finally:
        server.close()


def test_closing_frees_the_port() -> None:
    server = StaticServer()
    port = server.port
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
        pass


def test_digest_and_types() -> None:
    assert files_digest({"a": b"1", "b": b"2"}) == files_digest({"b": b"2", "a": b"1"})
    assert files_digest({"a": b"1b"}) != files_digest({"a": b"1", "b": b""})
    assert content_type("x/Y.SVG") == "image/svg+xml"
    assert content_type("LICENSE") == "application/octet-stream"
