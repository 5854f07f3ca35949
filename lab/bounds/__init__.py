"""What could have been done at most, for the worlds that only experiments know."""
