"""Entry of our process; answers the requests of the driver."""

from paddle_ernie.bench.ours.export import export_model
from paddle_ernie.bench.ours.generate import measure_feature, measure_generation
from paddle_ernie.bench.ours.ops import measure_operator
from paddle_ernie.bench.ours.train import measure_steps, same_model
from paddle_ernie.bench.rivals.protocol import serve
from paddle_ernie.utils.threads import configure_threads

if __name__ == "__main__":
    threads = configure_threads(None)
    import paddle

    from paddle_ernie.ops import library

    serve(
        {
            "op": measure_operator,
            "train": measure_steps,
            "same_model": same_model,
            "export": export_model,
            "generate": measure_generation,
            "feature": measure_feature,
        },
        {
            "software": f"paddle_ernie ({library.isa()}) on paddlepaddle {paddle.__version__}",
            "threads": threads,
        },
    )
