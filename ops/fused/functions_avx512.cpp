// Compiled with the flags of one CPU capability; see ops/CMakeLists.txt.
#include "ops/fused/functions_impl.h"
