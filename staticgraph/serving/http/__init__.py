"""The HTTP server: application, routes, page, metrics, and uvicorn's configuration."""
