"""The conformance kits, run on every store and broker."""
