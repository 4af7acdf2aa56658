"""The server's processes: start, drain, and a front over several engines."""
