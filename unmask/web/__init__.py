"""`unmask studio`: a local page that shows masking, training, models and searches."""
