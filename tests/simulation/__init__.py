"""Tests in a simulated world."""
