"""The `headgate` command: parse, call, print."""
