"""Recurrent layers token by token: float64 numpy, one formula a line, and their gradients by hand."""

import numpy as np


def gated_delta_rule(q, k, v, log_decay, beta, predecessor):
    """One head of one row: [T, H], [T, H], [T, E], [T], [T] -> out [T, E] and the states [T, H, E]."""
    q, k, v, log_decay, beta = (np.asarray(x, np.float64) for x in (q, k, v, log_decay, beta))
    states = np.zeros((len(q), q.shape[1], v.shape[1]))
    for t, p in enumerate(predecessor):
        kept = np.exp(log_decay[t]) * states[p] if p >= 0 else np.zeros(states.shape[1:])
        states[t] = kept + beta[t] * np.outer(k[t], v[t] - kept.T @ k[t])
    return np.einsum("the,th->te", states, q) / np.sqrt(q.shape[1]), states


def gated_delta_rule_grads(q, k, v, log_decay, beta, predecessor, d_out):
    """Gradients of sum(out * d_out) in the order of the arguments."""
    q, k, v, log_decay, beta, d_out = (np.asarray(x, np.float64) for x in (q, k, v, log_decay, beta, d_out))
    _, states = gated_delta_rule(q, k, v, log_decay, beta, predecessor)
    scale = 1 / np.sqrt(q.shape[1])
    d_q = np.einsum("the,te->th", states, d_out) * scale
    d_k, d_v, d_log_decay, d_beta = (np.zeros(x.shape) for x in (k, v, log_decay, beta))
    d_states = np.einsum("th,te->the", q, d_out) * scale
    for t in reversed(range(len(q))):
        p = predecessor[t]
        kept = np.exp(log_decay[t]) * states[p] if p >= 0 else np.zeros(states.shape[1:])
        error = v[t] - kept.T @ k[t]
        d_written = d_states[t].T @ k[t]
        d_beta[t] = d_written @ error
        d_v[t] = beta[t] * d_written
        d_k[t] = beta[t] * (d_states[t] @ error - kept @ d_written)
        d_kept = d_states[t] - beta[t] * np.outer(k[t], d_written)
        d_log_decay[t] = (d_kept * kept).sum()
        if p >= 0:
            d_states[p] += np.exp(log_decay[t]) * d_kept
    return d_q, d_k, d_v, d_log_decay, d_beta


def short_conv(x, weight, predecessor):
    """One row: [T, F], [F, width] -> [T, F]."""
    x, weight = np.asarray(x, np.float64), np.asarray(weight, np.float64)
    out = np.zeros(x.shape)
    for t in range(len(x)):
        at = t
        for tap in reversed(range(weight.shape[1])):
            if at >= 0:
                out[t] += weight[:, tap] * x[at]
                at = predecessor[at]
    return out
