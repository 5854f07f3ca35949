"""What the core remembers of attempts, permits, engines, pools and lanes: each file is the only writer of its classes.

Each file knows only those before it in this order: `permit`, `hangups` and `provider`, `engine`, `capacity_forecast`,
`pool`, `lane`, `attempt`. So an engine knows permits and no requests, and no class stands for another file.
"""
