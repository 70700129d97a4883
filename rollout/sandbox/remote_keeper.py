"""Process 1 of a container. Runs inside it, from this very text: standard library only, no imports of ours.

It adopts and reaps orphans, ends everything else on SIGUSR1 with one system call (no new process is
needed, so a fork bomb cannot prevent it), and exits when the sandbox's lifetime is over. As process 1
it cannot be killed from inside, although commands have its user id.
"""

import ctypes
import os
import signal
import sys
import time

_PR_SET_DUMPABLE = 4


def keep(lifetime_s: float) -> None:
    """Returns after `lifetime_s` seconds, or on SIGTERM."""
    signals = {signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM}
    # Process 1 gets no signal that it does not ask for; waiting for a blocked one is asking.
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    # Commands have the same user id: not even they may look into this process.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    deadline = time.monotonic() + lifetime_s
    while (left := deadline - time.monotonic()) > 0:
        got = signal.sigtimedwait(signals, min(left, 3600.0))
        if got is not None and got.si_signo == signal.SIGTERM:
            return
        if got is not None and got.si_signo == signal.SIGUSR1:
            _kill_all()
        _reap()


def _kill_all() -> None:
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:  # nobody else is there
        pass


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    keep(float(sys.argv[1]))
