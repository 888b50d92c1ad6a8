"""One example of each kind of plug-in for Fairmile."""
