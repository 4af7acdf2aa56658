"""Entry of the rival's process; see the package's docstring."""

import os

import torch
import transformers
from protocol import serve
from torch_generate import measure_generation
from torch_ops import measure_operator
from torch_train import measure_steps, same_model

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
transformers.logging.set_verbosity_error()
serve(
    {
        "op": measure_operator,
        "train": measure_steps,
        "same_model": same_model,
        "generate": measure_generation,
    },
    {
        "software": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "threads": torch.get_num_threads(),
    },
)
