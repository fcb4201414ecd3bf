// Hierarchies for the proofs of schedules: even and uneven nodes, two and three levels.
#pragma once

#include <convoy/comm/schedule/halving_doubling.hpp>
#include <convoy/comm/schedule/hierarchical.hpp>
#include <convoy/comm/schedule/ring.hpp>
#include <convoy/comm/schedule/tree.hpp>

namespace schedules {

using convoy::schedule::Every, convoy::schedule::Sizes, convoy::schedule::Hierarchical;
using convoy::schedule::HalvingDoubling, convoy::schedule::Ring, convoy::schedule::Tree;

using Pairs = Hierarchical<Ring, Ring, Every<2>>;
using Uneven = Hierarchical<HalvingDoubling, Tree, Sizes<3, 1, 2, 5>>;
using Nested = Hierarchical<Ring, Hierarchical<Ring, HalvingDoubling, Every<2>>, Every<3>>;
using Forest = Hierarchical<Tree, Tree, Sizes<3, 1, 2, 5>>;
using Rooted = Hierarchical<Tree, HalvingDoubling, Every<4>>;
using Deep =
    Hierarchical<Hierarchical<Tree, Ring, Sizes<2, 1>>, Hierarchical<Tree, Tree, Every<2>>, Every<5>>;

}  // namespace schedules
