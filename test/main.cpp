// The main() of every test that runs as one process.
#define DOCTEST_CONFIG_IMPLEMENT
#include "run_cases.hpp"

int main(int argc, char** argv) { return running::cases(argc, argv); }
