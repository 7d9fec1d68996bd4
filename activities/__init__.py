"""What workflows do to the world, in steps that are safe to repeat: see DESIGN.md. Nothing is here yet."""
