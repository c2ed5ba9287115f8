"""The server over HTTP: application, routes, page, metrics, uvicorn."""
