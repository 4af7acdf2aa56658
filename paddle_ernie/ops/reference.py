"""Plain references of all operators in numpy: no tricks, any float type. Only tests call these.

Kernels are compared with these values, and kernel gradients with finite differences of these
functions in float64. Same names and argument order as the operators; D model width, T tokens,
E experts, K top-k, H query heads, G key heads, d head width, V vocabulary.
"""

import numpy as np


def linear(x_TI: np.ndarray, weight_IO: np.ndarray) -> np.ndarray:
    """x @ weight."""
    return x_TI @ weight_IO


def grouped_linear(x_NI: np.ndarray, counts_E: np.ndarray, weight_EIO: np.ndarray) -> np.ndarray:
    """Row by row: which expert's group is it in, times that expert's weight."""
    experts_N = np.repeat(np.arange(len(counts_E)), counts_E)
    rows = [x @ weight_EIO[expert] for x, expert in zip(x_NI, experts_N, strict=True)]
    return np.array(rows, x_NI.dtype).reshape(len(x_NI), weight_EIO.shape[2])


def rms_norm(x_TD: np.ndarray, weight_D: np.ndarray, eps: float) -> np.ndarray:
    """x / sqrt(mean(x^2) + eps) * weight."""
    return x_TD / np.sqrt(np.mean(x_TD**2, axis=-1, keepdims=True) + eps) * weight_D


def swiglu(gate_up_TF: np.ndarray) -> np.ndarray:
    """silu(left half) * right half."""
    gate, up = np.split(gate_up_TF, 2, axis=-1)
    return gate / (1 + np.exp(-gate)) * up


def rope(x_TNd: np.ndarray, positions_T: np.ndarray, theta: float, heads: int) -> np.ndarray:
    """Turn each pair (2i, 2i + 1) of the first `heads` heads by position * theta^(-2i / d)."""
    width = x_TNd.shape[-1]
    y_TNd = x_TNd.copy()
    for i in range(width // 2):
        angle = (positions_T * theta ** (-2 * i / width))[:, None]
        even, odd = x_TNd[:, :heads, 2 * i], x_TNd[:, :heads, 2 * i + 1]
        y_TNd[:, :heads, 2 * i] = even * np.cos(angle) - odd * np.sin(angle)
        y_TNd[:, :heads, 2 * i + 1] = odd * np.cos(angle) + even * np.sin(angle)
    return y_TNd


def attention(
    qkv_BSNd: np.ndarray, doc_ids_BS: np.ndarray, num_heads: int, num_kv_heads: int
) -> np.ndarray:
    """Query by query; `doc_ids_BS` must not repeat an id in a later run."""
    B, S, _, d = qkv_BSNd.shape
    query, key, value = np.split(qkv_BSNd, [num_heads, num_heads + num_kv_heads], axis=2)
    out_BSHd = np.zeros_like(query)
    for b, s, h in np.ndindex(B, S, num_heads):
        g = h * num_kv_heads // num_heads
        seen = [t for t in range(s + 1) if doc_ids_BS[b, t] == doc_ids_BS[b, s]]
        scores = key[b, seen, g] @ query[b, s, h] / np.sqrt(d)
        weights = np.exp(scores - scores.max())
        out_BSHd[b, s, h] = weights @ value[b, seen, g] / weights.sum()
    return out_BSHd.reshape(B, S, num_heads * d)


def router_probabilities(x_TD: np.ndarray, weight_ED: np.ndarray) -> np.ndarray:
    """softmax(x @ weight^T)."""
    scores = x_TD @ weight_ED.T
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def select_experts(probabilities_TE: np.ndarray, bias_E: np.ndarray, top_k: int) -> np.ndarray:
    """Sort by (falling score, rising id) and take the first top_k."""
    scores = probabilities_TE + bias_E
    order = [sorted(range(len(bias_E)), key=lambda e, row=row: (-row[e], e)) for row in scores]
    return np.array(order, np.int64).reshape(scores.shape)[:, :top_k]


def routing_weights(probabilities_TE: np.ndarray, ids_TK: np.ndarray) -> np.ndarray:
    """Chosen probabilities over max(their sum, 1e-12)."""
    chosen = np.take_along_axis(probabilities_TE, ids_TK, axis=1)
    return chosen / np.maximum(chosen.sum(axis=1, keepdims=True), 1e-12)


def combine_experts(
    outputs_TED: np.ndarray, ids_TK: np.ndarray, weights_TK: np.ndarray
) -> np.ndarray:
    """permute, experts and unpermute at once, given every expert's output for every token."""
    chosen = np.take_along_axis(outputs_TED, ids_TK[:, :, None], axis=1)
    return (chosen * weights_TK[:, :, None]).sum(axis=1)


def linear_cross_entropy(
    hidden_TD: np.ndarray, weight_VD: np.ndarray, labels_T: np.ndarray, token_weights_T: np.ndarray
) -> tuple[float, np.ndarray]:
    """(weighted sum, loss of each token), 0 where the label is -100."""
    logits = hidden_TD @ weight_VD.T
    peak = logits.max(axis=1, keepdims=True)
    log_total = (np.log(np.exp(logits - peak).sum(axis=1, keepdims=True)) + peak)[:, 0]
    safe = np.where(labels_T == -100, 0, labels_T)
    losses = np.where(labels_T == -100, 0.0, log_total - logits[np.arange(len(safe)), safe])
    return float(losses @ token_weights_T), losses
