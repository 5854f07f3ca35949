"""A real engine under load, with and without the gate, and its record for `millgate sim validate --measured`."""
