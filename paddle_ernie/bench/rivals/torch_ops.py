"""torch's operators, each in every way that torch offers; the driver keeps the fastest."""

import torch
import torch.nn.functional as F  # noqa: N812  as torch does everywhere
from protocol import sample

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measure_operator(request):
    """Time one method of one operator in one format."""
    dtype = DTYPES.get(request["format"])
    if dtype is None:
        raise NotImplementedError(f"not measured in {request['format']}")
    torch.manual_seed(0)
    make = OPERATORS[request["op"]]
    with torch.set_grad_enabled(request.get("backward", False)):
        work, prepare = make(request["shape"], dtype, request)
        return sample(work, request["seconds"], prepare)


def _gemm(shape, dtype, request):
    M, K, N = shape["M"], shape["K"], shape["N"]
    x, weight = torch.randn(M, K).to(dtype), torch.randn(N, K).to(dtype)
    if request["method"] == "linear":
        return lambda: F.linear(x, weight), None
    if request["method"] == "packed linear":  # oneDNN's own layout, made once
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, M)
        return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), None
    transposed = weight.t().contiguous()
    return lambda: torch.mm(x, transposed), None


def _experts(shape, dtype, request):
    E, M, K, N = shape["E"], shape["M"], shape["K"], shape["N"]
    x, weight = torch.randn(E * M, K).to(dtype), torch.randn(E, K, N).to(dtype)
    if request["method"] == "loop":
        out = torch.empty(E * M, N, dtype=dtype)

        def loop():
            for expert in range(E):
                rows = slice(expert * M, (expert + 1) * M)
                torch.mm(x[rows], weight[expert], out=out[rows])

        return loop, None
    if request["method"] == "bmm":
        stacked = x.view(E, M, K)
        return lambda: torch.bmm(stacked, weight), None
    grouped_mm = getattr(F, "grouped_mm", None) or torch._grouped_mm
    stops = torch.arange(1, E + 1, dtype=torch.int32) * M
    if request["method"] == "grouped_mm transposed":  # as transformers stores experts
        stored = weight.transpose(1, 2).contiguous()
        return lambda: grouped_mm(x, stored.transpose(1, 2), offs=stops), None
    return lambda: grouped_mm(x, weight, offs=stops), None


def _attention(shape, dtype, request):
    B, S, H, G, d = (shape[name] for name in "BSHGd")

    def heads(count):
        return torch.randn(B, count, S, d).to(dtype).requires_grad_(request["backward"])

    query, key, value = heads(H), heads(G), heads(G)

    def forward():
        k, v = key, value
        if request["method"] == "repeated keys":
            k, v = (t.repeat_interleave(H // G, dim=1) for t in (key, value))
            return F.scaled_dot_product_attention(query, k, v, is_causal=True)
        return F.scaled_dot_product_attention(query, k, v, is_causal=True, enable_gqa=True)

    return _directions(forward, [query, key, value], request)


def _rms_norm(shape, dtype, request):
    T, D = shape["T"], shape["D"]
    x = torch.randn(T, D).to(dtype).requires_grad_(request["backward"])
    weight = torch.ones(D, dtype=dtype).requires_grad_(request["backward"])

    def as_model():  # as transformers writes it
        wide = x.to(torch.float32)
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return weight * scaled.to(x.dtype)

    def fused():
        return F.rms_norm(x, (D,), weight, 1e-5)

    forward = fused if request["method"] == "rms_norm" else as_model
    return _directions(forward, [x, weight], request)


def _swiglu(shape, dtype, request):
    T, width = shape["T"], shape["F"]
    gate, up = (
        torch.randn(T, width).to(dtype).requires_grad_(request["backward"]) for _ in range(2)
    )
    return _directions(lambda: F.silu(gate) * up, [gate, up], request)


def _cross_entropy(shape, dtype, request):
    T, D, V = shape["T"], shape["D"], shape["V"]
    hidden = torch.randn(T, D).to(dtype).requires_grad_(request["backward"])
    weight = (torch.randn(V, D) * 0.02).to(dtype).requires_grad_(request["backward"])
    labels = torch.randint(0, V, (T,))

    def forward():
        return F.cross_entropy(F.linear(hidden, weight).float(), labels)

    return _directions(forward, [hidden, weight], request)


def _adamw(shape, dtype, request):
    if dtype != torch.float32:
        raise NotImplementedError("master weights are fp32")
    parameters = [torch.nn.Parameter(torch.randn(size)) for size in shape["sizes"]]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter) * 1e-3
    options = {"fused": {"fused": True}, "foreach": {"foreach": True}}[request["method"]]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.1, **options)
    return optimizer.step, None


def _directions(forward, inputs, request):
    """(what is timed, what goes before it): forward alone, or with its backward pass."""
    if not request["backward"]:
        return forward, None
    gradient = torch.ones_like(forward())

    def forget():
        for tensor in inputs:
            tensor.grad = None

    return lambda: forward().backward(gradient), forget


OPERATORS = {
    "gemm": _gemm,
    "experts": _experts,
    "attention": _attention,
    "rms_norm": _rms_norm,
    "swiglu": _swiglu,
    "cross_entropy": _cross_entropy,
    "adamw": _adamw,
}
