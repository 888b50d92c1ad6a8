"""`hpcfair.hpcfair_dataset`, answered by Fairmile."""

from fairmile.compat.hpcfair_dataset import *  # noqa: F403
