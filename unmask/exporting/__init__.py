"""Models that leave: graphs for other engines, and the proof that what leaves equals what was trained."""
