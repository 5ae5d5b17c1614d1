// Products of rows with weights in panels on emulated matrix units, as where there are such units.
#include "emulated_tiles.h"
#include "../kernels/blocks.cpp"
