#include "tests/graph/catch.h"
