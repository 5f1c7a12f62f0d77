"""The journal: the one truth about every execution."""
