"""Continuous batching on paged memory: requests in, tokens out."""
