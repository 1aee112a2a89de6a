"""The command line: arguments in, one library call, result out."""

import gc

# What is imported at the start stays: looking for garbage in it again and again would delay every training by 4 ms.
gc.set_threshold(100_000)
