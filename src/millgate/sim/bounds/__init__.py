"""How much could have been served at all: bounds above, a bracket below, and the line of the size-blind."""
