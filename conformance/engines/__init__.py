"""Adapters, each imported only when it is named: its engine may not be installed."""
