"""Services for every process: clocks, safe interrupts, child processes, compilation."""
