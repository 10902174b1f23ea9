"""Services for every process of the kit:

clocks, safe interrupts, child processes, compiled code.
"""
