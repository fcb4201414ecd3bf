#pragma once
#include <convoy/core/a.hpp>
