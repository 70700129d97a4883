"""A sandbox does what a project needs: commands, files, packages, a build."""

import time

import pytest

from rollout.sandbox.install import install_template
from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import Sandbox, SandboxError
from rollout.sandbox.template import Template, load_template

pytestmark = pytest.mark.sandbox


def sh(sandbox: Sandbox, command: str, timeout_s: float = 20.0) -> str:
    return sandbox.exec(["bash", "-c", command], timeout_s=timeout_s).output


def test_output_and_exit_code_come_back(sandbox: Sandbox) -> None:
    ended = sandbox.exec(["bash", "-c", "echo out; echo err >&2; exit 7"], timeout_s=10)
    assert (ended.output, ended.exit_code, ended.timed_out, ended.dropped_bytes) == ("out\nerr\n", 7, False, 0)


def test_input_is_empty_and_undecodable_output_is_replaced(sandbox: Sandbox) -> None:
    assert sh(sandbox, r"cat; printf 'a\xffb'") == "a\N{REPLACEMENT CHARACTER}b"


def test_argv_is_not_a_shell(sandbox: Sandbox) -> None:
    assert sandbox.exec(["echo", "$HOME; ls", "*"], timeout_s=10).output == "$HOME; ls *\n"


def test_environment_is_ours_and_not_the_callers(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "do-not-tell")
    ended = sandbox.exec(["bash", "-c", "env; cat /proc/*/environ"], timeout_s=10, env={"COLOR": "red=1"})
    assert "COLOR=red=1\n" in ended.output
    assert "HOME=/home/agent\n" in ended.output
    assert "do-not-tell" not in ended.output


def test_commands_start_in_the_project_or_below(sandbox: Sandbox) -> None:
    sandbox.write("src/deep/a.txt", b"a")
    assert sandbox.exec(["pwd"], timeout_s=10).output == "/workspace\n"
    assert sandbox.exec(["pwd"], timeout_s=10, cwd="src/deep").output == "/workspace/src/deep\n"
    assert sandbox.exec(["true"], timeout_s=10, cwd="nowhere").exit_code == 127


def test_a_missing_program_is_the_commands_failure(sandbox: Sandbox) -> None:
    ended = sandbox.exec(["no-such-program"], timeout_s=10)
    assert ended.exit_code == 127
    assert ended.output == "no-such-program: No such file or directory\n"


def test_a_command_too_long_for_the_system_is_the_commands_failure(sandbox: Sandbox) -> None:
    assert sandbox.exec(["echo", "x" * 300_000], timeout_s=10).exit_code == 126


def test_time_limit(sandbox: Sandbox) -> None:
    started = time.monotonic()
    ended = sandbox.exec(["bash", "-c", "echo begun; sleep 60"], timeout_s=0.6)
    assert (ended.exit_code, ended.timed_out, ended.output) == (None, True, "begun\n")
    assert time.monotonic() - started < 5
    assert sandbox.exec(["echo", "next"], timeout_s=10).output == "next\n"


@pytest.mark.parametrize("argv", [[], ["echo", "a\0b"]])
def test_impossible_commands_are_refused(sandbox: Sandbox, argv: list[str]) -> None:
    with pytest.raises(ValueError, match="argv"):
        sandbox.exec(argv, timeout_s=1)


