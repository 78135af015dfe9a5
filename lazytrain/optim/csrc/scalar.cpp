#include "simd_scalar.h"
#include "unit.h"

const Kernels kScalarKernels = kKernels;
