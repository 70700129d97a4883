"""vLLM as an engine, over HTTP: token ids in and out, and new weights into the running server.

Only vLLM's wire format is used, none of its code, so this module needs neither torch nor vLLM. What the
server must have been started with is in `rollout.vllm_server`.
"""

import math
import threading
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import tenacity

from rollout.engine import EngineError, Request
from rollout.types import Completion, FinishReason
from rollout.vllm_images import image_features

UNPUBLISHED = -1
"""The version of weights that nobody published: the checkpoint that the server was started with."""

# vLLM writes this instead of NaN and -inf; no sampled token has it honestly.
_LOST_LOGP = -9999.0
_MAX_IDLE_RESUMES = 5
_MAX_PUSHES = 3
_REFUSED = "weights refused"


class WeightsRefused(EngineError):
    """The engine looked at the file and did not load it; it goes on with the weights it had."""


def _is_connection_error(error: BaseException) -> bool:
    return isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError | httpx.ConnectTimeout)


class VllmEngine:
    """A running vLLM server. Safe to call from many threads.

    engine = VllmEngine(server.base_url, weights_dir=server.weights_dir)
    engine.publish(path, 0)             # a safetensors file inside weights_dir
    engine.generate(request)            # -> Completion, every token with its version
    """

    def __init__(
        self,
        base_url: str,
        *,
        model_name: str = "policy",
        weights_dir: Path | None = None,
        timeout_s: float = 600.0,
        num_retries: int = 5,
    ) -> None:
        """`timeout_s`: for one whole answer. `weights_dir`: the folder `publish` may load from."""
        self._model_name, self.weights_dir = model_name, weights_dir
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.Client(base_url=base_url, timeout=timeout_s, limits=limits, trust_env=False)
        self._retry = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_is_connection_error),
            stop=tenacity.stop_after_attempt(num_retries),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2.0),
            reraise=True,
        )
        self._push_lock = threading.Lock()

    def close(self) -> None:
        """Drop the connections; the server is not touched."""
        self._http.close()

    def generate(self, request: Request) -> Completion:
        """Continue the ids. An answer that the engine broke off is resumed within the same budget.

        Raises `EngineError` when the engine cannot be reached, refuses, or loses a log-probability.
        """
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {request.max_tokens}")
        ids: tuple[int, ...] = ()
        logp: tuple[float, ...] = ()
        versions: tuple[int, ...] = ()
        num_cached, num_idle = None, 0
        while True:
            part = self._generate_once(request, ids)
            ids, logp, versions = ids + part.token_ids, logp + part.logp, versions + part.policy_versions
            num_cached = part.num_cached_tokens if num_cached is None else num_cached
            reason = _reason(request, ids, part.finish_reason)
            if reason != "abort":
                return Completion(
                    token_ids=ids,
                    logp=logp,
                    policy_versions=versions,
                    finish_reason=reason,
                    num_cached_tokens=num_cached,
                )
            num_idle = 0 if part.token_ids else num_idle + 1
            if num_idle >= _MAX_IDLE_RESUMES:
                raise EngineError(f"{request.rollout_id} turn {request.turn}: aborted {num_idle} times without a token")

    def publish(self, path: Path, version: int) -> None:
        """Replace the weights by those in `path` and forget every cached prefix; the server keeps running.

        Requests in flight wait, then go on under the new weights. Raises `WeightsRefused` when the file was
        not loaded (the old weights stay in use), `EngineError` when loading failed: the engine then stays
        paused, because what it holds is not a model any more.
        """
        if self.weights_dir is None:
            raise ValueError("this engine was given no weights_dir: it can only generate")
        body = {"update_info": {"path": str(path), "crc32": crc32(path)}}
        with self._push_lock:
            self._post("/init_weight_transfer_engine", {"init_info": {"root": str(self.weights_dir)}})
            last: EngineError | None = None
            for _ in range(_MAX_PUSHES):
                try:
                    self._push_once(body, version)
                except WeightsRefused as error:
                    if last is not None:  # An earlier try broke the model, so there is nothing to resume.
                        raise EngineError(f"{error} (after {last}); the engine stays paused") from error
                    self._post("/resume")
                    raise
                except EngineError as error:
                    last = error
                else:
                    break
            else:
                raise EngineError(f"weights of step {version} did not load in {_MAX_PUSHES} tries: {last}") from last
            self._post("/resume")
        found = self.version()
        if found != version:
            raise EngineError(f"published version {version}, but the engine reports {found}")

    def version(self) -> int:
        """The version of the weights in use, as the engine itself reports it."""
        return _version_number(self._call("GET", "/weight_info", None).get("weight_version"))

    def is_ready(self) -> bool:
        """True when the server answers its health check."""
        try:
            return self._http.get("/health", timeout=5.0).status_code == 200
        except httpx.HTTPError:
            return False

    def _push_once(self, body: Mapping[str, object], version: int) -> None:
        self._post("/pause?mode=keep&clear_cache=true")
        try:
            self._post("/start_weight_update")
        except EngineError as error:
            # A finish that failed leaves the session open; go on in it.
            if "already" not in str(error):
                raise
        self._post("/update_weights", body)
        self._post("/finish_weight_update", {"weight_version": f"step-{version}"})

    def _generate_once(self, request: Request, done: tuple[int, ...]) -> Completion:
        body: dict[str, object] = {
            "model": self._model_name,
            "token_ids": [*request.token_ids, *done],
            "sampling_params": {
                "max_tokens": request.max_tokens - len(done),
                "temperature": request.temperature,
                "top_p": request.top_p,
                "top_k": request.top_k,
                # The same seed again would draw the same random numbers for other positions.
                "seed": (request.seed + len(done)) % 2**63,
                "stop_token_ids": list(request.stop_token_ids),
                # Only the request says what ends an answer, not the checkpoint's generation settings.
                "ignore_eos": True,
                "logprobs": 0,
                "detokenize": False,
            },
        }
        if request.pictures:
            body["features"] = image_features(request.pictures)
        where = f"{request.rollout_id} turn {request.turn}"
        answer = self._call("POST", "/inference/v1/generate", body)
        try:
            return _completion(answer)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{where}: unusable answer ({error}): {str(answer)[:300]}") from error

    def _post(self, path: str, body: Mapping[str, object] | None = None) -> None:
        self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> dict[str, Any]:
        try:
            response = self._retry(self._http.request, method, path, json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"no answer from the engine to {method} {path}: {error!r}") from error
        if response.status_code != 200:
            text = response.text[:2000]
            kind = WeightsRefused if _REFUSED in text else EngineError
            raise kind(f"the engine answered {response.status_code} to {method} {path}: {text}")
        found: dict[str, Any] = response.json()
        return found


