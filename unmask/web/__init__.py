"""A local page where people see what masking, training, a model and a search do (`unmask studio`)."""
