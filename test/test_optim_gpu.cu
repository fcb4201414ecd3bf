// NEEDS: cuda
// LABELS: cuda gpu
// Optimizers on a GPU.
#include "optim_device.hpp"
#include "optim_device_muon.hpp"
