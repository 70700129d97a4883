"""What the engine is asked after each push: a fixed prompt, with a picture where the policy can see. And our score."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from rollout.pictures import PictureRule, fit
from rollout.types import Sample, Shown
from wc_jax.batch import plan
from wc_jax.image_rows import image_arrays, space_needed
from wc_jax.images import sample_positions
from wc_jax.logprobs import token_logprobs
from wc_jax.policy import Compute, PolicyConfig, hidden_states, unembed
from wc_jax.types import Images

Params = Mapping[str, jax.Array]

Score = Callable[[Params, Sequence[int], Sequence[int]], np.ndarray]
"""(params, prompt ids, answer ids) -> the trainer's log-probability of each answer id, at temperature 1."""

_PLAIN = Compute()


@dataclass(frozen=True, kw_only=True)
class Canary:
    """The prompt whose answer is compared, and how close it must be."""

    score: Score
    prompt_ids: tuple[int, ...]
    """Over two cache blocks (64 tokens) long, so that a stale prefix would be hit; and no prefix of real work."""
    pictures: tuple[Shown, ...] = ()
    """That stand in the prompt."""
    num_tokens: int = 16
    """Length of the sampled answer."""
    tolerance: float = 1e-3
    """Largest difference in nats. 1e-3 is ample for float32; bfloat16 engines differ by 0.3."""


def make_canary(
    config: PolicyConfig, *, compute: Compute = _PLAIN, rule: PictureRule | None = None, tolerance: float = 1e-3
) -> Canary:
    """For this policy. `rule`: how it is shown pictures; None where it is shown none."""
    prompt_ids = canary_prompt(config.vocab_size)
    pictures: tuple[Shown, ...] = ()
    if rule is not None:
        prompt_ids, pictures = with_picture(prompt_ids, config, rule)
    score = policy_score(config, compute=compute, pictures=pictures)
    return Canary(score=score, prompt_ids=prompt_ids, pictures=pictures, tolerance=tolerance)


def canary_prompt(vocab_size: int, *, num_tokens: int = 80, seed: int = 0) -> tuple[int, ...]:
    """Random ids: they share no cached prefix with anything the agent asks.

    >>> len(canary_prompt(512)), canary_prompt(512) == canary_prompt(512)
    (80, True)
    """
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, vocab_size, num_tokens))


def with_picture(
    prompt_ids: Sequence[int], config: PolicyConfig, rule: PictureRule
) -> tuple[tuple[int, ...], tuple[Shown, ...]]:
    """The prompt with noise shown in its middle, twice as wide as high: sides, patches and scale must all be right."""
    marks = (config.vision_start_token_id, config.image_token_id, config.vision_end_token_id)
    start, image, end = marks
    # An id of a picture where there is none would be another question.
    plain = [token for token in prompt_ids if token not in (*marks, config.video_token_id)]
    noise = np.random.default_rng(0).integers(0, 256, (rule.side * 2, rule.side * 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "png")
    picture = fit(file.getvalue(), rule)
    before, after = plain[: len(plain) // 2], plain[len(plain) // 2 :]
    shown = Shown(picture=picture, start=len(before) + 1)
    return (*before, start, *[image] * picture.num_tokens, end, *after), (shown,)


def policy_score(config: PolicyConfig, *, compute: Compute = _PLAIN, pictures: tuple[Shown, ...] = ()) -> Score:
    """The trainer's own forward function as a `Score`. Compiled once for each length of prompt and answer."""

    @jax.jit
    def all_logp(params: Params, tokens: jax.Array, positions: np.ndarray | None, images: Images | None) -> jax.Array:
        states = hidden_states(dict(params), config, tokens[None], positions, images=images, compute=compute)
        logp, _ = token_logprobs(states[0, :-1], unembed(dict(params), config), tokens[1:])
        return logp

    def score(params: Params, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> np.ndarray:
        tokens = np.array([*prompt_ids, *answer_ids], np.int32)
        positions, images = _shown_in(tokens, pictures) if pictures else (None, None)
        return np.asarray(all_logp(params, jnp.asarray(tokens), positions, images))[-len(answer_ids) :]

    return score


def _shown_in(tokens: np.ndarray, pictures: tuple[Shown, ...]) -> tuple[np.ndarray, Images]:
    """Positions and images of a row that is this one sample."""
    length = len(tokens)
    sample = Sample(
        tokens=tokens,
        loss_mask=np.zeros(length, bool),
        sampler_logp=np.full(length, np.nan, np.float32),
        node_ids=np.zeros(length, np.int32),
        segment=0,
        num_trained=0,
        pictures=pictures,
    )
    layout = plan([sample], row_tokens=length)
    space = space_needed(layout, [sample])
    assert space is not None
    return sample_positions(sample)[None], image_arrays(layout, [sample], space, 1)
