"""Earthquake: forecast the energy that earthquakes release in each pixel of Southern California."""
