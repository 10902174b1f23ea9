"""What every process of the kit uses: clocks, safe interrupts, child processes, compiled code."""
