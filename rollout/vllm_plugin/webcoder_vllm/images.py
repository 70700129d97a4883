"""Multimodal models where torchvision is not installed.

vLLM makes a multimodal model's processors even to serve its text, or images whose patches come ready-made. They import
torchvision, whose published build does not load beside torch's build for CPUs. What stands in for it here can be
imported and no more: whoever calls into it gets an AttributeError. Images go through none of it, and videos, which
would, are not served.
"""

import enum
import importlib.machinery
import importlib.util
import sys
import types

_MODULES = (
    "torchvision",
    "torchvision.io",
    "torchvision.transforms",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


class _Module(types.ModuleType):
    """One of ours."""


class InterpolationMode(enum.Enum):
    """Named by image processors at import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def stand_in_for_torchvision() -> bool:
    """No-op where torchvision is installed. Returns whether it is not."""
    if "torchvision" in sys.modules:
        return isinstance(sys.modules["torchvision"], _Module)
    if importlib.util.find_spec("torchvision") is not None:
        return False
    for name in _MODULES:
        module = _Module(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        if "transforms" in name:
            module.InterpolationMode = InterpolationMode
    return True


def stand_in_for_video_processors() -> None:
    """The processor of images and text asks for one of videos, and that for torchvision: it gets one that is there."""
    from transformers.models.auto.video_processing_auto import AutoVideoProcessor
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import Qwen3VLVideoProcessor
    from transformers.processing_utils import ProcessorMixin

    AutoVideoProcessor.from_pretrained = staticmethod(lambda *_, **__: Qwen3VLVideoProcessor())
    ProcessorMixin.check_argument_for_proper_class = lambda self, name, argument: type(argument)
