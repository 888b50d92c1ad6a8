"""Cards drafted from what is there: files, their formats and columns, and the documents that lie beside them."""
