"""Adapters, each imported only when it is named: what an engine needs may not be installed."""
