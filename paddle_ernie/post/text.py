"""The `tokenizer` stage: text ready to train on, and what simple models make of it.

Writes `summary.json`: the sources, the tokenizer's compression, and two reference lines in bits
per byte on the validation text, a byte bigram and xz.
"""

from dataclasses import asdict
from pathlib import Path

from paddle_ernie.config.data import DataConfig
from paddle_ernie.data.corpus import Corpus, prepare_corpus
from paddle_ernie.monitor.progress import Progress
from paddle_ernie.post.baselines import measure_baselines
from paddle_ernie.utils.files import write_json
from paddle_ernie.utils.options import RunOptions


def prepare_text(data: DataConfig, cache_dir: Path, output_dir: Path, options: RunOptions) -> None:
    """Tokenise the sources into `cache_dir`, measure the baselines, record both."""
    corpus = prepare_corpus(
        data, cache_dir=cache_dir, progress=Progress(options.console), stop=options.stop
    )
    corpus.tokenizer.save(output_dir / "tokenizer")
    baselines = measure_baselines(corpus.split_bytes("train"), corpus.split_bytes("valid"))
    write_json(
        output_dir / "summary.json",
        {
            "kind": "tokenizer",
            "vocab_size": corpus.tokenizer.vocab_size,
            "sources": [source.to_json() for source in corpus.summary],
            "fingerprint": corpus.fingerprint,
            "bytes_per_token": _bytes_per_token(corpus),
            "bpb": asdict(baselines),
        },
    )


def _bytes_per_token(corpus: Corpus) -> float:
    tokens = sum(store.num_tokens for store in corpus.valid)
    return len(corpus.split_bytes("valid")) / tokens
