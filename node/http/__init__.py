"""The HTTP surface in parts: paths, request headers, bodies, routes and the server."""
