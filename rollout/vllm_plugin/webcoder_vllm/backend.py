"""Weights come as one safetensors file in a folder both processes see; the engine loads it layer by layer.

Nothing of the running model is touched until the file's checksum, names and shapes are known to be right:
a load that fails half-way leaves parts of the model without storage, and the next request then kills the
engine. So `start_weight_update` only opens the session, and the reload begins inside `update_weights`.
"""

import os
import zlib
from dataclasses import dataclass

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)

from webcoder_vllm.checks import checkpoint_shapes, difference, file_shapes
from webcoder_vllm.tied import is_tied, repack_tied_head

# The client looks for this text: it tells a refused file (model untouched) from a broken load.
REFUSED = "weights refused"


@dataclass
class FileInitInfo(WeightTransferInitInfo):
    """`root`: the only folder that weights may come from."""

    root: str = ""


@dataclass
class FileUpdateInfo(WeightTransferUpdateInfo):
    """`path`: the file. `crc32`: zlib's checksum of all its bytes."""

    path: str = ""
    crc32: int = -1


class FileWeightTransferEngine(WeightTransferEngine[FileInitInfo, FileUpdateInfo]):
    """Backend `webcoder_file`. Every update carries the whole model under its checkpoint names."""

    init_info_cls = FileInitInfo
    update_info_cls = FileUpdateInfo
    supports_draft_weight_update = False
    _root = ""
    _is_loaded = False

    def init_transfer_engine(self, init_info: FileInitInfo) -> None:
        """Remember the folder and what a full set of this model's tensors looks like."""
        self._root = os.path.realpath(init_info.root)
        self._expected = checkpoint_shapes(self.model_config.model)
        if is_tied(self.model_config):
            # Some folders store the tied head too; the trainer sends it once, as the embedding.
            self._expected.pop("lm_head.weight", None)

    def start_weight_update(self) -> None:
        """Open a session; the model keeps its weights."""
        self._is_loaded = False

    def update_weights(self, update_info: dict) -> None:
        """Check the file, then load it. The parent's version waits for an accelerator, which a CPU has not."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: FileUpdateInfo) -> None:
        """Load one file. Raises ValueError with `REFUSED` in it while the model is still whole."""
        path = self._checked(update_info)
        initialize_layerwise_reload(self.model)
        with safe_open(path, framework="pt", device="cpu") as file, torch.no_grad():
            names = file.keys()
            self.model.load_weights((name, file.get_tensor(name)) for name in names)
        self._is_loaded = True

    def finish_weight_update(self) -> None:
        """Pack the new tensors for the CPU's kernels, the tied head too."""
        if not self._is_loaded:
            raise RuntimeError(f"{REFUSED}: no file was loaded in this session")
        finalize_layerwise_reload(self.model, self.model_config)
        repack_tied_head(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held between updates."""

    def _checked(self, update_info: FileUpdateInfo) -> str:
        path = os.path.realpath(update_info.path)
        if not self._root or not path.startswith(self._root + os.sep):
            raise ValueError(f"{REFUSED}: {path} is not inside {self._root or '(no folder was named)'}")
        if not os.path.isfile(path):
            raise ValueError(f"{REFUSED}: {path} is not a file")
        found = _crc32(path)
        if found != update_info.crc32:
            raise ValueError(f"{REFUSED}: {path} has checksum {found}, the trainer wrote {update_info.crc32}")
        problem = difference(self._expected, file_shapes(path))
        if problem:
            raise ValueError(f"{REFUSED}: {problem}")
        return path


def _crc32(path: str) -> int:
    value = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value
