"""Small running statistics."""
