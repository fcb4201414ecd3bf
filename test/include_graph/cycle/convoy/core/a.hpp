#pragma once
#include <convoy/core/b.hpp>
