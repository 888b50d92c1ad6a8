"""MiniWeather: a small weather model, a network in place of its microphysics, and the two compared."""
