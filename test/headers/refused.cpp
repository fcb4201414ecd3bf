#include <convoy/convoy.hpp>
