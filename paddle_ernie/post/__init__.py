"""Stages in a chain: the pipeline that runs them, and the report over what they recorded."""
