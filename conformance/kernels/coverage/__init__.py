"""Which branches and loops of a kernel a batch reaches, and the batches that reach the most."""
