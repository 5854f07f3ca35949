"""The simulator: the same governor in virtual time."""
