"""The test suite, a folder for each kind of test; each folder says what is in it."""
