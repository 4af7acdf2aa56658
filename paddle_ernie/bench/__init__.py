"""What `tools/bench.py` measures: our operators, steps and generation, beside a rival's."""
