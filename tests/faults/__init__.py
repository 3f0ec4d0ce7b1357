"""Load on a cluster of real processes, what clients were told, and checks of it."""
