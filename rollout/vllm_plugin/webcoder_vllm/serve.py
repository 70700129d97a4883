"""`vllm serve`, started twice as fast and never left behind: `python -m webcoder_vllm.serve ARGUMENTS`.

Two differences from the original command. The engine's process is forked from this one after the imports,
where vLLM on a CPU would start a second interpreter and import torch again. And a thread reads the pipe
named in `WEBCODER_WATCH_FD`, whose other end only the trainer holds: when the trainer is gone, however it
died, the pipe closes, the scratch folder is removed and the whole process group is killed.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import threading

WATCH_FD = "WEBCODER_WATCH_FD"
SCRATCH = "WEBCODER_SCRATCH"


def watch_parent() -> None:
    """End this process group when the pipe closes. No-op when nobody passed one."""
    if WATCH_FD in os.environ:
        threading.Thread(target=_wait_for_end, name="parent-watch", daemon=True).start()


def _wait_for_end() -> None:
    descriptor = int(os.environ[WATCH_FD])
    while os.read(descriptor, 1):
        pass
    if scratch := os.environ.get(SCRATCH):
        shutil.rmtree(scratch, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _fork_context() -> multiprocessing.context.BaseContext:
    return multiprocessing.get_context("fork")


def main() -> None:
    """Import everything that both processes need, then hand over to vLLM's own command line."""
    watch_parent()
    # A forked child has no copy of the thread, so it starts its own.
    os.register_at_fork(after_in_child=watch_parent)
    import vllm.v1.engine.utils as engine_utils
    import vllm.v1.worker.cpu_worker  # noqa: F401  the child's largest import
    from vllm.entrypoints.cli.main import main as vllm_main

    # Only on a CPU: a GPU's context does not survive a fork.
    engine_utils.get_mp_context = _fork_context
    sys.argv[0] = "vllm"
    vllm_main()


if __name__ == "__main__":
    main()
