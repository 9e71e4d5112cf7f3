"""Indexes of documents, and how well models search them."""
