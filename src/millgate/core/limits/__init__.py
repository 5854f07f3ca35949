"""How many at once? The number, and the gate that counts against it."""
