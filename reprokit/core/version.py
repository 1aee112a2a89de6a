"""Names the version, in this one place."""

VERSION = "0.1.0"
