#pragma once
#include <convoy/comm/ring.hpp>
