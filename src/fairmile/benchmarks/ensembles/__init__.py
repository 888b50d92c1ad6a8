"""Deep ensembles: runs that differ in their seed joined to one forecast, with its uncertainty calibrated and judged."""
