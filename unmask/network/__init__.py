"""The encoder, its heads, and the loops that it is made of on CPUs. Knows nothing of data or training."""
