"""The ERNIE MoE: architecture, plans, generation, and what a model is on disk."""
