"""The encoder, its heads and folders."""
