"""What the outside may see; imports nothing heavy by itself."""
