"""`hpcfair.hpcfair_model`, answered by Fairmile."""

from fairmile.compat.hpcfair_model import *  # noqa: F403
