"""Uno: how strongly a drug acts on a tumour cell line, from gene expression and molecular descriptors."""
