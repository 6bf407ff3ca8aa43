"""Real SSH hosts on this machine."""
