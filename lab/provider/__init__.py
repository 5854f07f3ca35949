"""A hosted provider: the law of its limits, in virtual time and on a socket."""
