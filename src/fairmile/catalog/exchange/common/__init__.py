"""What the modules of several formats share: each module here serves at least two of them."""
