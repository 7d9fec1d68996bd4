"""Temporal workflows, the control plane's decisions: see DESIGN.md. Nothing is here yet."""
