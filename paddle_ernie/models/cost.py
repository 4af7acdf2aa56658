"""What a model costs: parameters, floating-point operations, memory. Arithmetic only, no Paddle.

`--dry-run` prints these figures, the monitor divides measured speed by them, and the search for
sub-models compares by them. Sub-models are given by sizes: per kept layer the number of experts in
the pool and the top-k (0 and 0 in a dense layer), as `elastic.Subnet.sizes()` returns them.
Memory constants were fitted to the peak resident size of training processes on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Protocol

from paddle_ernie.config.elastic import ElasticConfig
from paddle_ernie.config.model import NUM_PROJECTIONS_PER_MLP, ModelConfig
from paddle_ernie.config.precision import PrecisionConfig
from paddle_ernie.config.train import TrainConfig

FLOAT_BYTES = 4  # everything on a CPU is fp32
INDEX_FLOATS = 2  # an int64 index takes the room of two floats
ADAM_MOMENTS = 2
PACKED_FORMS = 2  # of each weight: for the forward product, and for the gradient of activations
BF16_BYTES = 2  # of a packed weight in bf16 and FP8, where a processor multiplies such pairs
SNAPSHOT_COPIES = 1 + ADAM_MOMENTS  # weights and both moments, copied for the writing thread

FRAMEWORK_BYTES = 315e6  # Python with Paddle imported, first operators run (299 MiB resident)
DATA_BYTES = 60e6  # tokenizer, mapped corpus pages, batches, monitor, plots
LOSS_CHUNK = (
    512  # tokens whose logits exist at a time; ops.linear_cross_entropy has the same number
)
LOGIT_COPIES = 1  # logits turn into their own gradient in place
BACKWARD_SHARE = 0.5  # gradients of a layer's activations, as a share of these, alive at a time
NORM_WIDTHS = 2  # a norm keeps its input; the product after it keeps its output
MLP_WIDTHS = NUM_PROJECTIONS_PER_MLP  # gate and up for the activation, its result for the product
SLOT_INDICES = 3  # token, source and slot of each routed copy of a token


class Sizes(Protocol):
    """Layer by layer, what a sub-model keeps."""

    @property
    def experts(self) -> Sequence[int]:
        """Experts in the pool; 0 in a dense layer."""
        ...

    @property
    def top_k(self) -> Sequence[float]:
        """Experts per token; a mean may be fractional."""
        ...


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of trainable parameters. The correction bias of routers is a buffer, not counted."""

    total: int
    """All, multi-token-prediction block included."""
    active: int
    """What one token passes when text is generated: its top-k experts, no prediction block."""
    embedding: int
    """Embedding, plus the output layer where the two are not tied."""
    mtp: int
    """The multi-token-prediction block."""

    @property
    def total_without_embedding(self) -> int:
        """Parameters of the layers; what ratios between sub-models compare."""
        return self.total - self.embedding

    @property
    def active_without_embedding(self) -> int:
        """Active parameters of the layers."""
        return self.active - self.embedding


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes at the peak of a training process, by part."""

    framework: float
    data: float
    weights: float
    gradients: float
    optimizer: float
    activations: float
    """One micro-batch, kept for the backward pass."""
    logits: float
    """One chunk of the loss."""
    packed: float
    """Weights rounded and laid out for matrix products, made once per step."""
    checkpoint: float
    """Copy of weights and moments that is written in the background."""

    @property
    def total(self) -> float:
        """All parts together."""
        return float(sum(getattr(self, part.name) for part in fields(self)))


@dataclass(frozen=True)
class _Sizes:
    experts: tuple[int, ...]
    top_k: tuple[float, ...]


def full_sizes(config: ModelConfig) -> Sizes:
    """The sizes of the model itself."""
    is_moe = [config.is_moe_layer(layer) for layer in range(config.num_hidden_layers)]
    return _Sizes(
        experts=tuple(config.moe_num_experts if moe else 0 for moe in is_moe),
        top_k=tuple(config.moe_k if moe else 0 for moe in is_moe),
    )


def parameter_counts(config: ModelConfig, sizes: Sizes | None = None) -> ParameterCounts:
    """Counts of a model, or of the sub-model with these sizes. vocab_size must be set."""
    sizes = sizes or full_sizes(config)
    D, F = config.hidden_size, config.moe_intermediate_size
    expert = NUM_PROJECTIONS_PER_MLP * D * F
    total = active = D  # the last norm
    for experts, top_k in zip(sizes.experts, sizes.top_k, strict=True):
        layer = _attention_weights(config) + 2 * D
        if experts:
            layer += D * experts + config.moe_num_shared_experts * expert
        else:
            layer += NUM_PROJECTIONS_PER_MLP * D * config.intermediate_size
        total += layer + experts * expert
        active += layer + int(top_k) * expert
    embedding = _vocab(config) * D * (1 if config.tie_word_embeddings else 2)
    mtp = config.num_nextn_predict_layers * _mtp_parameters(config)
    return ParameterCounts(total + embedding + mtp, active + embedding, embedding, mtp)


def flops_per_token(
    config: ModelConfig, seq_len: int, *, backward: bool, sizes: Sizes | None = None
) -> float:
    """Floating-point operations per token; with `backward`, of a training step.

    A multiplication and an addition count as two; attention counts the causal half; the backward
    pass costs two forwards; the multi-token-prediction block runs in training only. Recomputation
    is not counted, so that utilisation compares useful work.
    """
    sizes = sizes or full_sizes(config)
    head = config.hidden_size * _vocab(config)
    forward = 2.0 * head
    for experts, top_k in zip(sizes.experts, sizes.top_k, strict=True):
        forward += _layer_flops(config, seq_len, experts, top_k)
    if not backward:
        return forward
    if config.num_nextn_predict_layers:
        joining = 2 * config.hidden_size**2  # 2 D -> D
        forward += 2.0 * (joining + head) + _layer_flops(config, seq_len, 0, 0)
    return 3.0 * forward


def elastic_flops_per_token(config: ModelConfig, elastic: ElasticConfig, seq_len: int) -> float:
    """Expected operations per token of a training step whose rows sample sub-models."""
    L, K = config.num_hidden_layers, config.moe_k
    depth, sparsity = elastic.depth, elastic.sparsity
    kept = _expected(depth.probability, (depth.min_layers + L - 1) / 2, L) / L
    mean_k = _expected(sparsity.probability, (sparsity.min_k + K - 1) / 2, K)
    full = full_sizes(config)
    # Linear in k, so the mean k has the mean cost; every layer is kept equally often.
    mean = _Sizes(tuple(full.experts), tuple(mean_k if k else 0 for k in full.top_k))
    whole = flops_per_token(config, seq_len, backward=True, sizes=mean)
    without_layers = flops_per_token(config, seq_len, backward=True, sizes=_Sizes((), ()))
    return without_layers + kept * (whole - without_layers)


def memory_estimate(
    config: ModelConfig,
    train: TrainConfig,
    seq_len: int,
    precision: PrecisionConfig | None = None,
) -> MemoryEstimate:
    """Peak memory of a training process of the full model; sampled sub-models need less."""
    weights = FLOAT_BYTES * float(parameter_counts(config).total)
    is_fp32 = precision is None or precision.dtype == "fp32"
    packed_bytes = FLOAT_BYTES if is_fp32 else BF16_BYTES
    tokens = train.micro_rows * seq_len
    return MemoryEstimate(
        framework=FRAMEWORK_BYTES,
        data=DATA_BYTES,
        weights=weights,
        gradients=weights,
        optimizer=ADAM_MOMENTS * weights,
        activations=FLOAT_BYTES * tokens * _activations_per_token(config, train.recompute),
        logits=FLOAT_BYTES * _loss_floats(config, tokens),
        packed=packed_bytes * _packed_floats(config, train),
        checkpoint=SNAPSHOT_COPIES * weights,
    )


def _packed_floats(config: ModelConfig, train: TrainConfig) -> float:
    """Kept for all micro-batches of a step; a single one packs weight by weight."""
    if train.micro_rows < train.global_batch_size:
        return float(PACKED_FORMS * parameter_counts(config).total)
    experts = config.moe_num_experts * 2 * config.hidden_size * config.moe_intermediate_size
    return float(max(experts, config.hidden_size * _vocab(config)))


def _loss_floats(config: ModelConfig, tokens: int) -> float:
    """A chunk of logits; per head the finished gradients of hidden states and output layer."""
    heads = 1 + config.num_nextn_predict_layers
    chunk = LOGIT_COPIES * min(LOSS_CHUNK, tokens) * _vocab(config)
    return float(chunk + heads * config.hidden_size * (_vocab(config) + tokens))


def _activations_per_token(config: ModelConfig, recompute: bool) -> float:
    """Floats that the layers keep between forward and backward pass, and the gradients at work."""
    D = config.hidden_size
    layers = [
        _layer_activations(config, config.is_moe_layer(layer))
        for layer in range(config.num_hidden_layers)
    ]
    if config.num_nextn_predict_layers:
        joined = 2 * NORM_WIDTHS * D + 2 * D  # two norms and their concatenation
        layers.append(_layer_activations(config, is_moe=False) + joined)
    # Recomputation keeps the input of each layer, and everything of the one layer at work.
    kept = len(layers) * D + max(layers) if recompute else sum(layers)
    return kept + BACKWARD_SHARE * max(layers) + NORM_WIDTHS * D  # last norm


def _layer_activations(config: ModelConfig, is_moe: bool) -> float:
    """Floats per token that one layer keeps. Attention scores are computed again, not kept."""
    D, K, F = config.hidden_size, config.moe_k, config.moe_intermediate_size
    H, G, d = config.num_attention_heads, config.num_key_value_heads, config.dim_per_head
    attention = NORM_WIDTHS * D + (H + 2 * G) * d + H * d + H  # rotated qkv, output, log-sum-exp
    if not is_moe:
        return attention + NORM_WIDTHS * D + MLP_WIDTHS * config.intermediate_size
    routed = K * (2 * D + MLP_WIDTHS * F + SLOT_INDICES * INDEX_FLOATS)  # gathered in, output
    shared = config.moe_num_shared_experts * MLP_WIDTHS * F
    return attention + NORM_WIDTHS * D + routed + shared + config.moe_num_experts


def _layer_flops(config: ModelConfig, seq_len: int, experts: int, top_k: float) -> float:
    D, F = config.hidden_size, config.moe_intermediate_size
    if experts:
        width = (top_k + config.moe_num_shared_experts) * F
        mlp = NUM_PROJECTIONS_PER_MLP * D * width + D * experts
    else:
        mlp = NUM_PROJECTIONS_PER_MLP * D * config.intermediate_size
    mean_context = (seq_len + 1) / 2
    scores = 2 * config.num_attention_heads * config.dim_per_head * mean_context
    return 2.0 * (_attention_weights(config) + mlp + scores)


def _attention_weights(config: ModelConfig) -> int:
    heads = 2 * config.num_attention_heads + 2 * config.num_key_value_heads
    return config.hidden_size * config.dim_per_head * heads


def _mtp_parameters(config: ModelConfig) -> int:
    """Two norms of its inputs, their projection 2 D -> D, and a dense layer."""
    D = config.hidden_size
    layer = (
        _attention_weights(config) + 2 * D + NUM_PROJECTIONS_PER_MLP * D * config.intermediate_size
    )
    return 2 * D + 2 * D * D + layer


def _expected(probability: float, reduced: float, full: float) -> float:
    return probability * reduced + (1 - probability) * full


def _vocab(config: ModelConfig) -> int:
    assert config.vocab_size is not None, "vocab_size is set once the tokenizer is known"
    return config.vocab_size
