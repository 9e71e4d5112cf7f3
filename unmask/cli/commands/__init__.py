"""The commands and their options, a file for a stretch of the way. Heavy modules are imported within a command."""
