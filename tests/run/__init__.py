"""The launcher, black box: the installed command in real processes."""
