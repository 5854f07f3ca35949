"""What a request's head and body say, and how it is refused: the same for every door that takes HTTP requests."""
