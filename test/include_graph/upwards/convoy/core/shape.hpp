#pragma once
#include <convoy/graph/node.hpp>
