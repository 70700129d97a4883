"""The allocator's settings take: a large buffer that is freed and asked for again costs no page faults."""

import subprocess
import sys

COUNT = """
import resource, sys
import numpy as np
if sys.argv[1] == "keep":
    from wc_jax.host_memory import keep_large_buffers
    assert keep_large_buffers()
np.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    np.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    return int(subprocess.run([sys.executable, "-c", COUNT, mode], capture_output=True, text=True, check=True).stdout)


def test_kept_buffers_are_not_faulted_in_again() -> None:
    assert faults("keep") * 10 < faults("return")
