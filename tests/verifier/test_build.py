import pytest

from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import Sandbox, SandboxError
from rollout.sandbox.template import Template
from tests.verifier.site_builds import Sites
from verifier.build import build_in, build_inputs, build_project
from verifier.types import InfrastructureError

pytestmark = pytest.mark.sandbox


def test_the_project_cannot_bend_its_own_verdict(template: Template) -> None:
    own = {
        "src/App.tsx": b"app",
        "index.html": b"<p>",
        "package.json": b"{}",
        "vite.config.ts": b"bent",
        "vite.config.js": b"preferred by Vite",
        "vite.config.mts": b"also",
        "dist/index.html": b"made by hand",
        "node_modules/react/index.js": b"not React",
        "src/node_modules/react/index.js": b"not React",
        "src/dist/kept.ts": b"a folder like any other",
    }
    inputs = build_inputs(own, template)
    assert {path for path in inputs if path not in template.protected} == {
        "src/App.tsx",
        "index.html",
        "src/dist/kept.ts",
    }
    for path in template.protected:
        assert inputs[path] == template.files[path]


def test_output_is_data_and_an_old_one_does_not_survive(
    sites: Sites, template: Template, sandboxes: LocalSandboxes
) -> None:
    sandbox = sandboxes(sites.files("good"), node_modules=template.node_modules)
    try:
        built = build_in(sandbox, template)
        assert built.ok and b"<title>" in built.dist["index.html"] and 0 < built.seconds < 60
        assert any(path.startswith("assets/") for path in built.dist)
        sandbox.write("src/App.tsx", b"export default <")
        again = build_in(sandbox, template)
        assert not again.ok and again.dist == {} and again.log.endswith("[build] exit code 1")
        assert sandbox.list("dist") == []
    finally:
        sandbox.close()


class Odd:
    """A template whose build command is ours to choose."""

    def __init__(self, template: Template, script: str) -> None:
        self.files = template.files
        self.protected = template.protected
        self.node_modules = template.node_modules
        self.build_argv = ("sh", "-c", script)


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("sleep 30", "time-out: stopped after 1 s"),
        ("exit 7", "exit code 7"),
        ("true", "no output"),
        ("mkdir dist && cd dist && for i in $(seq 2100); do : > f$i; done", "too large"),
    ],
)
def test_every_way_to_fail_has_its_name(script: str, says: str, template: Template, sandboxes: LocalSandboxes) -> None:
    built = build_project({"a": b""}, Odd(template, script), sandboxes, timeout_s=1 if "sleep" in script else 20)
    assert not built.ok and built.dist == {}
    assert built.log.splitlines()[-1].startswith(f"[build] {says}")


def test_bytes_that_are_no_text_do_not_break_the_log(template: Template, sandboxes: LocalSandboxes) -> None:
    odd = Odd(template, r"printf '\033[31mred\033[0m \377\376 done\n'; exit 1")
    log = build_project({"a": b""}, odd, sandboxes).log
    assert log.startswith("red ") and "done" in log and "\x1b" not in log


def test_a_sandbox_that_fails_is_no_verdict(template: Template) -> None:
    def broken(files: object, *, node_modules: object = None) -> Sandbox:
        raise SandboxError("no room")

    with pytest.raises(InfrastructureError, match="no room"):
        build_project({"a": b""}, template, broken)


def test_a_project_too_large_is_its_own_fault(template: Template, sandboxes: LocalSandboxes) -> None:
    built = build_project({"a.bin": bytes(49 << 20)}, template, sandboxes)
    assert not built.ok and built.log.startswith("[build] too large")
