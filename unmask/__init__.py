"""From raw text to a working encoder."""
