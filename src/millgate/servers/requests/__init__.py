"""What a request says, how it is refused, and what an answer to it is worth: the same at every door."""
