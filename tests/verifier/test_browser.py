"""Rendering without building: pages written as they would come out of a build."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from verifier.browser import Browser
from verifier.browser_launch import BrowserNotFound, find_chromium
from verifier.types import InfrastructureError

pytestmark = pytest.mark.browser


def html(body: str, script: str = "", head: str = "") -> dict[str, bytes]:
    page = f"<!doctype html><html><head><title>T</title>{head}</head><body>{body}</body></html>"
    if script:
        page = page.replace("</body>", f"<script>{script}</script></body>")
    return {"index.html": page.encode()}


def test_census_of_a_plain_page(browser: Browser) -> None:
    page = browser.render(
        html(
            "<h1>Rye <i>&amp;</i> Co</h1><p>one<br>two</p>"
            "<nav><a href=/a>Home</a><a href=/b style='margin-left:1em'>Menu</a></nav>"
            "<div><span>$</span><span>6</span></div>"
            "<table><tr><td>Mon</td><td>9-5</td></tr></table>"
            "<button>Order</button><button>Call</button><button></button>"
            "<input placeholder='Your name'><select><option>Small<option selected>Large</select>"
            "<section><h2>Hours</h2></section><ul><li>a<li>b</ul><pre>x\ny</pre>"
        )
    )
    assert page.ok and page.reason == "" and page.census.title == "T"
    assert page.census.text.split("\n") == (
        "Rye & Co,one,two,Home Menu,$6,Mon,9-5,Order,Call,Your name,Large,Hours,a,b,x,y".split(",")
    )
    counts = page.census.counts
    assert (counts["buttons"], counts["links"], counts["inputs"]) == (2, 2, 2)
    assert (counts["headings"], counts["list_items"], counts["sections"]) == (2, 2, 1)


def test_readable_text_is_kept_whatever_its_colors(browser: Browser) -> None:
    page = browser.render(
        html(
            "<div style='background:#000;color:#fff'>on black</div>"
            "<div style='background:linear-gradient(red,blue);color:#fff'>on a gradient</div>"
            "<div style='position:relative;color:#fff'><div style='position:absolute;inset:0;"
            "background:#123;z-index:-1'></div>on a sibling</div>"
            "<div style='background:linear-gradient(red,blue);background-clip:text;color:transparent'>"
            "gradient letters</div><div style='color:#fff'>white on white</div>"
            "<div style='opacity:.01'>nearly nothing</div>"
        )
    )
    assert page.census.text.split("\n") == [
        "on black",
        "on a gradient",
        "on a sibling",
        "gradient letters",
    ]


def test_time_chance_and_animations_are_the_same_every_time(browser: Browser) -> None:
    site = html(
        "<p id=a></p><div class=spin></div><p class=fade>faded in</p>",
        """
        let n = 0; setInterval(() => { n++; draw() }, 700);
        const start = performance.now(); let frames = 0;
        const tick = (t) => { frames++; if (t - start < 1500) requestAnimationFrame(tick); draw() };
        requestAnimationFrame(tick);
        const parts = () => [n, frames, Math.random(), crypto.randomUUID(), new Date().toISOString()];
        const draw = () => { a.textContent = parts().join(' ') };
        """,
        "<style>@keyframes s{to{transform:rotate(1turn)}} @keyframes f{from{opacity:0}}"
        ".spin{width:40px;height:40px;background:linear-gradient(red,blue);animation:s 1s infinite}"
        ".fade{animation:f 3s both}</style>",
    )
    with ThreadPoolExecutor(3) as pool:
        pages = list(pool.map(lambda _: browser.render(site), range(4)))
    assert len({page.screenshot for page in pages}) == 1
    assert len({page.census.text for page in pages}) == 1
    assert "faded in" in pages[0].census.text


def test_sections_that_wait_to_be_seen_and_lazy_images(browser: Browser) -> None:
    dot = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/%3E"
    site = html(
        "<h1>Top</h1><div style='height:3000px'></div><p id=late style='opacity:0'>Revealed</p>"
        f'<img loading=lazy src="{dot}">',
        "new IntersectionObserver(([e]) => { if (e.isIntersecting) late.style.opacity = 1 }).observe(late)",
    )
    page = browser.render(site)
    assert page.census.text == "Top\nRevealed" and page.census.counts["images"] == 1
    assert page.census.height > 3000
    assert Image.open(BytesIO(page.screenshot)).size == (1440, page.census.height)


@pytest.mark.parametrize("height", [200, 900, 901, 30_000])
def test_pictures_have_the_page_width_and_a_capped_height(browser: Browser, height: int) -> None:
    body = f"<div style='height:{height}px;background:#eee'>x</div>"
    page = browser.render(html(body, head="<style>body{margin:0}</style>"))
    size = Image.open(BytesIO(page.screenshot)).size
    assert size == (1440, min(max(height, 900), 20_000))
    assert page.census.height == max(height, 900)
    assert not page.census.overflow_x


def test_content_that_comes_late_is_waited_for(browser: Browser) -> None:
    site = html(
        "<p id=a>loading</p>",
        "fetch('/data.json').then(r => r.json()).then(d => setTimeout(() => { a.textContent = d.name }, 3000))",
    )
    page = browser.render(site | {"data.json": b'{"name": "Rye"}'})
    assert page.census.text == "Rye"


def test_routes_render_and_errors_are_recorded(browser: Browser) -> None:
    site = html("<p id=a></p>", "a.textContent = location.pathname; console.error('bad', 1); null.x")
    page = browser.render(site, path="/menu")
    assert page.ok and page.census.text == "/menu"
    assert any("bad 1" in line for line in page.console_errors)
    assert any("null" in line for line in page.console_errors)


@pytest.mark.parametrize(
    ("body", "script", "says"),
    [
        ("", "", "blank"),
        ("  \n&nbsp;\u200b ", "", "blank"),
        ("", "throw new Error('first')", "first error: first"),
        ("<p>x</p>", "location.href = 'http://example.com/'", ""),
        ("<p>x</p>", "location.href = '/other.html'", "404"),
    ],
)
def test_pages_that_do_not_mount(browser: Browser, body: str, script: str, says: str) -> None:
    page = browser.render(html(body, script))
    assert page.ok is (says == "") and says in page.reason


def test_without_a_picture(browser: Browser) -> None:
    assert browser.render(html("<p>x</p>"), screenshot=False).screenshot == b""


def test_a_page_cannot_answer_for_itself_in_the_census(browser: Browser) -> None:
    page = browser.render(
        html(
            "<p>true text</p>",
            """
            const lie = { get: () => 'Rye $6' };
            for (const k of ['innerText', 'textContent']) Object.defineProperty(Node.prototype, k, lie);
            Element.prototype.checkVisibility = () => true; Array.prototype.filter = () => [1, 2, 3];
            document.createTreeWalker = null; window.getComputedStyle = null; JSON.stringify = () => '{}';
            """,
        )
    )
    assert page.ok and page.census.text == "true text" and page.census.counts["buttons"] == 0


class _Secret(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked = True  # type: ignore[attr-defined]
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", "*")
        self.end_headers()
        self.wfile.write(b"secret")

    def log_message(self, format: str, *args: object) -> None: ...


def test_nothing_but_its_own_site_can_be_reached(browser: Browser) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Secret)
    server.asked = False  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    port = server.server_address[1]
    addresses = [f"http://127.0.0.1:{port}/", f"http://localhost:{port}/", f"http://[::1]:{port}/"]
    addresses += [f"http://x.localhost:{port}/", "http://example.com/", "http://93.184.215.14/"]
    script = f"""
        const got = {addresses}.map((u) => fetch(u).then((r) => r.ok ? r.text() : r.status, () => 'refused'));
        Promise.all(got).then((all) => {{ a.textContent = all.join(' ') }})
    """
    try:
        page = browser.render(html("<p id=a>waiting</p>", script))
    finally:
        server.shutdown()
        server.server_close()
    assert not server.asked  # type: ignore[attr-defined]
    assert "secret" not in page.census.text and page.census.text.count("refused") >= 5


@pytest.mark.parametrize(
    ("script", "is_ok"),
    [
        ("setTimeout(() => { for (;;); }, 50)", False),
        ("setInterval(() => location.reload(), 1)", None),
        ("const f = () => { for (let i = 0; i < 50; i++) window.open('/'); setTimeout(f) }; f()", True),
        ("setInterval(() => console.error('x'.repeat(1e5)), 0)", True),
        ("const g = () => Promise.resolve().then(g); setTimeout(g, 10)", False),
        ("document.head.innerHTML += '<link rel=stylesheet href=http://10.0.0.1/x.css>'", True),
    ],
)
def test_hostile_pages_are_bounded(impatient: Browser, script: str, is_ok: bool | None) -> None:
    started = time.monotonic()
    page = impatient.render(html("<p>content</p>", script))
    assert time.monotonic() - started < 40
    if is_ok is not None:
        assert page.ok is is_ok, page.reason
    if is_ok is False:
        assert page.reason.startswith("unresponsive") and page.screenshot == b""
    assert impatient.render(html("<p>next</p>")).ok  # the browser still serves others


def test_a_killed_browser_is_replaced_and_the_page_tried_again(impatient: Browser) -> None:
    assert impatient.render(html("<p>one</p>")).ok
    generation = impatient._current
    assert generation is not None
    os.killpg(int((generation.chromium.folder / "pid").read_text()), signal.SIGKILL)
    assert impatient.render(html("<p>two</p>")).census.text == "two"
    assert impatient._current is not generation


def _is_running(pid: int) -> bool:
    """False for a dead process that its parent has not yet collected, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_closing_leaves_nothing_behind() -> None:
    with Browser() as browser:
        assert browser.render(html("<p>x</p>")).ok
        assert browser._current is not None
        folder = browser._current.chromium.folder
        pid = int((folder / "pid").read_text())
    browser.close()
    assert not folder.exists()
    assert not _is_running(pid)
    with pytest.raises(InfrastructureError, match="closed"):
        browser.render(html("<p>x</p>"))


