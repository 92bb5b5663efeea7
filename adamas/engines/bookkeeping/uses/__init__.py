"""Stand-ins for calls in which a weight meets data, a file for each family of functions.

A stand-in takes the recorder, the function and its arguments. It returns the value of the call, and leaves a
record of the weight in the backward. `swapping` holds the table that leads from functions to stand-ins.

linear          linear maps and matrix products
convolution     convolutions over one to three axes
embedding       look-ups of rows
normalisation   layer, group, instance, RMS and frozen batch normalisation
recurrent       LSTM, GRU, plain cells, and packed sequences
copies          a copy of the weight for each example: additions, products, learned masks
general         any other function
common          helpers that they share
"""
