"""What a model does between matrix products, on CPUs: compiled loops that read their input once."""
