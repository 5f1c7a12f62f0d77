"""Tools for tests: private servers, simulation, conformance kits."""
