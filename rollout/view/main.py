"""The `view` command: serve a run's rollouts until Ctrl-C."""

import signal
import sys
from pathlib import Path

from rollout.view.server import PortTakenError, Viewer
from rollout.view.tokens import token_text_of_run


def view(run_dir: Path, *, port: int, model_dir: Path | None) -> int:
    """Serves until interrupted. Exit code 0 after Ctrl-C or SIGTERM, 2 for a bad folder or port."""
    if not run_dir.is_dir():
        print(f"error: no run folder {run_dir}; give the run_dir of a training run", file=sys.stderr)
        return 2
    try:
        viewer = Viewer(run_dir, port=port, token_text=token_text_of_run(run_dir, model_dir))
    except (PortTakenError, FileNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # A service manager's way to say Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with viewer:
        print(f"{viewer.url}  (Ctrl-C ends it)", flush=True)
        try:
            viewer.serve_forever()
        except KeyboardInterrupt:
            print("\nended", flush=True)
    return 0
