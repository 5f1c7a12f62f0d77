"""The fleet simulator: the services' own code in virtual time, with faults that a seed decides."""
