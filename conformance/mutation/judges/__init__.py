"""The methods that judge mutants of our engine, one in each module.

Each has a function `judge`: it runs the engine with whatever mutant is selected, and returns what
kills it, a clause or an exception, or None if it survives. They stand apart because a fate holds as
long as what its method imports.
"""
