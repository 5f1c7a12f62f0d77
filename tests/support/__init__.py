"""Helpers that only tests use."""
