// What every host file includes, compiled once per build by GCC (tools/build_library.py): the torch headers take longer
// to read than most kernels to compile. Files still include what they use, and compile without this.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "tensor.h"
