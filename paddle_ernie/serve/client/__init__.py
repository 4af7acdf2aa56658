"""Client of the HTTP API. No Paddle."""
