"""What exists: cards, the catalogs that hold them, search, match, FAIR score and foreign formats."""
