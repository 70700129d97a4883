"""Starts a vLLM server for one model folder and makes sure that it ends when we do.

    python -m rollout.vllm_server install            # make the engine's environment
    python -m rollout.vllm_server serve MODEL_DIR    # a server by hand, until Ctrl-C

Settings were measured on two CPU cores (5M parameters, float32): no compiled graphs, because compiling costs
a minute and gains nothing at this size; the executor inside the engine's process instead of a third one
(16 requests at once: 1,000 to 1,400 tokens/s against 630); no tokenizer and no statistics. Prompts are never
split over steps: with a seed in the request, vLLM 0.32 on a CPU dies of a split prompt.
"""

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from rollout.engine import EngineError
from rollout.vllm_install import InstallError, engine_python, install_engine
from rollout.vllm_model import check_servable, model_arguments

_CACHE_BLOCK_TOKENS = 32
# Quiet, offline, and with the routes for new weights.
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_PLUGINS": "webcoder_weights",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_COLOR": "0",
    "HF_HUB_OFFLINE": "1",
    # Keeps the executor in the engine's process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # The only compiled function left is a token count; compiling it takes 15 s and a C++ compiler.
    "TORCHDYNAMO_DISABLE": "1",
}
# Fit the trainer's environment, not the server's.
_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONWARNINGS", "VIRTUAL_ENV", "XLA_FLAGS")


