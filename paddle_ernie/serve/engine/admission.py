"""Whether a request can be served at all, asked before it is queued. For engine and worker."""

from paddle_ernie.ops.paged_attention import PAGE_SIZE, pages_for
from paddle_ernie.serve.engine.control import ModelInfo
from paddle_ernie.serve.engine.sampler import check_params
from paddle_ernie.serve.types import GenerateRequest
from paddle_ernie.utils.errors import InputError


def check_request(request: GenerateRequest, info: ModelInfo) -> None:
    """InputError that says what cannot be: the prompt, a parameter, the memory it would take."""
    ids, limit = request.prompt_ids, info.max_model_len
    if not ids:
        raise InputError("the prompt is empty; expected one token or more")
    if len(ids) > limit:
        raise InputError(
            f"the prompt has {len(ids)} tokens; expected at most {limit}, the longest sequence "
            "that is served"
        )
    if min(ids) < 0 or max(ids) >= info.vocab_size:
        wrong = next(token for token in ids if not 0 <= token < info.vocab_size)
        raise InputError(f"prompt token {wrong}; expected ids of 0 to {info.vocab_size - 1}")
    check_params(request.sampling, info.vocab_size)
    if (pages := pages_for(max_len(request, limit))) > info.num_pages:
        raise InputError(
            f"{len(ids)} prompt tokens and max_tokens {request.sampling.max_tokens} take {pages} "
            f"pages of {PAGE_SIZE}, the server has {info.num_pages}; ask for fewer"
        )


def max_len(request: GenerateRequest, limit: int) -> int:
    """Prompt and new tokens at most."""
    new = request.sampling.max_tokens
    return limit if new is None else min(limit, len(request.prompt_ids) + new)
