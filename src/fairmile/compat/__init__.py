"""The Python calls of predecessors, under their own names, over Fairmile's catalog."""
