"""Using a model: filling masks."""
