#include "summary.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include <nlohmann/json.hpp>

#include "json_text.hpp"
#include <convoy/core/error.hpp>
#include <convoy/core/file.hpp>

namespace examples {

namespace {

struct StepTimes {
  double min = 0, median = 0, max = 0;
};

StepTimes step_ms(const convoy::train::FitReport& fit) {
  std::vector<double> seconds = fit.step_seconds;
  if (fit.warm_up_left_out) seconds.erase(seconds.begin(), seconds.begin() + 20);
  if (seconds.empty()) return {};
  const auto [low, high] = std::minmax_element(seconds.begin(), seconds.end());
  return {*low * 1e3, convoy::train::median(seconds) * 1e3, *high * 1e3};
}

std::optional<double> sent_per_step(const Summary& s) {
  if (!s.sent_bytes || s.fit.steps == 0) return std::nullopt;
  return static_cast<double>(*s.sent_bytes) / static_cast<double>(s.fit.steps);
}

// None if the steps' parts were not measured, or if the exchange alone was not.
std::optional<double> hidden(const Summary& s) {
  if (s.exchange_ms <= 0 || !s.fit.backward_ms || !s.fit.exposed_comm_ms) return std::nullopt;
  return convoy::train::hidden(s.exchange_ms, *s.fit.backward_ms, *s.fit.exposed_comm_ms);
}

nlohmann::ordered_json nullable(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nullptr;
}

// Whether the losses are those of a training: a replay computes nothing.
bool has_losses(const Summary& s) { return s.fit.steps > 0 && s.device != "replay"; }

const char* name_of(convoy::train::StopReason reason) {
  switch (reason) {
    case convoy::train::StopReason::finished:
      return "finished";
    case convoy::train::StopReason::steps_reached:
      return "steps reached";
    case convoy::train::StopReason::early_stop:
      return "early stop";
    case convoy::train::StopReason::callback:
      return "terminated";  // the only reason of a trainer's callback
  }
  return "?";
}

}  // namespace

void print_table(const Summary& s) {
  const StepTimes ms = step_ms(s.fit);
  auto row = [](const char* name, const std::string& value) {
    std::printf("| %-22s | %36s |\n", name, value.c_str());
  };
  auto number = [](const char* format, auto... values) {
    char text[96];
    std::snprintf(text, sizeof text, format, values...);
    return std::string(text);
  };
  std::printf("\n| %-22s | %36s |\n|%s:|%s:|\n", "result", "", "-----------------------",
              "-------------------------------------");
  row("model", s.model + number(" (%lld parameters)", static_cast<long long>(s.parameters)));
  row("data", s.data);
  row("exchange", s.comm + (s.codec == "none" ? "" : " of " + s.codec) + " over " + s.transport);
  if (s.arenas != "plain") row("arenas", s.arenas);
  const std::optional<double> sent = sent_per_step(s);
  row("sent by rank 0", sent ? number("%.2f MB a step", *sent / 1e6) +
                                   (s.comm.starts_with("hierarchical") ? " between nodes" : "")
                             : "not counted");
  row("ranks x batch", number("%d x %d", s.world, s.batch_per_rank));
  if (!s.shares.empty()) {
    std::string shares;
    for (const double share : s.shares) shares += number("%s%.3f", shares.empty() ? "" : " ", share);
    row("shares", shares);
  }
  row("device",
      convoy::concat(s.device, ' ', s.precision, ", ", convoy::counted(s.threads, "thread"), " a rank"));
  if (s.products != s.precision) row("products", "in " + s.products);
  row("steps", number("%lld (%s)", static_cast<long long>(s.fit.steps), name_of(s.fit.stopped)));
  row("throughput",
      number("%.1f samples/s%s", s.fit.samples_per_sec, s.fit.warm_up_left_out ? " after 20 steps" : ""));
  if (s.per_row > 0) row("", number("%.0f %s/s", s.fit.samples_per_sec * s.per_row, s.unit.c_str()));
  row("step min/median/max", number("%.1f / %.1f / %.1f ms", ms.min, ms.median, ms.max));
  row("exposed communication",
      s.fit.exposed_comm_ms ? number("%.2f ms a step", *s.fit.exposed_comm_ms) : "measured with --timeline");
  if (s.exchange_ms > 0) row("exchange alone", number("%.2f ms a step", s.exchange_ms));
  if (const std::optional<double> share = hidden(s)) {
    row("backward", number("%.2f ms a step", *s.fit.backward_ms));
    row("hidden by backward", number("%.1f%% of what can be", 100 * *share));
  }
  if (has_losses(s)) row("training loss", number("%.5f", s.fit.loss));
  if (!s.fit.epochs.empty() && s.fit.epochs.back().test.rows > 0) {
    const convoy::train::Evaluation& test = s.fit.epochs.back().test;
    if (s.per_row > 0 || !test.accuracy)  // the measure of language models
      row("test loss", number("%.5f", test.loss));
    if (test.accuracy) row("test accuracy", number("%.2f%%", 100 * *test.accuracy));
  }
  std::fflush(stdout);
}

void write_json(const Summary& s, const std::string& path) {
  const StepTimes ms = step_ms(s.fit);
  nlohmann::ordered_json object = {
      {"model", s.model},
      {"comm", s.comm},
      {"codec", s.codec},
      {"sent_bytes_per_step", nullable(sent_per_step(s))},
      {"transport", s.transport},
      {"arenas", s.arenas},
      {"device", s.device},
      {"precision", s.precision},
      {"products", s.products},
      {"data", s.data},
      {"world", s.world},
      {"batch_per_rank", s.batch_per_rank},
      {"shares", s.shares},
      {"threads", s.threads},
      {"parameters", s.parameters},
      {"steps", s.fit.steps},
      {"stopped", name_of(s.fit.stopped)},
      {"samples_per_sec", s.fit.samples_per_sec},
      {"first_20_steps_left_out", s.fit.warm_up_left_out},
      {"step_ms", {{"min", ms.min}, {"median", ms.median}, {"max", ms.max}}},
      {"backward_ms", nullable(s.fit.backward_ms)},
      {"exposed_comm_ms", nullable(s.fit.exposed_comm_ms)},
      {"exchange_alone_ms", nullptr},
      {"hidden", nullptr},
      {"loss", nullptr},
      {"test_accuracy", nullptr},
      {"epochs", nlohmann::ordered_json::array()},
      {"options", nlohmann::ordered_json::object()},
  };
  if (has_losses(s)) object["loss"] = s.fit.loss;
  if (s.exchange_ms > 0) {
    object["exchange_alone_ms"] = s.exchange_ms;
    object["hidden"] = nullable(hidden(s));
  }
  for (const auto& [name, text] : s.options) object["options"][name] = text;
  if (s.per_row > 0) object[s.unit + "_per_sec"] = s.fit.samples_per_sec * s.per_row;
  for (const auto& epoch : s.fit.epochs) {
    nlohmann::ordered_json e = {{"epoch", epoch.epoch},
                                {"seconds", epoch.seconds},
                                {"loss", has_losses(s) ? nlohmann::ordered_json(epoch.loss) : nullptr},
                                {"accuracy", nullable(epoch.accuracy)}};
    if (epoch.test.rows > 0) {
      e["test_seconds"] = epoch.test.seconds;
      e["test_loss"] = epoch.test.loss;
      e["test_accuracy"] = object["test_accuracy"] = nullable(epoch.test.accuracy);
    }
    object["epochs"].push_back(e);
  }
  convoy::write_file(path, json_text(object, 2));
}

}  // namespace examples
