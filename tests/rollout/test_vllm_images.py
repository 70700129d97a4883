"""Pictures on the wire, read back by vLLM's own classes and compared with what its processor makes of the files."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollout.types import Picture, Shown
from rollout.vllm import VllmEngine
from rollout.vllm_images import image_features, pixel_values
from rollout.vllm_install import engine_python
from tests.engine import ask
from tests.rollout.stub_server import generated, stub_server
from tests.wc_jax.pictures import picture

A, B = picture(2, 3), picture(3, 1, seed=1)
SHOWN = (Shown(picture=A, start=2), Shown(picture=B, start=2 + A.num_tokens + 3))
IDS = (1, 2, *[7] * A.num_tokens, 3, 4, 5, *[7] * B.num_tokens, 6)


def sent(*parts: list[int], pictures: tuple[Shown, ...] = SHOWN) -> list[dict[str, Any]]:
    """The bodies of the requests for one answer that comes in these parts, all but the last one broken off."""
    bodies: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        bodies.append(body)
        return 200, generated(parts[len(bodies) - 1], "stop" if len(bodies) == len(parts) else "abort")

    with stub_server(answer) as url:
        VllmEngine(url).generate(replace(ask(IDS, max_tokens=9), pictures=pictures))
    return bodies


def test_a_resumed_answer_shows_the_same_pictures_and_text_alone_has_no_features() -> None:
    first, second = sent([8, 9], [8])
    assert second["token_ids"] == [*first["token_ids"], 8, 9]
    assert first["features"] == second["features"] == image_features(SHOWN)
    assert "features" not in sent([8], pictures=())[0]


def test_pixels_are_bytes_twice_a_patch() -> None:
    values = pixel_values(A)
    assert (values.dtype, values.shape) == (np.uint8, (24, 3 * 2 * 4))
    frames = values.reshape(24, 3, 2, 4)
    np.testing.assert_array_equal(frames[:, :, 0], frames[:, :, 1])
    assert values.min() < 10 and values.max() > 245


@pytest.mark.engine
def test_vllm_reads_what_its_own_processor_would_have_made(tmp_path: Path) -> None:
    (body,) = sent([8])
    (tmp_path / "body.json").write_text(json.dumps(body))
    files = [write(tmp_path / f"{i}.png", shown.picture) for i, shown in enumerate(SHOWN)]
    script = Path(__file__).with_name("engine_reads.py")
    argv = [str(engine_python()), "-W", "ignore", str(script), str(tmp_path / "body.json"), str(tmp_path / "out.npz")]
    done = subprocess.run([*argv, *map(str, files)], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(tmp_path / "out.npz") as read:
        arrays = dict(read)
    about = json.loads(str(arrays.pop("about")))
    assert about["hashes"] == [A.digest, B.digest] and about["ignored"] == []
    assert about["places"] == [[2, 6], [11, 3]]
    assert {about[f"ours/{i}/pixel_values"][2] for i in range(2)} == {"torch.uint8"}
    names = {f"{i}/{name}" for i in range(2) for name in ("pixel_values", "image_grid_thw")}
    assert set(arrays) == {f"{who}/{name}" for who in ("ours", "theirs") for name in names}
    for name in names:
        assert about[f"ours/{name}"][:2] == about[f"theirs/{name}"][:2]
        np.testing.assert_array_equal(arrays[f"ours/{name}"], arrays[f"theirs/{name}"])


def write(path: Path, shown: Picture) -> Path:
    path.write_bytes(shown.png)
    return path
