"""The timer's process."""
