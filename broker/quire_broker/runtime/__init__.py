"""Runs the cores: the event loop, threads for what blocks, and who waits for what."""
