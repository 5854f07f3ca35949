"""The doors, strangers to each other."""
