"""The bench for kernels of ragged paged attention: anybody's, on a machine without a TPU.

`subject` says how a function is called, `batches` what it is given, `judge` whether its answers
are right. `interpret` runs it in the interpreter of the TPU, `campaign` in many processes;
`mutants` are bugs to be caught. `ahead` asks the compiler of each chip.
"""
