"""The replica side: copies kept for owners elsewhere, their one journal, fences and folds (PROTOCOLS section 7)."""
