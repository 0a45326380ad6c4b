"""Private names of Keras: which, why, and what happens where one is gone.

Those of a backend are in a package of the same name there. No other module of dtrain uses any, as a
test verifies. Each is looked up and checked where it is needed and not before; where this version
has something else, the run ends with a sentence that says what to do instead.

``model``     what is inside of models, what variables and masks are stored in, and lookups
``training``  losses, normalisation, optimizers, callbacks
``contexts``  what Keras keeps for a process: training, precision, counts of names
"""

from dtrain.data import generators
from dtrain.task.keras_internals.contexts import *
from dtrain.task.keras_internals.model import *
from dtrain.task.keras_internals.training import *

# Of a process without Keras there is nothing to exchange.
generators.exchange_keras = exchange_seed_generator
