"""The HTTP API: FastDeploy's bodies, and the handlers around an engine."""
