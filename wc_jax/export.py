"""A run's weights as a Hugging Face folder: what transformers, vLLM and the next run open.

    python -m wc_jax.export CONFIG [key=value ...] --to DIR [--step N] [--dtype bfloat16] [--adapters]

Takes the newest checkpoint, or that of step N. Adapters are merged in, or written alone, in PEFT's format, with
`--adapters`. What stands beside the weights in the model folder that the run started from (tokenizer, chat template,
generation settings) is copied to a folder of weights. DIR must not exist.
Exit codes as in `wc_jax.train`.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from configs import ConfigError, load
from wc_jax.adapters import save_adapters
from wc_jax.checkpoint import Checkpoints
from wc_jax.config import Config
from wc_jax.exits import run_command
from wc_jax.policy import PolicyConfig, check_params, from_hf_config
from wc_jax.run_folder import check_run_folder
from wc_jax.weights import save_policy

_NOT_COPIED = ("config.json", "model.safetensors.index.json")


def export(config: Config, to: Path, *, step: int | None = None, dtype: str = "float32", adapters: bool = False) -> int:
    """Writes the folder, whole or not at all; returns the step. `adapters`: these alone, not merged.

    Raises `ConfigError` or `CheckpointError`.
    """
    if to.exists():
        raise ConfigError(f"--to {to} exists; name a folder that does not, nothing is overwritten")
    if adapters and config.model.lora is None:
        raise ConfigError("--adapters: this run trains the whole policy (model.lora is not set); leave it out")
    folder = check_run_folder(config)
    checkpoints = Checkpoints(folder=folder.checkpoints)
    if not checkpoints.steps():
        raise ConfigError(f"{config.run_dir} has no checkpoint yet; run `python -m wc_jax.train` first")
    params, position = checkpoints.restore_params(step)
    policy = _policy(config, params)
    if adapters:
        save_adapters(to, policy, params, base=str(config.model.folder), dtype=dtype)
        return position.step
    beside = [path for ending in ("json", "jinja", "txt") for path in sorted(config.model.folder.glob(f"*.{ending}"))]
    save_policy(to, policy, params, dtype, also=tuple(path for path in beside if path.name not in _NOT_COPIED))
    return position.step


def _policy(config: Config, params: Mapping[str, np.ndarray]) -> PolicyConfig:
    try:
        raw = json.loads((config.model.folder / "config.json").read_text())
        policy = dataclasses.replace(from_hf_config(raw), lora=config.model.lora)
        if "mtp.fc" not in params:
            # Some folders promise a drafting head that they don't hold; the run had none.
            policy = dataclasses.replace(policy, num_mtp_layers=0)
        check_params(params, policy)
    except (OSError, ValueError) as error:
        raise ConfigError(f"model.folder={config.model.folder} is not what the run started from: {error}") from error
    return policy


def main(argv: list[str]) -> int:
    """The command line. Returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if argv else 2
    parser = argparse.ArgumentParser(prog="python -m wc_jax.export", add_help=False)
    parser.add_argument("config")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--step", type=int)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--adapters", action="store_true")
    given = parser.parse_intermixed_args(argv)

    def run() -> None:
        config = load(given.config, given.overrides, Config)
        step = export(config, given.to, step=given.step, dtype=given.dtype, adapters=given.adapters)
        print(f"{given.to}: the {'adapters' if given.adapters else 'weights'} of step {step}, {given.dtype}")

    return run_command(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
