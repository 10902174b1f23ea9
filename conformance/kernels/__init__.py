"""The bench for ragged paged attention kernels: ours or anybody's, on a machine without a TPU.

`kernel_under_test` calls a function, `batches` builds its inputs, `answers` judges its answers
against the oracle. `interpret` runs it in the interpreter of the TPU, `trials` and `processes` in
many processes; `seeded_bugs` are bugs to be caught. `compile` has the compiler of each chip.
"""
