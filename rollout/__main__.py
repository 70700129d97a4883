"""The command line of the rollout room: `run` one attempt, `view` what attempts did."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 (any free one) to 65535, got {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rollout", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    view = commands.add_parser("view", help="look at the rollouts of a run in a browser")
    view.add_argument("run_dir", metavar="RUN_DIR", type=Path)
    view.add_argument("--port", type=_port, default=8600, help="0 for any free one (default 8600)")
    view.add_argument("--model", type=Path, metavar="DIR", help="folder with the tokenizer (default: the run's)")

    run = commands.add_parser("run", help="one rollout of one task, no training")
    run.add_argument("--task", type=Path, required=True, metavar="TASK.json")
    run.add_argument("--engine", required=True, metavar="URL", help="a vLLM server, or script:ANSWERS.json")
    run.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the served model")
    run.add_argument("--out", type=Path, default=Path("runs/single"), metavar="DIR", help="default runs/single")
    run.add_argument("--prompt", default="plain", help="name of the system prompt (default plain)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--max-turns", type=int, default=40)
    run.add_argument("--time-limit-s", type=float, default=1800.0)
    run.add_argument("--temperature", type=float, default=1.0)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when done, 2 for bad input, 3 for an infrastructure failure, 130 after Ctrl-C."""
    arguments = vars(_parser().parse_args(argv))
    # Imported late: looking at rollouts needs neither a browser nor an engine.
    if arguments.pop("command") == "view":
        from rollout.view.main import view

        return view(arguments["run_dir"], port=arguments["port"], model_dir=arguments["model"])

    from rollout.sandbox.protocol import SandboxError
    from rollout.single import SingleRun, run_and_store
    from verifier.types import InfrastructureError

    try:
        return run_and_store(SingleRun(**arguments))
    except (SandboxError, InfrastructureError) as error:
        print(f"infrastructure failure, no rollout was made: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
