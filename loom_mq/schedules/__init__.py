"""What a schedule names and what follows from it (F9). Pure: no clock, no I/O but the zone data."""
