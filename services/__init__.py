"""The processes of a fleet: wiring only."""
