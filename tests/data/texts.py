"""Small texts in English, Chinese and Python that the data tests are made of."""

import numpy as np

VERSES = [
    "The quick brown fox jumps over the lazy dog.\nThen it sleeps for {n} hours.\n",
    "def add(a, b):\n    return a + b  # {n}\n\n\nprint(add({n}, 1))\n",
    "床前明月光,疑是地上霜。举头望明月,低头思故乡。第{n}次。\n",
    "import os\n\nfor name in os.listdir('/tmp/{n}'):\n    print(name, len(name))\n",
]


def make_texts(count: int, seed: int = 0) -> list[str]:
    """Distinct short documents in English, Chinese and Python, one to six verses each."""
    rng = np.random.default_rng(seed)
    return [
        f"# {seed}:{n}\n"
        + "".join(
            VERSES[i].format(n=rng.integers(1000)) for i in rng.integers(0, 4, rng.integers(1, 7))
        )
        for n in range(count)
    ]
