"""Rollout and chat server: engine, HTTP server with FastDeploy's API, client."""
