// Runs the test cases that the arguments select. A source's filter that selects none is an error: it would
// always pass.
#pragma once

#include <cstdio>

#include "skip.hpp"

namespace running {

/// Counts the cases that were selected.
struct Selected : doctest::IReporter {
  static inline unsigned cases = 0;
  explicit Selected(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override { cases = stats.numTestCasesPassingFilters; }
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("selected", 1, Selected);

/// Runs them and returns the exit code of the program.
inline int cases(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int result = context.run();
  if (context.shouldExit()) return result;  // a query such as --list-test-cases
  if (Selected::cases == 0) {
    std::fprintf(stderr, "%s: the arguments select no test case\n", argv[0]);
    return 1;
  }
  return skipping::result_of(result);
}

}  // namespace running
