"""`model:` the architecture. Key names follow ERNIEKit and PaddleFormers."""

from pydantic import Field, model_validator
from typing_extensions import Self

from paddle_ernie.config.base import Section, key_fault

NUM_PROJECTIONS_PER_MLP = 3  # gate, up, down


class ModelConfig(Section):
    """An ERNIE MoE decoder. Numerics are those of the public ERNIE 4.5 MoE.

    Upper bounds are far above any model that was ever trained: they catch a slip of the keyboard.
    """

    vocab_size: int | None = Field(None, ge=2, le=10_000_000)
    """Entries of the embedding; null takes the tokenizer's size."""
    hidden_size: int = Field(256, ge=8, le=1_000_000)
    """Width of the residual stream."""
    num_hidden_layers: int = Field(6, ge=1, le=1_000)
    """Decoder layers."""
    num_attention_heads: int = Field(4, ge=1, le=10_000)
    """Query heads."""
    num_key_value_heads: int = Field(2, ge=1, le=10_000)
    """Key and value heads, each shared by an equal number of query heads."""
    head_dim: int | None = Field(None, ge=2, le=10_000)
    """Width of one head, even; null means hidden_size / num_attention_heads."""
    intermediate_size: int = Field(768, ge=1, le=10_000_000)
    """Width of the MLP in dense layers and in the multi-token-prediction block."""
    moe_num_experts: int = Field(16, ge=0, le=10_000)
    """Experts per MoE layer; 0 makes every layer dense."""
    moe_k: int = Field(2, ge=1)
    """Experts each token is routed to."""
    moe_intermediate_size: int = Field(256, ge=1, le=10_000_000)
    """Width of one expert."""
    moe_num_shared_experts: int = Field(1, ge=0, le=1_000)
    """Experts that every token passes; fused into one MLP of this many expert widths."""
    moe_layer_start_index: int = Field(1, ge=0)
    """Layers below this index are dense."""
    num_nextn_predict_layers: int = Field(0, ge=0, le=1)
    """1 adds a multi-token-prediction block that predicts the token after the next."""
    rope_theta: float = Field(1_000_000.0, gt=0)
    """Base of the rotary embedding (1e6 in ERNIE 5.0)."""
    rms_norm_eps: float = Field(1e-5, gt=0)
    """Added to the mean square inside every RMSNorm."""
    tie_word_embeddings: bool = True
    """Share the embedding with the output layer."""
    max_position_embeddings: int = Field(4096, ge=1, le=100_000_000)
    """Longest sequence the model is meant for; exported, and checked by generation."""
    initializer_range: float = Field(0.02, gt=0)
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _check_shapes(self) -> Self:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise key_fault(
                "hidden_size",
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}; change one of them or set head_dim",
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise key_fault(
                "num_attention_heads",
                f"num_attention_heads {self.num_attention_heads} is not a multiple of "
                f"num_key_value_heads {self.num_key_value_heads}",
            )
        if self.dim_per_head % 2:
            raise key_fault(
                "head_dim", f"head_dim {self.dim_per_head} is odd; rotary embedding needs pairs"
            )
        if self.moe_num_experts and self.moe_k > self.moe_num_experts:
            raise key_fault(
                "moe_k", f"moe_k {self.moe_k} is more than moe_num_experts {self.moe_num_experts}"
            )
        return self

    @property
    def dim_per_head(self) -> int:
        """Width of one attention head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def is_moe_layer(self, layer: int) -> bool:
        """Whether decoder layer `layer` (from 0) routes to experts."""
        return self.moe_num_experts > 0 and layer >= self.moe_layer_start_index

    @property
    def moe_layers(self) -> tuple[int, ...]:
        """Indices of the layers that route to experts."""
        return tuple(i for i in range(self.num_hidden_layers) if self.is_moe_layer(i))
