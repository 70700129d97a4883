"""NVIDIA GPUs described to XLA's compiler, in the text form of its GpuTargetConfigProto."""

from wc_jax.planning.chips import Chip

_HOPPER = """
gpu_device_info {{
  cuda_compute_capability {{ major: 9 minor: 0 }}
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  l2_cache_size: 52428800
  memory_bandwidth: {memory_rate}
  device_memory_size: {memory_bytes}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "NVIDIA {title}"
"""


def gpu_target(chip: Chip) -> str:
    """Both Hopper chips have the same compute units and differ in their memory."""
    return _HOPPER.format(memory_rate=int(chip.memory_rate), memory_bytes=chip.memory_bytes, title=chip.title)
