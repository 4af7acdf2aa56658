"""Errors, atomic files, logging, threads: what every package may use. Imports nothing of ours."""
