// Under this name in MIGraphX's own libraries.
#include "../options.hpp"
