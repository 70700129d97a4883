"""Slow and obvious: float64 numpy, loops, one formula a line. What the core is measured against."""

import numpy as np


def group_advantages(rewards, group_ids, valid, num_groups, eps=1e-6):
    out = np.zeros(len(rewards))
    for g in range(num_groups):
        members = [i for i in range(len(rewards)) if group_ids[i] == g and valid[i]]
        values = [float(rewards[i]) for i in members]
        if len(values) < 2 or max(values) == min(values):
            continue
        mean = sum(values) / len(values)
        std = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
        for i in members:
            out[i] = (float(rewards[i]) - mean) / (std + eps)
    return out


def segment_returns(potentials, segment_mask, gamma):
    """The recursion as written, not its closed form."""
    out = np.zeros(np.shape(potentials))
    for r in range(len(out)):
        real = [float(p) for p, m in zip(potentials[r], segment_mask[r], strict=True) if m]
        if any(np.isnan(real)):
            continue
        reward = [gamma * real[k + 1] - real[k] for k in range(len(real) - 1)] + [0.0]
        for k in range(len(real)):
            out[r, k] = sum(gamma ** (j - k) * reward[j] for j in range(k, len(real)))
    return out


def redistribute(returns, token_counts, clip_offset):
    out = np.zeros(np.shape(returns))
    for r in range(len(out)):
        use = [k for k in range(out.shape[1]) if token_counts[r][k] > 0]
        if not use:
            continue
        n = np.array([float(token_counts[r][k]) for k in use])
        b = np.array([float(returns[r][k]) for k in use])
        delta = np.clip(b - (n * b).sum() / n.sum(), -clip_offset, clip_offset)
        delta = delta - (n * delta).sum() / n.sum()
        out[r, use] = delta
    return out


def segment_advantages(rollout_advantages, potentials, segment_mask, token_counts, gamma, clip_offset):
    mask = np.asarray(segment_mask, bool)
    delta = redistribute(segment_returns(potentials, mask, gamma), np.where(mask, token_counts, 0), clip_offset)
    return np.where(mask, np.asarray(rollout_advantages, np.float64)[:, None] + delta, 0.0)


def objective(logp, old_logp, advantage, mask, clip_low, clip_high, sampler_logp=None, tis_cap=None):
    total, count = 0.0, 0
    for i in np.ndindex(np.shape(mask)):
        if not mask[i]:
            continue
        ratio = np.exp(np.float64(logp[i]) - np.float64(old_logp[i]))
        term = -min(ratio * advantage[i], np.clip(ratio, 1 - clip_low, 1 + clip_high) * advantage[i])
        if tis_cap is not None:
            weight = np.exp(np.float64(old_logp[i]) - np.float64(sampler_logp[i]))
            term *= min(weight, tis_cap) if np.isfinite(sampler_logp[i]) else 1.0
        total, count = total + term, count + 1
    return total, count


def objective_terms(
    logp,
    old_logp,
    advantage,
    *,
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=None,
    sampler_logp=None,
    tis_cap=None,
    ref_logp=None,
    kl_coef=0.0,
    kl_estimator="k3",
    entropy=None,
    entropy_coef=0.0,
):
    """WebCoder eq. 9 with each option of method.md section 3: what one token adds to the loss."""
    logp, old_logp, advantage = np.float64(logp), np.float64(old_logp), np.float64(advantage)
    ratio = np.exp(logp - old_logp)
    gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - clip_low, 1 + clip_high) * advantage)
    if dual_clip is not None:
        gain = np.where(advantage < 0, np.maximum(gain, dual_clip * advantage), gain)
    term = -gain
    if tis_cap is not None:
        weight = np.minimum(np.exp(old_logp - np.float64(sampler_logp)), tis_cap)
        term = term * np.where(np.isfinite(sampler_logp), weight, 1.0)
    if kl_coef:
        d = np.float64(ref_logp) - logp
        term = term + kl_coef * {"k1": -d, "k2": d * d / 2, "k3": np.exp(d) - d - 1}[kl_estimator]
    if entropy_coef:
        term = term - entropy_coef * np.float64(entropy)
    return term


def token_logprobs(hidden, unembed, targets, temperature=1.0):
    logits = np.asarray(hidden, np.float64) @ np.asarray(unembed, np.float64) / temperature
    logits = logits - logits.max(axis=1, keepdims=True)
    logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logp[np.arange(len(targets)), targets], -(np.exp(logp) * logp).sum(axis=1)


def llama_hidden(params, config, tokens):
    """One sequence alone: [T] -> [T, D]."""
    p = {name: np.asarray(value, np.float64) for name, value in params.items()}
    c, length = config, len(tokens)

    def norm(x, scale):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + c.norm_eps) * scale

    half = c.head_dim // 2
    angle = np.arange(length)[:, None] / c.rope_theta ** (np.arange(half) / half)

    def turn(x):
        a, b = x[:, :half], x[:, half:]
        return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=1)

    x = p["embed"][tokens]
    for i in range(c.num_layers):
        h = norm(x, p["layers.attn_norm"][i])
        q, k, v = (h @ p[f"layers.{name}"][i] for name in "qkv")
        heads = []
        for n in range(c.num_heads):
            at = n // (c.num_heads // c.num_kv_heads) * c.head_dim
            query = turn(q[:, n * c.head_dim : (n + 1) * c.head_dim])
            key, value = turn(k[:, at : at + c.head_dim]), v[:, at : at + c.head_dim]
            scores = query @ key.T / np.sqrt(c.head_dim)
            scores[np.triu_indices(length, 1)] = -np.inf
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            heads.append(weights / weights.sum(axis=1, keepdims=True) @ value)
        x = x + np.concatenate(heads, axis=1) @ p["layers.o"][i]
        h = norm(x, p["layers.mlp_norm"][i])
        gate = h @ p["layers.gate"][i]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ p["layers.up"][i])) @ p["layers.down"][i]
    return norm(x, p["final_norm"])
