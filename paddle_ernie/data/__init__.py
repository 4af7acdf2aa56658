"""From text on disk to packed rows of tokens: sources, tokenizer, cache, loader. No Paddle."""