def test_a_killed_program_leaves_no_browser_behind() -> None:
    code = (
        "import sys, verifier.browser as b; x = b.Browser(); "
        "print((x._current.chromium.folder / 'pid').read_text(), flush=True); sys.stdin.read()"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdin is not None and program.stdout is not None
    with program.stdin, program.stdout:
        pid = int(program.stdout.readline())
        assert _is_running(pid)
        program.kill()
        program.wait()
    stop = time.monotonic() + 30
    while _is_running(pid) and time.monotonic() < stop:
        time.sleep(0.1)
    assert not _is_running(pid)


def test_no_browser_is_one_clear_message(tmp_path: Path) -> None:
    with pytest.raises(BrowserNotFound, match="WEBCODER_CHROMIUM"):
        find_chromium({"WEBCODER_CHROMIUM": str(tmp_path / "none")})
    with pytest.raises(InfrastructureError, match="does not start"):
        Browser(executable=Path("/bin/true"))
    with pytest.raises(ValueError, match="max_pages"):
        Browser(max_pages=0)


def test_closing_ends_a_render_that_is_going_on_and_starts_no_new_browser() -> None:
    endless = {"index.html": b"<!doctype html><p>x</p><script>for (;;);</script>"}
    browser = Browser(max_pages=1)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(browser.render, endless) for _ in range(2)]
        time.sleep(0.5)
        browser.close()
        for future in waiting:
            with pytest.raises(InfrastructureError):
                future.result(timeout=30)
    assert not browser._thread.is_alive()
