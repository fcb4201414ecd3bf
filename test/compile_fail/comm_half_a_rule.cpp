// EXPECT: an object that decides has arrived\(part\), partial\(\) and decides\(\) beside decide\(\)
#include <convoy/comm/policy/none.hpp>

using namespace convoy;

struct Rule {
  void decide() {}
  void update(Range, float) {}
};

int main() {
  comm::None comm;
  Rule rule;
  comm.finish(rule);
}
