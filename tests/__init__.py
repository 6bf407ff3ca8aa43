"""The test suite: unit/ one file per module, contract/ one suite per seam, hosts/ real SSH hosts, cli/ what a person types and sees."""
