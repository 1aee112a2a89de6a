"""What the pages that reprokit writes share: their style, their parts, and drawings."""
