"""Hints between processes; losing one costs time only."""