def test_files_go_in_and_out(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 100
    sandbox.write("a/b/c.bin", data)
    sandbox.write("a/b/c.bin", data[::-1])
    sh(sandbox, "echo made > a/made.txt; mkdir -p node_modules/x; echo no > node_modules/x/y; ln -s a link")
    assert sandbox.read("a/b/c.bin") == data[::-1]
    assert sandbox.list() == ["a/b/c.bin", "a/made.txt"]
    assert sandbox.list("a/b") == ["a/b/c.bin"]
    assert sandbox.list("nowhere") == []
    assert sandbox.snapshot() == {"a/b/c.bin": data[::-1], "a/made.txt": b"made\n"}
    assert sandbox.snapshot("a/b") == {"a/b/c.bin": data[::-1]}


def test_the_agent_may_change_what_was_put_there(sandbox: Sandbox) -> None:
    sandbox.write("src/App.tsx", b"old")
    assert sh(sandbox, "echo new > src/App.tsx && mv src code && rm -r code && ls -A") == ""


def test_reading_what_is_no_file(sandbox: Sandbox) -> None:
    sh(sandbox, "mkdir folder; mkfifo fifo; printf 12345 > five")
    for path in ("absent", "folder", "fifo", "folder/absent", "five/below", ".", "x" * 300):
        with pytest.raises(FileNotFoundError):
            sandbox.read(path)
    assert sandbox.read("five", max_bytes=5) == b"12345"
    with pytest.raises(OSError, match="larger than 4"):
        sandbox.read("five", max_bytes=4)


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "src/../../x", "a\0b", "node_modules/react/index.js"])
def test_paths_outside_the_project_are_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        sandbox.read(path)
    with pytest.raises(ValueError, match="path"):
        sandbox.write(path, b"")
    with pytest.raises(ValueError, match="path"):
        sandbox.list(path)


def test_a_closed_sandbox_says_so(sandboxes: LocalSandboxes) -> None:
    sandbox = sandboxes({"a.txt": b"a"})
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.exec(["true"], timeout_s=1)
    with pytest.raises(SandboxError, match="closed"):
        sandbox.read("a.txt")


def test_a_project_that_does_not_fit_is_refused_and_freed(sandboxes: LocalSandboxes) -> None:
    before = sorted(path.name for path in sandboxes.run_dir.iterdir())
    if not sandboxes.weaknesses:
        with pytest.raises(SandboxError, match="does not fit"):
            sandboxes({"big.bin": bytes(40 << 20)})
    with pytest.raises(ValueError, match="absolute"):
        sandboxes({"/etc/x": b""})
    assert sorted(path.name for path in sandboxes.run_dir.iterdir()) == before


def test_packages_are_visible_and_read_only(sandboxes: LocalSandboxes, bare: Template) -> None:
    sandbox = sandboxes(bare.files, node_modules=bare.node_modules)
    told = sh(
        sandbox,
        "echo x > node_modules/react/index.js; rm -rf node_modules/vite; mv node_modules other;"
        "for f in .vite .vite-temp; do echo ok > node_modules/$f/probe && cat node_modules/$f/probe; done;"
        "node -p 'require(\"react\").version'",
    )
    assert "ok\nok\n18.3.1\n" in told
    assert (bare.node_modules / "vite" / "package.json").exists()
    assert not (bare.node_modules / ".vite" / "probe").exists()
    sandbox.close()


def test_the_bare_template_builds_and_types_check(sandboxes: LocalSandboxes, bare: Template) -> None:
    sandbox = sandboxes(bare.files, node_modules=bare.node_modules)
    for _ in range(2):  # the second build meets the first one's output
        ended = sandbox.exec(bare.build_argv, timeout_s=60)
        assert ended.exit_code == 0, ended.output
    dist = sandbox.snapshot("dist")
    assert "Replace this with the page." in b"".join(dist.values()).decode()
    script = next(path.removeprefix("dist") for path in dist if path.endswith(".js"))
    assert f'src="{script}"'.encode() in dist["dist/index.html"]
    checked = sandbox.exec(["node", "node_modules/typescript/bin/tsc", "--noEmit"], timeout_s=60)
    assert checked.exit_code == 0, checked.output
    sandbox.close()


@pytest.mark.slow
def test_the_full_template_builds() -> None:
    template = load_template("vite-react")
    sandboxes = LocalSandboxes()  # with the default limits
    sandbox = sandboxes(template.files, node_modules=install_template(template))
    source = (
        'import { Card } from "antd"\nimport { Line, LineChart } from "recharts"\n'
        "export default function App() {\n  return <Card className='bg-gray-100'>"
        "<LineChart data={[]}><Line dataKey='x' /></LineChart></Card>\n}\n"
    )
    sandbox.write("src/App.tsx", source.encode())
    ended = sandbox.exec(template.build_argv, timeout_s=100)
    assert ended.exit_code == 0, ended.output
    styles = b"".join(data for path, data in sandbox.snapshot("dist").items() if path.endswith(".css"))
    assert b".bg-gray-100" in styles
    sandboxes.close()
