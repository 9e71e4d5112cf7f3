"""Pages, cards and plots."""
