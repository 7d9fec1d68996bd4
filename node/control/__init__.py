"""What workflows ask of a node: drains, moves, sweeps, incidents, scrubs (PROTOCOLS sections 9 and 10)."""
