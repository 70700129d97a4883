"""python -m verifier score PROJECT --task TASK.json [--out REPORT.json]
python -m verifier shot PROJECT [--out DIR] [--template NAME]
python -m verifier compare REFERENCE.png CANDIDATE.png

Exit codes: 0 judged (whatever the reward), 2 bad task or project, 3 the judging itself failed.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import SandboxError
from rollout.sandbox.template import Template, load_template
from verifier.browser import Browser
from verifier.build import build_project
from verifier.project import ProjectError, read_project
from verifier.report_json import write_atomically, write_report
from verifier.score import score_project
from verifier.tasks import load_task
from verifier.types import Built, InfrastructureError, Page, Report, TaskError

JUDGED, BAD_INPUT, INFRASTRUCTURE = 0, 2, 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verifier", description="Judges web projects.")
    commands = parser.add_subparsers(dest="command", required=True)
    score = commands.add_parser("score", help="reward of a project for a task")
    score.add_argument("project", type=Path)
    score.add_argument("--task", type=Path, required=True, help="task file (JSON)")
    score.add_argument("--out", type=Path, help="write the report here, its PNG beside it")
    shot = commands.add_parser("shot", help="build and render a project; what webshot does")
    shot.add_argument("project", type=Path)
    shot.add_argument("--out", type=Path, default=Path("webshot"), help="folder for the results")
    shot.add_argument("--template", default="vite-react-bare")
    compare = commands.add_parser("compare", help="how alike two pictures of pages look; prints one JSON object")
    compare.add_argument("reference", type=Path)
    compare.add_argument("candidate", type=Path)
    return parser


def _template(name: str) -> Template:
    try:
        template = load_template(name)
    except ValueError as error:
        raise TaskError(f"template: {error}") from error
    if not template.node_modules.is_dir():
        raise InfrastructureError(f"the packages of {name} are not installed; run `python -m rollout.sandbox install`")
    return template


@contextmanager
def _tools() -> Iterator[tuple[LocalSandboxes, Browser]]:
    with Browser(max_pages=1) as browser:
        with warnings.catch_warnings():
            # On a terminal, one line of ours instead of a Python warning with a source line.
            warnings.simplefilter("ignore")
            sandboxes = LocalSandboxes()
        for weakness in sandboxes.weaknesses:
            print(f"note: {weakness}", file=sys.stderr)
        try:
            yield sandboxes, browser
        finally:
            sandboxes.close()


def _print_report(report: Report) -> None:
    print(f"{report.task_id}: reward {report.reward:.4f}")
    for gate in report.gates:
        print(f"  gate {gate.name:<7} {'ok' if gate.ok else 'CLOSED: ' + gate.reason}")
    judge = "absent" if report.f_vlm is None else f"{report.f_vlm:.4f}"
    print(f"  f_det {report.f_det:.4f}   judge {judge}   penalty {report.penalty:.1f}")
    for requirement_id, value in report.requirement_values.items():
        print(f"    {value:6.3f}  {requirement_id}")
    print("  seconds  " + "  ".join(f"{name} {s:.2f}" for name, s in report.seconds.items()))


def _score(arguments: argparse.Namespace) -> int:
    task = load_task(arguments.task)
    template = _template(task.template)
    files = read_project(arguments.project)
    if arguments.out is not None and arguments.out.is_dir():
        raise ProjectError(f"--out names a report file, {arguments.out} is a folder")
    with _tools() as (sandboxes, browser):
        report = score_project(task, files, template=template, make_sandbox=sandboxes, browser=browser)
    _print_report(report)
    if arguments.out is not None:
        write_report(arguments.out, report)
        print(f"  report   {arguments.out}")
    return JUDGED


def _write_shot(folder: Path, built: Built, page: Page | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "build.log", built.log.encode("utf-8", "replace"))
    measured: dict[str, object] = {"build_ok": built.ok, "build_seconds": round(built.seconds, 3)}
    (folder / "render.png").unlink(missing_ok=True)  # an older picture would lie
    if page is not None:
        measured |= asdict(page)
        picture = measured.pop("screenshot")
        if isinstance(picture, bytes) and picture:
            write_atomically(folder / "render.png", picture)
    text = json.dumps(measured, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / "measurement.json", text.encode("utf-8", "replace"))


def _shot(arguments: argparse.Namespace) -> int:
    template = _template(arguments.template)
    files = read_project(arguments.project)
    with _tools() as (sandboxes, browser):
        built = build_project(files, template, sandboxes)
        page = browser.render(built.dist) if built.ok else None
    _write_shot(arguments.out, built, page)
    print(f"build {'ok' if built.ok else 'failed'} in {built.seconds:.2f} s")
    if page is None:
        print(built.log)
    else:
        print(f"page {'ok' if page.ok else 'not ok: ' + page.reason} in {page.seconds:.2f} s")
        print(f"text length {len(page.census.text)}, counts {dict(page.census.counts)}")
        for kind, found in (
            ("broken image", page.census.broken_images),
            ("console error", page.console_errors),
            ("failed request", page.failed_requests),
        ):
            for line in found:
                print(f"{kind}: {line}")
        print(page.census.text)
    print(f"results in {arguments.out}")
    return JUDGED


def _compare(arguments: argparse.Namespace) -> int:
    # Loads OpenCV, which the other commands do without.
    from verifier.pixels import compare

    pictures = []
    for path in (arguments.reference, arguments.candidate):
        if not path.is_file():
            raise ProjectError(f"no picture at {path}; give two PNG files")
        pictures.append(path.read_bytes())
    try:
        found = compare(*pictures)
    except ValueError as error:
        raise ProjectError(str(error)) from error
    print(json.dumps(asdict(found)))
    return JUDGED


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return {"score": _score, "shot": _shot, "compare": _compare}[arguments.command](arguments)
    except (TaskError, ProjectError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except (InfrastructureError, SandboxError, OSError) as error:
        print(f"infrastructure failure, nothing was judged: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
