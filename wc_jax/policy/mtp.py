"""The head that guesses a second token (multi-token prediction, arXiv 2412.19437 section 2.2).

From the state that predicts a token and the token itself, one more layer makes a state that predicts the token
after it. An engine drafts with it; the policy does not depend on it, and training it leaves the policy's own
gradient alone: nothing flows back into states, embeddings or the unembedding.
"""

import jax
import jax.numpy as jnp

from wc_jax.mesh import STATES, constrain
from wc_jax.policy.blocks import linear
from wc_jax.policy.compute import Compute
from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.decoder import describe_rows, embedded
from wc_jax.policy.layers import apply_layer, norm
from wc_jax.policy.weight import Params
from wc_jax.types import Batch


def mtp_states(params: Params, config: PolicyConfig, hidden: jax.Array, batch: Batch, *, compute: Compute) -> jax.Array:
    """[B, T, D]: state t has seen token t and the state before it, and predicts the token after t.

    `hidden`: the policy's states, see `hidden_states`. A first token has no state before it: what stands in its
    place means nothing, and no other token sees it.
    """
    tokens, before = jnp.asarray(batch.tokens), jnp.asarray(batch.predecessor)
    column = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :]
    is_first = before < 0
    at = jnp.maximum(before, 0)
    # The pair of a state and the next token stands at the state's position.
    positions = jax.vmap(lambda row, at: row[at])(jnp.asarray(batch.positions), at)
    visible_until = jnp.where(is_first, column + 1, jnp.asarray(batch.visible_until))
    rows = describe_rows(tokens, positions, visible_until, before, config)
    own = jax.lax.stop_gradient({name: w for name, w in params.items() if not name.startswith("mtp.")})
    embedding = embedded(own, config, tokens, batch.images, compute)
    state = jax.vmap(lambda row, at: row[at])(jax.lax.stop_gradient(hidden), at)
    pair = [norm(embedding, params["mtp.embed_norm"], config), norm(state, params["mtp.hidden_norm"], config)]
    x = linear(jnp.concatenate(pair, axis=-1), params["mtp.fc"], compute.is_spread)
    x = constrain(x, compute.mesh, *STATES)
    # Of several layers, engines use the first for the second token; only that one is computed here.
    w = {name.removeprefix("mtp.layers."): v[0] for name, v in params.items() if name.startswith("mtp.layers.")}
    x = apply_layer(x, w, rows, kind="full", config=config, compute=compute)
    return norm(x, params["mtp.final_norm"], config)
