"""Quick starts of tools that people use, as their documentation gives them, on data that is made here."""
