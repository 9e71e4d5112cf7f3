"""The command line. Imported by nobody; prints tables and progress to stderr, JSON to stdout."""
