"""A vLLM plugin: the weight transfer backend `webcoder_file`. Runs beside torch, in the engine's processes."""


def register() -> None:
    """Make the backend known to vLLM. Called once or more in every process of the engine."""
    from webcoder_vllm.images import stand_in_for_torchvision, stand_in_for_video_processors

    if stand_in_for_torchvision():
        stand_in_for_video_processors()
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if "webcoder_file" not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            "webcoder_file", "webcoder_vllm.backend", "FileWeightTransferEngine"
        )