class VllmServer:
    """A server process of our own on the loopback interface, ready when the constructor returns.

        with VllmServer(model_dir, max_model_len=4096) as server:
            engine = VllmEngine(server.base_url, weights_dir=server.weights_dir)

    It runs in its own process group. `close` kills the group; so does the server itself as soon as this
    process is gone, even by `kill -9`.
    """

    def __init__(
        self,
        model_dir: Path | str,
        *,
        port: int | None = None,
        model_name: str = "policy",
        dtype: str = "float32",
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        kv_cache_gib: float = 1.0,
        num_threads: int = 1,
        images: bool = False,
        start_timeout_s: float = 300.0,
        log_path: Path | None = None,
    ) -> None:
        """Raises `EngineError` when the server does not come up in `start_timeout_s` or dies on the way.

        `port`: None for any free one. `max_model_len`: tokens of prompt and answer together; None for all that
        the model was made for. `kv_cache_gib`: memory for keys and values; it holds at least one
        sequence of `max_model_len` tokens or the server refuses to start. `images`: requests will show some.
        `log_path`: appended to; None keeps the log in the scratch folder, which goes with the server.
        """
        self._process: subprocess.Popen[bytes] | None = None
        model_dir = Path(model_dir)
        max_model_len = check_servable(model_dir, max_model_len, dtype)
        self.model_name = model_name
        self.port = _free_port(port)
        self.base_url = f"http://127.0.0.1:{self.port}"
        self._scratch = Path(tempfile.mkdtemp(prefix=f"webcoder-vllm-{os.getpid()}-", dir=_shared_memory()))
        self.weights_dir = self._scratch / "weights"
        self.weights_dir.mkdir()
        self.log_path = log_path or self._scratch / "vllm.log"
        arguments = _arguments(
            model_dir,
            port=self.port,
            model_name=model_name,
            dtype=dtype,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            kv_cache_gib=kv_cache_gib,
            images=images,
        )
        try:
            self._start(arguments, num_threads)
            self._wait(start_timeout_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "VllmServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The server's process id, which is also its process group."""
        assert self._process is not None
        return self._process.pid

    def is_alive(self) -> bool:
        """False once the server's process ended."""
        return self._process is not None and self._process.poll() is None

    def last_log_lines(self, count: int = 20) -> str:
        """What the server said last, for error messages."""
        if not self.log_path.is_file():
            return "(no log)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-count:])

    def close(self) -> None:
        """Kill the server and its processes, remove its scratch folder. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            # The group outlives its leader, so it is killed even when the leader is dead already.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            os.close(self._pipe)
            _wait_for_group(process.pid)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _start(self, arguments: Sequence[str], num_threads: int) -> None:
        try:
            python = engine_python()
        except InstallError as error:
            raise EngineError(str(error)) from error
        temporary = self._scratch / "tmp"
        temporary.mkdir()
        read_end, self._pipe = os.pipe()
        environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
        environment |= _ENVIRONMENT
        environment |= {
            "OMP_NUM_THREADS": str(num_threads),
            "TMPDIR": str(temporary),
            "WEBCODER_WATCH_FD": str(read_end),
            "WEBCODER_SCRATCH": str(self._scratch),
        }
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [str(python), "-W", "ignore", "-m", "webcoder_vllm.serve", "serve", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=self._scratch,
                    pass_fds=(read_end,),
                    start_new_session=True,
                )
        except OSError as error:
            os.close(self._pipe)
            raise EngineError(f"could not start {python}: {error}") from error
        finally:
            os.close(read_end)

    def _wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while True:
                if not self.is_alive():
                    raise EngineError(f"vLLM ended while starting; its last words:\n{self.last_log_lines()}")
                with contextlib.suppress(httpx.HTTPError):
                    if client.get(f"{self.base_url}/health").status_code == 200:
                        break
                if time.monotonic() > deadline:
                    raise EngineError(f"vLLM did not come up in {timeout_s:.0f} s:\n{self.last_log_lines()}")
                time.sleep(0.1)
        if not _listens(self.pid, self.port):
            raise EngineError(f"port {self.port} is answered by another process than our server: choose another port")


def _arguments(
    model_dir: Path,
    *,
    port: int,
    model_name: str,
    dtype: str,
    max_model_len: int,
    max_num_seqs: int,
    kv_cache_gib: float,
    images: bool,
) -> list[str]:
    return [
        str(model_dir.resolve()),
        *("--served-model-name", model_name, "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype),
        *("--max-model-len", str(max_model_len), "--max-num-seqs", str(max_num_seqs)),
        *("--kv-cache-memory-bytes", str(int(kv_cache_gib * 2**30)), "--block-size", str(_CACHE_BLOCK_TOKENS)),
        # A step takes several whole prompts or a waiting one never fits; and never a part of one.
        *("--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(2 * max_model_len, 4096))),
        *("--enforce-eager", "--distributed-executor-backend", "uni"),
        *("--enable-scale-out", "--enable-prompt-tokens-details"),
        # Log-probabilities of the distribution that was sampled from, temperature included.
        *("--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"),
        *("--weight-transfer-config", '{"backend": "webcoder_file"}'),
        *("--disable-log-stats", "--disable-uvicorn-access-log"),
        *model_arguments(model_dir, images=images),
    ]


def _free_port(port: int | None) -> int:
    """The port asked for, or any free one. Raises `EngineError` when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OSError as error:
            raise EngineError(f"port {port} is taken: choose another, or none to take any free one") from error
        found: int = probe.getsockname()[1]
        return found


def _shared_memory() -> str:
    """A folder in memory where there is one: weights pass through it every step."""
    folder = "/dev/shm"
    return folder if os.access(folder, os.W_OK) else tempfile.gettempdir()


def _listens(pid: int, port: int) -> bool:
    """True when process `pid` itself holds the listening socket of `port` (from Linux's /proc)."""
    listening = "0A"
    inodes = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == listening and int(fields[1].rsplit(":", 1)[1], 16) == port:
            inodes.add(f"socket:[{fields[9]}]")
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if os.readlink(descriptor) in inodes:
                return True
    return False


def _wait_for_group(group: int, timeout_s: float = 10.0) -> None:
    """Until the kernel has no process of the group left; killed ones need a moment to give memory back."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)


def main(argv: Sequence[str] | None = None) -> int:
    """`install` or `serve MODEL_DIR`. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m rollout.vllm_server", description="The vLLM engine of this project."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("install", help="make the engine's own environment from locks/engine.txt")
    serve = commands.add_parser("serve", help="serve a model folder until Ctrl-C")
    serve.add_argument("model_dir", type=Path)
    serve.add_argument("--port", type=int, default=None, help="default: any free one")
    serve.add_argument("--max-model-len", type=int, help="tokens of prompt and answer; default: what the model allows")
    options = parser.parse_args(argv)
    try:
        if options.command == "install":
            print(f"the engine's environment is ready: {install_engine().parent.parent}")
            return 0
        with VllmServer(options.model_dir, port=options.port, max_model_len=options.max_model_len) as server:
            print(f"serving {options.model_dir} at {server.base_url}; stop with Ctrl-C", flush=True)
            while server.is_alive():
                time.sleep(0.5)
            print(f"the server ended:\n{server.last_log_lines()}", file=sys.stderr)
            return 3
    except (InstallError, EngineError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
