"""From a masked language model and raw text to an embedding model."""
