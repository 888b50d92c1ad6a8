"""HPCFAIR's calls, answered by Fairmile."""
