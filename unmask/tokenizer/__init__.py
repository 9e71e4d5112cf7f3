"""Tokenizers: trained, loaded, extended; words and spans of text."""