def crc32(path: Path) -> int:
    """Zlib's checksum of a whole file; the engine compares it with what it reads."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def _reason(request: Request, ids: tuple[int, ...], reason: FinishReason) -> FinishReason:
    """An abort that came after the last token that was asked for is no abort."""
    if reason != "abort":
        return reason
    if ids and ids[-1] in request.stop_token_ids:
        return "stop"
    return "length" if len(ids) >= request.max_tokens else "abort"


def _completion(answer: Mapping[str, Any]) -> Completion:
    """One answer of the wire format. Raises ValueError and the like on anything that does not add up."""
    choice = answer["choices"][0]
    ids = tuple(int(token_id) for token_id in choice["token_ids"] or ())
    entries = (choice["logprobs"] or {"content": None})["content"] or []
    if [entry["token_id"] for entry in entries] != list(ids):
        raise ValueError(f"{len(entries)} log-probabilities for {len(ids)} tokens, or of other tokens")
    logp = tuple(float(entry["logprob"]) for entry in entries)
    lost = [index for index, value in enumerate(logp) if not math.isfinite(value) or value <= _LOST_LOGP]
    if lost:
        raise ValueError(f"lost log-probability of output token {lost[0]}")
    reason = choice["finish_reason"]
    if reason not in ("stop", "length", "abort"):
        raise ValueError(f"unknown finish reason {reason!r}")
    details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
    return Completion(
        token_ids=ids,
        logp=logp,
        policy_versions=_versions(choice["weight_versions"] or (), len(ids)),
        finish_reason=reason,
        num_cached_tokens=int(details.get("cached_tokens") or 0),
    )


def _versions(spans: Any, num_tokens: int) -> tuple[int, ...]:
    """One version a token from `[{version, start, end}]`, which must cover the answer exactly."""
    versions: list[int] = []
    for span in sorted(spans, key=lambda span: span["start"]):
        if span["start"] != len(versions):
            raise ValueError(f"weight versions leave a gap at token {len(versions)}")
        versions += [_version_number(span["version"])] * (span["end"] - span["start"])
    if len(versions) != num_tokens:
        raise ValueError(f"weight versions cover {len(versions)} of {num_tokens} tokens")
    return tuple(versions)


def _version_number(name: object) -> int:
    if name == "default":
        return UNPUBLISHED
    if not isinstance(name, str) or not name.startswith("step-") or not name[5:].lstrip("-").isdigit():
        raise EngineError(f"the engine reports weights {name!r}; expected step-<number>")
    return int(name[5:])
