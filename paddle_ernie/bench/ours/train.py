"""Our training steps, and the weights with which a rival shows that it runs the same model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from paddle_ernie.bench.rivals.protocol import peak_bytes, summary
from paddle_ernie.config.model import ModelConfig
from paddle_ernie.models.cost import parameter_counts
from paddle_ernie.models.hf_names import to_hf
from paddle_ernie.models.model_dir import model_arrays
from paddle_ernie.train.bench import Shapes, make_stepper, random_batch, step_seconds
from paddle_ernie.train.step import Stepper


def measure_steps(request: dict[str, Any]) -> dict[str, Any]:
    """Seconds of a step in one format."""
    shapes = _shapes(request)
    stepper, batch = _stepper(shapes, request["mode"]["weights"]), random_batch(shapes)
    seconds = step_seconds(stepper, batch, shapes.steps)
    loss = stepper.train_step(batch, 1e-4).main.mean
    return {**summary(seconds), "peak_bytes": peak_bytes(), "loss": loss}


def same_model(request: dict[str, Any]) -> dict[str, Any]:
    """Parameters, loss and gradient norm in fp32; the weights go to a folder in public names."""
    from safetensors.numpy import save_file

    shapes = replace(_shapes(request), steps=1)
    stepper = _stepper(shapes, "fp32")
    folder = Path(request["weights"])
    arrays = to_hf(model_arrays(stepper.model), shapes.model)
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})
    result = stepper.train_step(random_batch(shapes), 1e-4)
    return {
        "parameters": parameter_counts(shapes.model).total,
        "loss": result.main.mean,
        "grad_norm": result.grad_norm,
    }


def _shapes(request: dict[str, Any]) -> Shapes:
    return Shapes(
        model=ModelConfig(**request["model"]),
        rows=request["rows"],
        seq_len=request["seq_len"],
        steps=request.get("steps", 1),
        documents_per_row=1,  # as the rival sees a row
    )


def _stepper(shapes: Shapes, format_name: str) -> Stepper:
    return make_stepper(shapes.model, shapes, format_name=format_name)
