"""Listening sockets of every door: addresses, TLS, and how many descriptors there may be."""
