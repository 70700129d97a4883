"""Large buffers stay with the process between steps, instead of going back to the kernel each time.

XLA's CPU backend allocates every temporary of a step anew. Above a threshold glibc serves such a request
by mapping fresh pages and unmaps them afterwards, so that each step pays a page fault for every 4 KiB it
writes: two to four times the step's own time on the nano policy.
"""

import ctypes
import sys

# Names from glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def keep_large_buffers() -> bool:
    """Call it once, before JAX allocates. False where there is no glibc to ask, which does no harm."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # One arena, because those of other threads map large requests whatever the limit; -1 is never trim.
    return all(mallopt(name, value) for name, value in ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, -1)))
