"""Units x weights x draw x replacement."""
