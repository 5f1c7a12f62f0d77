"""The dispatcher's process."""
