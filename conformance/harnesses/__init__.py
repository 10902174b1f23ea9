"""Harnesses for engines that cannot be stepped: lists of requests, and prefix caching."""
