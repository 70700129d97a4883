"""Run by the engine's Python: what vLLM's own classes read in a request, and what its image processor makes of files.

Arguments: the request's body (JSON), a NumPy archive to write, and the pictures' files.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main(body: str, out: str, *files: str) -> None:
    # Here, since only the engine's environment has them, and pytest imports every file.
    import torch
    from PIL import Image
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
    from webcoder_vllm.images import stand_in_for_torchvision

    # After transformers, which looks for torchvision once and believes what it finds.
    stand_in_for_torchvision()

    from vllm.entrypoints.scale_out.token_in_token_out.mm_features import mm_kwargs_from_features
    from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest
    from vllm.model_executor.models.qwen2_vl import _create_qwen2vl_field_factory
    from vllm.multimodal.inputs import MultiModalKwargsItems

    request = GenerateRequest.model_validate(json.loads(Path(body).read_text()))
    assert request.features is not None
    read = mm_kwargs_from_features(request.features)["image"]

    half = [0.5, 0.5, 0.5]
    processor = Qwen2VLImageProcessorPil(
        patch_size=2, merge_size=2, image_mean=half, image_std=half, size={"shortest_edge": 16, "longest_edge": 4096}
    )
    inputs = processor([Image.open(file) for file in files], return_tensors="pt", do_rescale=False, do_normalize=False)
    theirs = MultiModalKwargsItems.from_hf_inputs(inputs, _create_qwen2vl_field_factory(2)(inputs))["image"]

    found = {
        "hashes": request.features.mm_hashes["image"],
        "places": [[place.offset, place.length] for place in request.features.mm_placeholders["image"]],
        "ignored": sorted(request.model_extra or {}),
    }
    arrays = {}
    for who, items in (("ours", read), ("theirs", theirs)):
        assert len(items) == len(files)
        for i, item in enumerate(items):
            for name, element in item.items():
                assert isinstance(element.data, torch.Tensor)
                field = element.field
                found[f"{who}/{i}/{name}"] = [type(field).__name__, field.keep_on_cpu, str(element.data.dtype)]
                arrays[f"{who}/{i}/{name}"] = element.data.numpy()
    np.savez(out, about=json.dumps(found), **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:])
