"""Models of the hub by their names, and the copies of their files on this machine."""
