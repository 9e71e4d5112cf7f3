"""The encoder, its head, and the layouts it is saved in. Knows nothing of data or training."""
