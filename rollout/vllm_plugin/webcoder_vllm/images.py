"""Multimodal models where torchvision is not installed: their text is served, images are not.

vLLM imports the image processors of a multimodal model even to serve its text, and they import torchvision, whose
published build does not load beside torch's build for CPUs. What stands in for it here can be imported and no more:
whoever calls into it gets an AttributeError.
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


class InterpolationMode(enum.Enum):
    """Named by image processors at import."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


def stand_in_for_torchvision() -> None:
    """No-op where torchvision is installed."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision") is not None:
        return
    for name in _MODULES:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        if "transforms" in name:
            module.InterpolationMode = InterpolationMode
