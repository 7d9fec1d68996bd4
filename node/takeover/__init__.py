"""Finding the bytes of an object for a new epoch, and laying its file (PROTOCOLS section 5)."""
