"""The seeds' own experiments, runnable: users, gate and engine in separate processes."""
