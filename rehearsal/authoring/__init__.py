"""BEFORE a run: write the corpus and check it."""
