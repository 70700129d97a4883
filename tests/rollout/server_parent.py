"""A process that starts a server and does nothing more: `python -m tests.rollout.server_parent MODEL_DIR`.

Prints one line of JSON with what the test needs to look for after killing it.
"""

import json
import sys
import time

from rollout.vllm_server import VllmServer
from tests.engine import MAX_MODEL_LEN

if __name__ == "__main__":
    server = VllmServer(sys.argv[1], max_model_len=MAX_MODEL_LEN, kv_cache_gib=0.125)
    print(json.dumps({"url": server.base_url, "pid": server.pid, "weights_dir": str(server.weights_dir)}), flush=True)
    time.sleep(600)
