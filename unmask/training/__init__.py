"""The training step, what surrounds it, and the loop as a generator of reports."""
