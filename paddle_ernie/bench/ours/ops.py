"""Our operators through their Python functions, forward alone or with the backward pass.

Weights of products are packed once, as in a step or a server: `numerics` keeps them. What packing
takes is measured apart (`packing` of the answer).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle

from paddle_ernie.bench.ours.formats import numerics_of
from paddle_ernie.bench.rivals.protocol import sample
from paddle_ernie.config.train import TrainConfig
from paddle_ernie.ops.attention import attention
from paddle_ernie.ops.grouped_linear import grouped_linear
from paddle_ernie.ops.linear import linear
from paddle_ernie.ops.linear_cross_entropy import linear_cross_entropy
from paddle_ernie.ops.rms_norm import rms_norm
from paddle_ernie.ops.swiglu import swiglu
from paddle_ernie.train.optimizer import AdamW

Work = Callable[[], Any]
Made = tuple[Work, Work | None, Work | None]
"""What is timed; what goes before each call, untimed; the same as the first, with packing."""


def measure_operator(request: dict[str, Any]) -> dict[str, Any]:
    """Time one operator in one format."""
    paddle.seed(0)
    make = OPERATORS[request["op"]]
    with paddle.set_grad_enabled(request.get("backward", False)):
        work, prepare, unpacked = make(request["shape"], request)
        found = sample(work, request["seconds"], prepare)
        if unpacked is not None:
            whole = sample(unpacked, request["seconds"] / 2, prepare)
            found["packing"] = max(0.0, whole["best"] - found["best"])
    return found


def _gemm(shape: dict[str, int], request: dict[str, Any]) -> Made:
    x_MK = paddle.randn([shape["M"], shape["K"]])
    weight_KN = paddle.randn([shape["K"], shape["N"]])
    return _product(linear, (x_MK, weight_KN), request)


def _experts(shape: dict[str, int], request: dict[str, Any]) -> Made:
    experts, rows = shape["E"], shape["M"]
    x_NK = paddle.randn([experts * rows, shape["K"]])
    weight_EKN = paddle.randn([experts, shape["K"], shape["N"]])
    return _product(grouped_linear, (x_NK, np.full(experts, rows, np.int64), weight_EKN), request)


def _product(function: Callable[..., Any], inputs: tuple[Any, ...], request: dict) -> Made:
    kept = numerics_of(request["format"])
    return (
        lambda: function(*inputs, kept),
        None,
        lambda: function(*inputs, numerics_of(request["format"])),
    )


def _attention(shape: dict[str, int], request: dict[str, Any]) -> Made:
    B, S, H, G, d = (shape[name] for name in "BSHGd")
    qkv_BSNd = _input([B, S, H + 2 * G, d], request)
    name = request["format"]
    return _directions(lambda: attention(qkv_BSNd, None, H, G, name), [qkv_BSNd], request)


def _rms_norm(shape: dict[str, int], request: dict[str, Any]) -> Made:
    x_TD, weight_D = _input([shape["T"], shape["D"]], request), _input([shape["D"]], request)
    return _directions(lambda: rms_norm(x_TD, weight_D, 1e-5), [x_TD, weight_D], request)


def _swiglu(shape: dict[str, int], request: dict[str, Any]) -> Made:
    gate_up_TF = _input([shape["T"], 2 * shape["F"]], request)
    return _directions(lambda: swiglu(gate_up_TF), [gate_up_TF], request)


def _cross_entropy(shape: dict[str, int], request: dict[str, Any]) -> Made:
    T, D, V = shape["T"], shape["D"], shape["V"]
    hidden_TD, weight_VD = _input([T, D], request), _input([V, D], request, 0.02)
    labels_T = np.random.default_rng(0).integers(0, V, T)
    weights_T = np.full(T, 1 / T, np.float32)

    def forward() -> paddle.Tensor:
        numerics = numerics_of(request["format"])  # a step packs its weights anew
        return linear_cross_entropy(hidden_TD, weight_VD, labels_T, weights_T, numerics)[0]

    return _directions(forward, [hidden_TD, weight_VD], request)


def _adamw(shape: dict[str, Any], request: dict[str, Any]) -> Made:
    layer = paddle.nn.Layer()
    parameters = {
        f"p{index}": layer.create_parameter(size) for index, size in enumerate(shape["sizes"])
    }
    gradients = [paddle.randn(size) * 1e-3 for size in shape["sizes"]]
    optimizer = AdamW(parameters, TrainConfig(max_steps=1))

    def give() -> None:
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.grad = gradient

    return lambda: optimizer.step(1e-4, 1.0), give, None


def _input(shape: list[int], request: dict[str, Any], deviation: float = 1.0) -> paddle.Tensor:
    tensor = paddle.randn(shape) * deviation
    tensor.stop_gradient = not request["backward"]
    return tensor


def _directions(
    forward: Callable[[], paddle.Tensor], inputs: list[paddle.Tensor], request: dict[str, Any]
) -> Made:
    """Forward alone, or with its backward pass."""
    if not request["backward"]:
        return forward, None, None
    gradient = paddle.ones_like(forward())

    def both() -> None:
        paddle.autograd.backward([forward()], [gradient])

    def forget() -> None:
        for tensor in inputs:
            tensor.clear_gradient(False)  # to None; as a keyword it is ignored

    return both, forget, None


OPERATORS: dict[str, Callable[..., Made]] = {
    "gemm": _gemm,
    "experts": _experts,
    "attention": _attention,
    "rms_norm": _rms_norm,
    "swiglu": _swiglu,
    "cross_entropy": _cross_entropy,
    "adamw": _adamw,
}
