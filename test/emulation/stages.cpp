// Instantiates what stages.hpp declares.
#include "stages.hpp"

#include "cublaslt.hpp"
#include "cudnn.hpp"
