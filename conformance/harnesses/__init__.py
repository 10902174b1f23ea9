"""Engines that cannot be stepped: requests served together, and prefix caching."""
