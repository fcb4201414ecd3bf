#pragma once
#include <convoy/core/gone.hpp>
