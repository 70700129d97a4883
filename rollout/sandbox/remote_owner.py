"""Whose container is it: labels that let a later run find what a dead one left.

An engine may serve many machines. A container is left over when its time is up, or when its owner is a
process of this machine that is gone; other machines' processes cannot be seen from here.
"""

import hashlib
import itertools
import os
import time
from collections.abc import Mapping
from pathlib import Path

LABEL = "webcoder-sandbox"
"""On everything that this project makes; its value is always `1`."""
_RUN, _MACHINE, _EXPIRES = "webcoder-run", "webcoder-machine", "webcoder-expires"

_instances = itertools.count()


def new_run_name() -> str:
    """`PID.STARTED.INSTANCE`: no other run of this machine has or had it."""
    pid = os.getpid()
    return f"{pid}.{_start_time(pid)}.{next(_instances)}"


def owner_labels(run_name: str, lifetime_s: float) -> dict[str, str]:
    """What to put on a container or a pod; letters, digits, dots and dashes only, each below 64 characters."""
    return {
        LABEL: "1",
        _RUN: run_name,
        _MACHINE: machine_name(),
        _EXPIRES: str(int(time.time() + lifetime_s)),
    }


def run_selector(run_name: str) -> dict[str, str]:
    """The labels that all of one run's containers have, and no others."""
    return {LABEL: "1", _RUN: run_name, _MACHINE: machine_name()}


def is_left_over(labels: Mapping[str, str]) -> bool:
    """True when nobody can want the container any more.

    >>> is_left_over({"webcoder-expires": "1", "webcoder-machine": "elsewhere", "webcoder-run": "1.2.0"})
    True
    """
    expires = labels.get(_EXPIRES, "")
    if expires.isdigit() and int(expires) < time.time():
        return True
    if labels.get(_MACHINE) != machine_name():
        return False
    pid, _, rest = labels.get(_RUN, "").partition(".")
    return pid.isdigit() and _start_time(int(pid)) != rest.partition(".")[0]


def machine_name() -> str:
    """This boot of this machine, and this process namespace of it: where a process id means something."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]


def _start_time(pid: int) -> str:
    """Clock ticks since boot at which `pid` started; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]
