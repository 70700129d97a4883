"""Would this run fit a pod, and how fast could it be? Compiles the real programs for devices that are not there.

    python -m wc_jax.plan CONFIG [key=value ...] --topology v5p:4x4x4 [--json]

Topologies: v5p:4x4x4, v5e:8x8 and v6e:8x8 (slices of TPUs), h100:8x4 and h200:8x4 (8 GPUs in each of 4 nodes), and
cpu:8 (simulated devices of this machine). mesh.* of the config must take exactly the topology's devices. Of the model
folder only config.json is read. TPUs need jax[tpu], GPUs jax[cuda13]: `make plan-setup`, or the extras plan-tpu and
plan-gpu.
Exit codes: 0 it fits, 1 it does not (the first fix to try is printed), 2 bad input.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from configs import ConfigError, load
from wc_jax.config import Config
from wc_jax.exits import BAD_INPUT
from wc_jax.planning.plan_report import as_data, as_text
from wc_jax.planning.plan_run import plan_run
from wc_jax.planning.topology import parse_topology

DOES_NOT_FIT = 1


def main(argv: Sequence[str]) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m wc_jax.plan", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG")
    parser.add_argument("assignments", metavar="key=value", nargs="*")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--json", action="store_true", help="print the plan as one JSON object")
    options = parser.parse_intermixed_args(list(argv))
    try:
        topology = parse_topology(options.topology)
        plan = plan_run(load(options.config, options.assignments, Config), topology)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    print(json.dumps(as_data(plan), indent=1) if options.json else as_text(plan))
    return 0 if plan.fits else DOES_NOT_FIT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
