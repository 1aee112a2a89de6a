"""What files of a run directory hold, as typed structs: declared once, used by whoever writes, reads and shows them."""
