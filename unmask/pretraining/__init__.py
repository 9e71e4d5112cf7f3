"""A whole run: from files or prepared shards to a model folder, its metrics and its report."""
