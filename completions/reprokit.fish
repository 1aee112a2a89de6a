# Completion of reprokit in fish: options, commands and names of runs.
_REPROKIT_COMPLETE=fish_source reprokit | source
