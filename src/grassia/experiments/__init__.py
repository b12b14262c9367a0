"""The paper's experiments, to be run again: `grassia reproduce` on the command line.

`protocol` says what is run, `curves` runs one line of a figure, `table1` measures how costs scale, `figures`
draws, `report` puts into words, `reproduce` does all of it. The library never imports this package.
"""
