"""A gate of several processes on one host: a supervisor that owns the addresses, and workers that serve them."""
