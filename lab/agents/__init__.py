"""Users and traces whose requests grow out of each other."""
