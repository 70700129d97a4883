"""The viewer: shows what is there, executes nothing of it, serves nothing else, ends cleanly."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from rollout.store import save_advantages, save_rollout
from rollout.types import Rollout, Stop, Tree
from rollout.view.data import rollout_detail
from rollout.view.server import PortTakenError, Viewer
from rollout.view.tokens import TokenText, token_text_of_run
from tests.rollout.chat import tiny_tokenizer
from tests.rollout.finished import a_report, a_rollout, a_task
from tests.rollout.trees import Sketch

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def hostile_rollout() -> Rollout:
    """Markup wherever a policy, a page or a task can put text."""
    tokenizer = tiny_tokenizer()
    sketch = Sketch()

    def ids(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False).ids)

    user = sketch.add(
        None, "user", text=HOSTILE, token_ids=ids("user\n" + HOSTILE), template=len(ids("user\n" + HOSTILE))
    )
    header = ids("assistant\n")
    answer = sketch.add(
        user,
        "assistant",
        text="hello ☕" + HOSTILE,
        token_ids=(*header, *ids("hello ☕" + HOSTILE)),
        template=len(header),
    )
    task = a_task("<b>task</b>")
    report = replace(
        a_report(task.task_id), requirement_values={HOSTILE: 0.5}, gates=(replace(a_report().gates[1], reason=HOSTILE),)
    )
    return replace(
        a_rollout("train/3/<b>task</b>/0", task=task),
        tree=sketch.tree(answer),
        potentials=(0.0, 0.5),
        report=report,
        files={f"src/{HOSTILE.replace('/', '')}.tsx": HOSTILE.encode()},
    )


@contextmanager
def served(run_dir: Path, token_text: TokenText | None = None) -> Iterator[Viewer]:
    with Viewer(run_dir, token_text=token_text) as viewer:
        thread = threading.Thread(target=viewer.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield viewer
        finally:
            viewer.shutdown()
            thread.join()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    run = tmp_path / "my-run"
    save_rollout(run, a_rollout("train/3/shop/0"))
    save_rollout(run, a_rollout("train/3/shop/1", stop=Stop.INFRA_FAILED))
    save_rollout(run, a_rollout("eval/3/cafe/0", task=a_task("cafe"), reward=1.0))
    save_advantages(run, "train/3/shop/0", [0.5, -0.25])
    (tmp_path / "secret.txt").write_text("secret")
    return run


def get(viewer: Viewer, path: str, **headers: str) -> httpx.Response:
    return httpx.get(viewer.url.rstrip("/") + path, headers=headers, trust_env=False)


def test_overview_lists_every_rollout(run_dir: Path) -> None:
    with served(run_dir) as viewer:
        data = get(viewer, "/api/run").json()
    assert data["name"] == "my-run"
    assert [(r["phase"], r["task_id"], r["reward"]) for r in data["rollouts"]] == [
        ("eval", "cafe", 1.0),
        ("train", "shop", 0.75),
        ("train", "shop", None),
    ]


def test_detail_tells_template_from_generated(run_dir: Path) -> None:
    folder = save_rollout(run_dir, hostile_rollout())
    detail = rollout_detail(folder, TokenText(tiny_tokenizer()))
    user, answer = detail["nodes"]
    assert user["template"] == "user\n" + HOSTILE and user["generated"] == []
    assert answer["template"] == "assistant\n"
    assert answer["generated"][0] == ["hello", -1.0] or answer["generated"][0] == ("hello", -1.0)
    assert "".join(text for text, _ in answer["generated"]) == "hello ☕" + HOSTILE
    assert "☕" in [text for text, _ in answer["generated"]], "three byte tokens make one piece"


def test_detail_without_a_tokenizer_still_shows_the_text(run_dir: Path) -> None:
    detail = rollout_detail(run_dir / "rollouts/step_00003/train/shop/0", None)
    answer = detail["nodes"][2]
    assert answer["template"] is None and answer["num_template"] == 2
    assert answer["generated"] == [("@write src/App.tsx\n<script>alert(1)</script>", None)]
    assert detail["potentials"] == [0.0, None, 0.5]
    assert detail["advantages"] == [0.5, -0.25]
    assert detail["segments"] == [[0, 1, 2], [0, 1, 3, 4, 5]]
    assert detail["nodes"][4]["origin"] == 2
    assert {file["path"]: file["text"] for file in detail["files"]}["public/a b.bin"] is None


def test_failed_rollout_without_a_conversation_is_shown(run_dir: Path) -> None:
    failed = replace(a_rollout("train/3/shop/9", stop=Stop.INFRA_FAILED), tree=Tree(nodes=(), leaves=()))
    detail = rollout_detail(save_rollout(run_dir, failed), None)
    assert detail["report"] is None and detail["error"] == "SandboxError: died" and detail["segments"] == []


def test_tokenizer_is_found_through_the_runs_config(run_dir: Path, tmp_path: Path) -> None:
    assert token_text_of_run(run_dir, None) is None
    model = tmp_path / "model"
    model.mkdir()
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        token_text_of_run(run_dir, model)
    tiny_tokenizer().save(str(model / "tokenizer.json"))
    assert token_text_of_run(run_dir, model) is not None
    (run_dir / "config.yaml").write_text(f"model:\n  folder: {model}\n")
    found = token_text_of_run(run_dir, None)
    assert found is not None and found.text(tiny_tokenizer().encode("hello").ids) == "hello"


def test_screenshot_and_pages_come_under_a_strict_policy(run_dir: Path) -> None:
    with served(run_dir) as viewer:
        shot = get(viewer, "/api/screenshot?key=step_00003/train/shop/0")
        assert shot.headers["content-type"] == "image/png" and shot.content.startswith(b"\x89PNG")
        for path in ("/", "/app.js", "/dom.js", "/overview.js", "/rollout.js", "/plot.js", "/style.css", "/api/run"):
            answer = get(viewer, path)
            assert answer.status_code == 200, path
            assert answer.headers["content-security-policy"].startswith("default-src 'none'")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "http" not in answer.text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize(
    "key",
    [
        "",
        "../../secret.txt",
        "../../../../../../../../etc/passwd",
        "step_00003/train/shop/0/../../../../../secret.txt",
        "step_00003/train/shop/0/final.png",
        "step_00003/train/../train/shop",
        "step_00003/train/shop/..",
        "/etc/passwd",
        "step_00003/train/shop/7",
        "step_00003/train/shop/0\0",
        "step_00003/train/link/0",
    ],
)
def test_keys_that_lead_elsewhere_are_refused(run_dir: Path, key: str) -> None:
    outside = run_dir.parent / "outside/0"
    outside.mkdir(parents=True)
    (outside / "summary.json").write_text("{}")
    (outside / "final.png").write_text("secret")
    (run_dir / "rollouts/step_00003/train/link").symlink_to(outside.parent)
    with served(run_dir) as viewer:
        for route in ("/api/rollout", "/api/screenshot"):
            answer = httpx.get(viewer.url.rstrip("/") + route, params={"key": key}, trust_env=False)
            assert answer.status_code == 404
            assert "secret" not in answer.text


@pytest.mark.parametrize(
    "path", ["/../secret.txt", "/%2e%2e/secret.txt", "/static/../data.py", "/rollouts/", "//etc/passwd"]
)
def test_other_paths_are_refused(run_dir: Path, path: str) -> None:
    with served(run_dir) as viewer, socket.create_connection(viewer.server_address[:2]) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: 127.0.0.1:1\r\n\r\n".encode())
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"secret" not in answer


def test_another_host_name_is_refused(run_dir: Path) -> None:
    with served(run_dir) as viewer:
        assert get(viewer, "/api/run", Host="evil.example:80").status_code == 421
        assert get(viewer, "/api/run", Host="localhost:8600").status_code == 200


def test_broken_rollout_is_an_error_not_a_crash(run_dir: Path) -> None:
    (run_dir / "rollouts/step_00003/train/shop/0/rollout.json").write_text("{")
    with served(run_dir) as viewer:
        answer = get(viewer, "/api/rollout?key=step_00003/train/shop/0")
        assert answer.status_code == 422 and "cannot be read" in answer.json()["error"]
        assert get(viewer, "/api/run").status_code == 200


def test_taken_port_is_one_clear_message(run_dir: Path) -> None:
    with Viewer(run_dir) as first, pytest.raises(PortTakenError, match="--port"):
        Viewer(run_dir, port=first.server_address[1])


def view_process(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollout", "view", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_serves_until_it_is_told_to_end(run_dir: Path, number: signal.Signals) -> None:
    with view_process(str(run_dir), "--port", "0") as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[0]
        assert httpx.get(url + "api/run", trust_env=False).json()["name"] == "my-run"
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Traceback" not in err and out.strip() == "ended"


def test_command_refuses_a_taken_port_and_a_missing_folder(run_dir: Path, tmp_path: Path) -> None:
    with Viewer(run_dir) as first:
        port = str(first.server_address[1])
        for arguments, word in (((str(run_dir), "--port", port), "--port"), ((str(tmp_path / "no"),), "no run folder")):
            with view_process(*arguments) as process:
                _, err = process.communicate(timeout=10)
            assert process.returncode == 2
            assert word in err and err.count("\n") == 1


@pytest.mark.browser
def test_people_see_the_rollout_and_hostile_text_stays_text(run_dir: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    assert chromium, "Debian's chromium is part of the setup"
    save_rollout(run_dir, hostile_rollout())
    save_advantages(run_dir, "train/3/<b>task</b>/0", [0.125])
    with served(run_dir, TokenText(tiny_tokenizer())) as viewer, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1440, "height": 1000})
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.goto(viewer.url)
        page.get_by_text("<b>task</b>").wait_for()
        assert "infra" in page.inner_text("main")
        page.get_by_role("link", name="0.75").first.click()
        page.get_by_text("Segment 0").wait_for()
        page.goto(viewer.url + "#/rollout/step_00003%2Ftrain%2F%253Cb%253Etask%253C%252Fb%253E%2F0")
        page.get_by_text("advantage +0.13").first.wait_for()
        text = page.inner_text("main")
        assert HOSTILE in text and "hello ☕" in text
        assert page.inner_text(".generated >> nth=1").startswith("hello ☕")
        assert page.title() == "Rollouts"
        assert page.locator("main script, main img[src='x'], main b:has-text('task')").count() == 0
        page.get_by_role("button", name="surprise").click()
        assert page.locator(".by-logp").count() == 1
        keep = os.environ.get("KEEP_SCREENSHOTS")
        if keep:
            page.screenshot(path=f"{keep}/rollout.png", full_page=True)
            page.goto(viewer.url)
            page.get_by_text("my-run").wait_for()
            page.screenshot(path=f"{keep}/overview.png", full_page=True)
        browser.close()
    assert problems == []


def test_api_answers_are_strict_json(run_dir: Path) -> None:
    with served(run_dir) as viewer:
        text = get(viewer, "/api/rollout?key=step_00003/train/shop/0").text
    assert "NaN" not in text
    assert json.loads(text)["potentials"][1] is None
