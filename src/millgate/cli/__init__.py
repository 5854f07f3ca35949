"""The `millgate` command: parse, call, print."""
