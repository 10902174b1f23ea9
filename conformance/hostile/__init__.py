"""Campaigns that try to break the command line: hostile inputs, and interrupts at any moment.

Every call is a real process in a folder of its own; `contract` says what each of them is held to.
They need Linux, where /proc shows the processes that a call has started.
"""
