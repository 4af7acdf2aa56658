"""What every HTTP request passes: keys, limits, deadlines, log, metrics."""
