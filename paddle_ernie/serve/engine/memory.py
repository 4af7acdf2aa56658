"""What an engine holds and serves: the longest sequence, ids, pages. Called by the engine."""

from paddle_ernie.config.model import ModelConfig
from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.inference import InferenceModel
from paddle_ernie.ops.paged_attention import pages_for
from paddle_ernie.serve.engine.control import ModelInfo
from paddle_ernie.serve.engine.options import EngineOptions
from paddle_ernie.serve.engine.weights import ServedWeights
from paddle_ernie.utils.errors import InputError


def model_info(weights: ServedWeights, tokenizer: Tokenizer, options: EngineOptions) -> ModelInfo:
    """What an engine of these serves. InputError if they do not go together."""
    model = weights.model
    assert model is not None, "weights without a model"
    config, moe_layers = model.config, len(model.config.moe_layers)
    longest = longest_sequence(config, options)
    return ModelInfo(
        max_model_len=longest,
        vocab_size=checked_vocabulary(config, tokenizer),
        num_experts=config.moe_num_experts if moe_layers else 0,
        moe_k=config.moe_k if moe_layers else 0,
        num_moe_layers=moe_layers,
        num_pages=num_pages(model, options, longest),
        version=weights.version,
        checksum=weights.checksum,
        fingerprint=weights.fingerprint,
    )


def num_pages(model: InferenceModel, options: EngineOptions, max_model_len: int) -> int:
    """As asked; else what the memory holds, but no more than can be in use."""
    if options.num_pages is not None:
        return options.num_pages
    one = page_bytes(model)
    if not (fitting := options.kv_cache_bytes // one):
        raise InputError(
            f"kv_cache_bytes is {options.kv_cache_bytes:,}; expected at least {one:,}, one page "
            "of this model"
        )
    return min(fitting, options.max_num_seqs * pages_for(max_model_len))


def page_bytes(model: InferenceModel) -> int:
    """Of one page, all layers together."""
    pages = model.new_pages(1)
    return len(pages.layers) * pages.page_bytes


def longest_sequence(config: ModelConfig, options: EngineOptions) -> int:
    """Prompt and answer together, in tokens."""
    longest = config.max_position_embeddings
    wanted = options.max_model_len or longest
    if wanted > longest:
        raise InputError(
            f"max_model_len is {wanted}; expected at most {longest}, the model's "
            "max_position_embeddings"
        )
    return wanted


def checked_vocabulary(config: ModelConfig, tokenizer: Tokenizer) -> int:
    """Ids that are served: the tokenizer's; the model's may be padded."""
    assert config.vocab_size is not None
    if tokenizer.vocab_size > config.vocab_size:
        raise InputError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}; "
            "expected the tokenizer that the model was trained with"
        )
    return tokenizer.vocab_size
