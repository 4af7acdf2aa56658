"""Training: loop and step, optimizer, checkpoints, evaluation; pre-training and extraction."""
