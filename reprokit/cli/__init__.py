"""The command line: arguments in, one library call, result out."""
