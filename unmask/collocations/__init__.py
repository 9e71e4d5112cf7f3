"""Collocations for PMI masking and how much each token tells of its neighbours, counted in bounded memory."""
