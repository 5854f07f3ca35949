"""Clients: how requests come, how long their users wait, and what they do when they are refused."""
