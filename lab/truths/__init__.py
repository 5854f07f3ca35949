"""Closed forms of queueing theory, and the governor held against them."""
