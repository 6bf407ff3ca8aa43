"""One file per module; no host, no network."""
