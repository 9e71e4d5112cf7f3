"""Files to documents: reading text in bounded memory, splitting it, holding a share out, annotating it."""
