"""Reads run directories within bounds: lines, columns, and whether all of it is what it was."""
