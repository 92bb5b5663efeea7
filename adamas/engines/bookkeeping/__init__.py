"""The fast engine: one forward, one backward, and no per-example gradients of a whole model.

It makes the losses of a batch, keeps a record of each use of a weight, and takes norms and sums from the
records. In every step it proves that examples do not mix; `docs/proof.md` is the proof. The files in reading
order:

engine          answers `norms` and `weighted_sum`; start here

Following a forward, call by call:

recording       the mode of torch that sees every call, and decides what happens to it
tracking        which tensors are weights, which are data, and the mark that each tensor carries
proof           finds the examples in the result of a call, or refuses it
separation/     the table of functions that keep examples apart, with a rule for each family
places          where the examples are in a tensor
counts          the number of examples, as an object that is a size and nothing else
questions       sets of functions that ask about a tensor, by what their answers reveal
arguments       looks into the arguments of a call
bodies          runs Python functions of torch through their own bodies

Closing the gaps that a mode of torch leaves:

graph           checks that every step of the backward is known
customs         follows custom autograd functions
unseen          finds computation that the mode cannot see: TorchScript, extensions, threads

Swapping calls in which a weight meets data:

swapping        leads from a function to its stand-in
uses/           the stand-ins, a file for each family of functions
functions       autograd functions that keep inputs and output gradients, and skip weight gradients
recurrent       LSTM, GRU and plain recurrent layers, written as linear maps

Records, a class for each form of a weight's gradients:

records         the interface, and gradients in hand
outer           linear maps
convolution     convolutions
frames          convolutions over several images of each example
lookup          embeddings
general         any other function

Norms:

norms           whitened norms from the records of a weight
measured        norms that are taken in the backward, while the gradient is in the cache
gram            norms from Gram matrices
certificate     bounds on rounding errors, and which examples to compute again in float64
derived         weights that a model computes from its parameters
row_map         the closed form for weights with normalised rows
"""

from adamas.engines.bookkeeping.engine import Bookkeeping

__all__ = ["Bookkeeping"]
