"""What a model writes after a prompt: text samples during training and at the end of a run."""

from collections.abc import Callable

from paddle_ernie.data.tokenizer import Tokenizer
from paddle_ernie.models.decoding import generate
from paddle_ernie.models.model import ErnieMoeModel


def continue_text(
    model: ErnieMoeModel,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    before_token: Callable[[], None] = lambda: None,
) -> str:
    """The continuation, without the prompt; it ends at an end-of-text token.

    Any prompt will do: of one that is too long for the model the last part is read, an empty one is
    the start of a document. What `before_token` raises ends the work.
    """
    room = max(1, model.config.max_position_embeddings - max_tokens)
    new_ids = generate(
        model,
        tokenizer.encode(prompt)[-room:] or [tokenizer.bos_id],
        max_new_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop_ids=(tokenizer.eos_id,),
        num_ids=tokenizer.vocab_size,
    )
    ids = []
    before_token()
    for token in new_ids:
        ids.append(token)
        before_token()
    return tokenizer.decode(ids)
