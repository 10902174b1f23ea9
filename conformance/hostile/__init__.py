"""Robustness campaigns against the command line: hostile inputs, and interrupts at any moment.

Every call is a real process in a folder of its own; `contract` defines what each must satisfy. The
campaigns need Linux, where /proc shows the processes that a call has started.
"""
