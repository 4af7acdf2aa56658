"""The other side of the comparisons: torch and transformers, in an environment of their own.

Run as a folder, `RIVAL_PYTHON paddle_ernie/bench/rivals`; nothing here imports paddle_ernie.
"""
