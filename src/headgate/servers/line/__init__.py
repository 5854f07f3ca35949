"""The newline-JSON door: filled by the line protocol."""
