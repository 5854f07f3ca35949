"""Engines in virtual time: real batching, plain servers for queueing truths, and what goes wrong with them."""
