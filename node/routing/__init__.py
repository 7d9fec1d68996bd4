"""To which region and node a call goes, and what is asked of all of them (PROTOCOLS section 4)."""
