// Under this name in MIGraphX's own libraries.
#include "argument.hpp"
