"""Limiters compared in the simulator: a closed loop around one engine, and baselines that are not product code."""
