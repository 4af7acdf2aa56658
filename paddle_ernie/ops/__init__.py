"""Operators: one per file, each a dispatch function with a plain reference in `reference.py`.

Tensors at operator boundaries are float32 on CPU; the gradient checks also run them in float64.
"""
