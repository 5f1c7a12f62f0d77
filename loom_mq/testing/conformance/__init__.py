"""Conformance kits for journals and brokers."""
