"""Our side of the comparisons: `python -m paddle_ernie.bench.ours`."""
