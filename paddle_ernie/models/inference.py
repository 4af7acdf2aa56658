"""InferenceModel: one version of the weights, ready to continue many sequences at once.

    ids of T tokens, prefill chunks and decoded ones mixed --step--> logits of the wanted rows
                                                                     chosen experts of every token

Called by the server's engine and by whoever scores text in batches. A token's logits have the bits
of the training forward (`ErnieMoeModel.logits`) of the same recipe, whatever the batch, the chunks
and the pages; see docs/numerics.md. Letters: T tokens, R wanted rows, V vocabulary, L MoE layers,
K experts per token.
"""

from dataclasses import dataclass

import numpy as np
import paddle

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.block import Block
from paddle_ernie.models.composed_step import ComposedStep
from paddle_ernie.models.mlp import MLP
from paddle_ernie.models.model import ErnieMoeModel
from paddle_ernie.ops import library
from paddle_ernie.ops.model_step import PackedModel, StepShape
from paddle_ernie.ops.numerics import Recipe
from paddle_ernie.ops.paged_attention import KVPages, PagedBatch
from paddle_ernie.utils.errors import InputError


@dataclass(frozen=True)
class StepOutput:
    """What one step computed."""

    logits_RV: np.ndarray  # noqa: N815
    """float32, of the wanted rows, in their order; the caller may change it."""
    routes_TLK: np.ndarray | None  # noqa: N815
    """Chosen experts of all T tokens, best first, if asked for and there are MoE layers. The
    smallest unsigned type whose largest value is no expert's id."""


class InferenceModel:
    """Does not change, and does not follow changes of the model that it was made from."""

    def __init__(
        self, model: ErnieMoeModel, *, recipe: Recipe | None = None, moe_k: int | None = None
    ) -> None:
        """Recipe None: the model's. `moe_k`: experts per token, if not those of the model."""
        self.config: ModelConfig = _with_top_k(model.config, moe_k)
        """With `moe_k` as served."""
        self.recipe = recipe or model.recipe
        self.num_moe_layers = len(self.config.moe_layers)
        make = _packed if library.available(model.embed_tokens) else _composed
        self._body = make(model, self.config, self.recipe)

    def new_pages(self, num_pages: int) -> KVPages:
        """Room for the keys and values of so many pages of 64 positions, in every layer."""
        config = self.config
        return KVPages(
            config.num_hidden_layers, num_pages, config.num_key_value_heads, config.dim_per_head,
            format=self.recipe.high.forward,
        )  # fmt: skip

    def step(
        self,
        ids_T: np.ndarray,
        pages: KVPages,
        batch: PagedBatch,
        rows: np.ndarray,
        *,
        routes: bool = False,
    ) -> StepOutput:
        """Continue the sequences of `batch` by its tokens; `rows` are those to score, of 0..T-1.

        Writes keys and values to `pages`. The batch is not advanced: `batch.advance` does that.
        """
        if len(ids_T) != batch.num_tokens:
            raise InputError(f"{len(ids_T)} ids for a batch of {batch.num_tokens} tokens")
        wanted = routes and self.num_moe_layers > 0
        logits_RV, chosen_TLK = self._body.step(ids_T, pages, batch, rows, wanted)
        if not wanted:
            return StepOutput(logits_RV, None)
        smallest = np.min_scalar_type(self.config.moe_num_experts)
        return StepOutput(logits_RV, chosen_TLK.astype(smallest))


def _with_top_k(config: ModelConfig, moe_k: int | None) -> ModelConfig:
    if moe_k is None:
        return config
    if config.moe_num_experts and not 1 <= moe_k <= config.moe_num_experts:
        raise InputError(
            f"{moe_k} experts per token; expected 1 to {config.moe_num_experts}, the experts of a "
            "layer"
        )
    return config.model_copy(update={"moe_k": moe_k})


def _composed(model: ErnieMoeModel, config: ModelConfig, recipe: Recipe) -> ComposedStep:
    copy = ErnieMoeModel(config, seed=None)
    copy.set_state_dict(model.state_dict())
    return ComposedStep(copy, recipe)


def _packed(model: ErnieMoeModel, config: ModelConfig, recipe: Recipe) -> PackedModel:
    layers, moe_layers = config.num_hidden_layers, len(config.moe_layers)
    shape = StepShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.dim_per_head,
        num_layers=layers,
        num_dense_layers=layers - moe_layers,
        dense_width=config.intermediate_size,
        num_experts=config.moe_num_experts,
        top_k=config.moe_k,
        expert_width=config.moe_intermediate_size,
        shared_width=config.moe_intermediate_size * config.moe_num_shared_experts,
        tied=config.tie_word_embeddings,
    )
    head = model.embed_tokens if model.lm_head is None else model.lm_head
    weights = [weight for block in model.layers for weight in _layer_weights(block)]
    weights += [model.embed_tokens, model.norm, head]
    return PackedModel(
        shape, weights, recipe, eps=config.rms_norm_eps, rope_theta=config.rope_theta
    )


def _layer_weights(block: Block) -> list[paddle.Tensor]:
    attention = block.self_attn
    weights = [block.input_layernorm, attention.qkv_proj, attention.o_proj]
    weights.append(block.post_attention_layernorm)
    if not block.is_moe:
        return weights + _mlp_weights(block.mlp)
    moe = block.mlp
    weights += [moe.gate, moe.correction_bias, moe.experts_gate_up_proj, moe.experts_down_proj]
    return weights + ([] if moe.shared_experts is None else _mlp_weights(moe.shared_experts))


def _mlp_weights(mlp: MLP) -> list[paddle.Tensor]:
    return [mlp.gate_up_proj, mlp.down_proj]
