"""Plain references of all operators in numpy: no tricks, any float type. Only tests call these.

Kernels are compared with these values, and kernel gradients with finite differences of these
functions in float64. Same names and argument order as the operators; D model width, T tokens,
E experts, K top-k, H query heads, G key heads, d head width, V vocabulary.
"""

import numpy as np


def linear(x_TI: np.ndarray, weight_IO: np.ndarray) -> np.ndarray:
    """x @ weight."""
    return x_TI @ weight_IO


def to_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest number with 8 significant bits, ties to even, of float32's range; in float64."""
    _, exponent = np.frexp(x)  # |x| in [1/2, 1) * 2^exponent
    unit = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    rounded = np.rint(x.astype(np.float64) / unit) * unit
    return np.where(np.abs(rounded) > 2.0**128 - 2.0**119, np.copysign(np.inf, x), rounded)


def to_e4m3(x: np.ndarray) -> np.ndarray:
    """Nearest number with 4 significant bits or multiple of 2^-9, at most 448; in float64."""
    _, exponent = np.frexp(x)
    unit = np.ldexp(1.0, np.maximum(exponent - 4, -9))
    return np.clip(np.rint(x.astype(np.float64) / unit) * unit, -448, 448)


def operand(
    x: np.ndarray, format: str, block: tuple[int, int] = (1, 1), power_of_two: bool = False
) -> np.ndarray:
    """What a matrix product of this format multiplies by for `x`; `block`: of equal FP8 scale."""
    if format == "fp32":
        return x.astype(np.float64)
    values = to_bf16(x)
    if format == "bf16":
        return values
    for i in range(0, x.shape[0], block[0]):
        for j in range(0, x.shape[1], block[1]):
            part = values[i : i + block[0], j : j + block[1]]
            scale = fp8_scale(part.astype(np.float32), power_of_two)
            part[...] = to_e4m3(part.astype(np.float32) / scale) * np.float64(scale)
    return values


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


def add_rms_norm(
    x_TD: np.ndarray, delta_TD: np.ndarray, weight_D: np.ndarray, eps: float
) -> tuple[np.ndarray, np.ndarray]:
    """The sum, and its norm."""
    total_TD = x_TD + delta_TD
    return total_TD, rms_norm(total_TD, weight_D, eps)


def embedding(ids_T: np.ndarray, weight_VD: np.ndarray) -> np.ndarray:
    """Row by row."""
    rows = [weight_VD[token] for token in ids_T]
    return np.array(rows, weight_VD.dtype).reshape(len(ids_T), weight_VD.shape[1])


def fp8_scale(block: np.ndarray, power_of_two: bool) -> np.float32:
    """The scale of one block, of values already rounded to bf16."""
    magnitudes = np.abs(block[~np.isnan(block)])
    largest = np.float32(magnitudes.max(initial=0))
    scale = np.maximum(largest / np.float32(448), np.float32(2.0**-126))
    scale = scale if largest > 0 else np.float32(1)
    if power_of_two and np.isfinite(scale):
        fraction, exponent = np.frexp(scale)  # scale = fraction * 2^exponent, fraction in [1/2, 1)
        exponent = exponent - 1 if fraction == 0.5 else exponent
        scale = np.ldexp(np.float32(1), exponent)
    return scale


def adamw(
    parameter: np.ndarray,
    gradient: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    *,
    step: int,
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(parameter, first moment, second moment) after step number `step`, counted from 1."""
    first = betas[0] * moments[0] + (1 - betas[0]) * gradient
    second = betas[1] * moments[1] + (1 - betas[1]) * gradient**2
    unbiased = first / (1 - betas[0] ** step), second / (1 - betas[1] ** step)
    kept = parameter * (1 - learning_rate * weight_decay)
    return kept - learning_rate * unbiased[0] / (np.sqrt(unbiased[1]) + epsilon), first, second


def log_softmax_rows(logits_BV: np.ndarray, temperature: float | np.ndarray = 1.0) -> np.ndarray:
    """log softmax(logits / temperature)."""
    scaled = logits_BV / np.broadcast_to(temperature, len(logits_BV))[:, None]
    scaled = scaled - scaled.max(axis=1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))


def logprobs_of_logits(
    logits_NV: np.ndarray, labels_N: np.ndarray, temperature: float | np.ndarray = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """(log-probability of each label, entropy), 0 where the label is -100; 0 log 0 is 0."""
    log_p = log_softmax_rows(logits_NV, temperature)
    p = np.exp(log_p)
    entropies = -(p * np.where(p > 0, log_p, 0)).sum(axis=1)
    chosen = log_p[np.arange(len(log_p)), np.where(labels_N == -100, 0, labels_N)]
    has_target = labels_N != -100
    return np.where(has_target, chosen, 0.0), np.where(has_target, entropies, 0.0)


def token_logprobs(
    hidden_TD: np.ndarray,
    weight_VD: np.ndarray,
    labels_T: np.ndarray,
    temperature: float | np.ndarray = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """The same of logits = hidden @ weight^T."""
    return logprobs_of_logits(hidden_TD @ weight_VD.T, labels_T, temperature)


def token_logprobs_gradients(
    hidden_TD: np.ndarray,
    weight_VD: np.ndarray,
    labels_T: np.ndarray,
    temperature: float | np.ndarray,
    dlogprobs_T: np.ndarray,
    dentropies_T: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """(dhidden, dweight), token by token, by the Jacobian of softmax: diag(p) - p p^T."""
    temperatures_T = np.broadcast_to(temperature, len(hidden_TD))
    dhidden_TD, dweight_VD = np.zeros_like(hidden_TD), np.zeros_like(weight_VD)
    for t in np.flatnonzero(labels_T != -100):
        log_p = log_softmax_rows((weight_VD @ hidden_TD[t])[None], temperatures_T[t])[0]
        p = np.exp(log_p)
        dlogit = -dlogprobs_T[t] * p  # of -log p[label]: p - onehot
        dlogit[labels_T[t]] += dlogprobs_T[t]
        dlogit -= dentropies_T[t] * (np.diag(p) - np.outer(p, p)) @ (log_p + 1)
        dlogit /= temperatures_T[t]
        dhidden_TD[t] = dlogit @ weight_VD
        dweight_VD += np.outer(dlogit, hidden_TD[t])
    return dhidden_TD, dweight_VD
