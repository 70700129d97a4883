"""How a command ends: signals become one exception, expected failures one message and an exit code."""

import contextlib
import errno
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

from configs import ConfigError
from rollout.collect import INFRASTRUCTURE_ERRORS
from wc_jax.checkpoint import CheckpointError
from wc_jax.publish import PublishError
from wc_jax.watchdog import FAILED, PeerFailed

BAD_INPUT, INFRASTRUCTURE = 2, FAILED


class Stopped(BaseException):
    """A signal asked this process to end. No ordinary `except` catches it; every `finally` runs."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise `Stopped` in the main thread, once: closing is not interrupted again."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    handled = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_command(action: Callable[[], object], *, goes_on: bool = True) -> int:
    """Runs `action` and returns the exit code; what is expected to fail says so in one message on stderr.

    A fault of ours keeps its traceback. `goes_on`: the same command, typed again, resumes.
    """
    try:
        with stop_on_signals():
            action()
    except Stopped as error:
        again = "go on" if goes_on else "start over"
        print(f"stopped by {error}; run the same command to {again}", file=sys.stderr)
        return error.exit_code
    except PeerFailed as error:
        print(f"infrastructure failure: {error}; run the same commands to go on", file=sys.stderr)
        return INFRASTRUCTURE
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except (*INFRASTRUCTURE_ERRORS, CheckpointError, PublishError) as error:
        print(f"infrastructure failure: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"the disk is full; make room and run the same command again: {error}", file=sys.stderr)
        return INFRASTRUCTURE
    return 0
