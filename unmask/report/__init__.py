"""Pages for the eye, each one self-contained HTML file, and the model's card."""
