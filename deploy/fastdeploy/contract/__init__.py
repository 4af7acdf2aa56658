"""FastDeploy's HTTP contract as checks of a running server; `smoke.py` runs them.

Needs httpx and nothing of paddle_ernie, so that it runs beside FastDeploy as well.
"""
