// Opening: the parts of Replica that run before the first step or between epochs.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <convoy/core/error.hpp>
#include <convoy/core/fields.hpp>
#include <convoy/core/finite.hpp>
#include <convoy/exec/initialize.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/train/arenas.hpp>
#include <convoy/train/gather.hpp>
#include <convoy/train/matrices.hpp>
#include <convoy/train/processors.hpp>
#include <convoy/train/replica.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/speed.hpp>

namespace convoy::train {

/// A readable description of a model: its numbers of parameters and operations, and its inputs.
inline std::string sizes_of(const Plan& plan) {
  int operations = 0;
  std::string inputs;
  for (const graph::Node& node : plan.nodes) {
    operations += !node.given;
    if (graph::is<graph::Input>(node)) inputs += concat(", ", node.name, " ", node.shape);
  }
  return concat(plan.parameters(), " parameters, ", operations, " operations", inputs);
}

// Functions that run once are marked cold and so compiled for size.

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::open() {
  check_config();
  buckets_ = make_buckets(plan_, config_.buckets);
  scales_.resize(plan_.losses.size());
  choose_threads();
  take_share();
  build_exec();
  if constexpr (requires { state_space_.set_threads(1); }) state_space_.set_threads(exec_->threads());
  exec::initialize(*exec_, plan_, config_.seed);
  open_exchange();
  own(comm_.updates(buckets_));
  share_initial_values();
  if (config_.accumulate > 1) sum_ = memory::Array<float, Space>(space_, exec_->gradients().size());
  start_timeline();
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::check_config() const {
  if (config_.batch < 1) fail<ConfigError>("trainer: the batch must be at least 1, not ", config_.batch);
  if (config_.accumulate < 1)
    fail<ConfigError>("trainer: accumulate must be at least 1, not ", config_.accumulate);
  config_.schedule.check();
  if (optimizer_.decides() && !comm_.decides())
    fail<ConfigError>(
        "trainer: the exchange ", comm_.policy(),
        " updates before any rank has the whole gradient, so the trainer cannot clip it, skip steps, or "
        "use norms of the gradient or of tensors (optimizer ",
        optimizer_.optimizer().facts().name, ")");
  if (comm_.has_servers() && optimizer_.decays_by_norms())
    fail<ConfigError>(
        "trainer: the optimizer ", optimizer_.optimizer().facts().name,
        " decays a tensor at a rate that depends on norms, which only the servers of the exchange ",
        comm_.policy(),
        " know, but the workers decay the tensor's dead taps; use no weight decay, or another exchange");
  if (config_.sync_batch_norm && !Exec::sums_across_ranks)
    fail<ConfigError>("trainer: batch norms of exec::", Exec::name,
                      " use each rank's own rows alone; leave out sync_batch_norm, or choose another Exec");
  if (config_.sync_batch_norm && !comm_.lockstep())
    fail<ConfigError>(
        "trainer: the workers of the exchange ", comm_.policy(),
        " do not wait for each other, so their batch norms cannot use the rows of all ranks; leave out "
        "sync_batch_norm, or choose another exchange");
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::choose_threads() {
  // All ranks must call ranks_here, or none. The type's default is the same on all ranks, but
  // config_.exec.threads may differ.
  if (typename Exec::Options{}.threads != 0) return;
  const int ranks = ranks_here(comm_);
  if (config_.exec.threads == 0) config_.exec.threads = threads_of_one(ranks);
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::open_exchange() {
  std::vector<std::int64_t> panels(plan_.parameter_list.size());
  for (std::size_t p = 0; p < panels.size(); ++p) panels[p] = exec_->panel(static_cast<int>(p));
  matrices_ = matrices(plan_, panels);
  whole_ = optimizer_.matrices();
  if (optimizer_.takes_matrices()) {
    std::vector<std::int64_t> in_order;
    for (const int p : plan_.exchange_order) in_order.push_back(panels[static_cast<std::size_t>(p)]);
    optimizer_.set_panels(in_order);
  }
  comm_.open(fingerprint(), {.gradients = exec_->gradients(),
                             .parameters = exec_->parameters(),
                             .buckets = buckets_,
                             .matrices = matrices_,
                             .whole = whole_,
                             .space = &space_});
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::share_initial_values() {
  on_host(space_, exec_->parameters(), [&](std::span<float> values) { comm_.broadcast(values, 0); });
  on_host(space_, exec_->statistics(), [&](std::span<float> values) { comm_.broadcast(values, 0); });
  exec_->touched({0, plan_.sizes.parameters});
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::start_timeline() {
  if (config_.timeline != nullptr) {
    comm_.observe({[](void* timeline, const comm::ExchangeEvent& event) {
                     static_cast<Timeline*>(timeline)->record("bucket", event.bucket, Track::exchange,
                                                              event.begin, event.end);
                   },
                   config_.timeline});
  }
  comm_.barrier();  // of all ranks, of which some may have no timeline
  if (config_.timeline != nullptr) config_.timeline->start();
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::own(const std::vector<Range>& ranges) {
  optimizer_.own(ranges);
  std::int64_t all = 0;
  for (const Range& bucket : buckets_) all += bucket.size();
  own_elements_ = 0;
  for (const Range& range : ranges) own_elements_ += range.size();
  others_update_ = comm_.has_servers() || own_elements_ < all;
  dead_ = {plan_.sizes.parameters, plan_.sizes.parameters};
  for (const graph::Slot& slot : plan_.slots)
    if (!slot.dead.empty()) dead_.begin = std::min(dead_.begin, slot.dead.begin);
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::refuse_updates() const {
  fail<ConfigError>("trainer: the exchange ", comm_.policy(), " updated ", updated_, " elements in step ",
                    counters_.steps, " on rank ", rank(), ", but its updates() names ", own_elements_,
                    ": finish must update each of these once");
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::take_share() {
  if (comm_.role() != comm::Role::worker) return;
  auto measure = [&](double share, double& speed) {
    const int rows = std::max(1, static_cast<int>(std::lround(share * config_.batch * workers())));
    speed = measured_speed<Exec>(plan_, kernels_, rows, config_.exec, comm_);
  };
  shares_ = comm_.shares(measure);
  if (!shares_.empty())
    most_rows_ =
        static_cast<int>(std::max<std::int64_t>(1, shard().most(std::int64_t{config_.batch} * workers())));
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::build_exec() {
  exec_.emplace(plan_, most_rows_, config_.exec, space_, kernels_);
  if constexpr (requires(typename Exec::Options o) { o.canonical; }) {
    if (all_equal(comm_, {exec_->layout_fingerprint()}) && stands_in_matrices()) return;
    auto options = config_.exec;
    options.canonical = true;
    exec_.emplace(plan_, most_rows_, options, space_, kernels_);
  }
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] bool Replica<Rule, Comm, Exec>::stands_in_matrices() const {
  if (!optimizer_.takes_matrices()) return true;
  const std::vector<bool> matrices = are_matrices(plan_);
  for (std::size_t p = 0; p < matrices.size(); ++p)
    if (matrices[p] && exec_->panel(static_cast<int>(p)) == 0) return false;
  return true;
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] comm::Fingerprint Replica<Rule, Comm, Exec>::fingerprint() const {
  comm::Fingerprint f;
  f.add("model", plan_.fingerprint, sizes_of(plan_));
  f.add("dead taps", plan_.dead_parameters());
  f.add("world", comm_.size());
  f.add("precision", exec_->precision());
  f.add("layout", exec_->layout_fingerprint());
  visit_options([&](std::string_view name, const std::string& text) { f.add(name, std::string_view(text)); });
  return f;
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::visit_options(OptionVisit visit) const {
  optimizer_.optimizer().for_each_text("optimizer",
                                       [&](std::string_view name, const std::string& text, bool agreed) {
                                         if (agreed) visit(name, text);
                                       });
  fields::for_each_text({}, config_, [&](std::string_view name, const std::string& text, bool agreed) {
    if (agreed && !name.starts_with("optimizer")) visit(name, text);
  });
}

template <class Rule, class Comm, class Exec>
void Replica<Rule, Comm, Exec>::average_statistics() {
  if (workers() > 1 && !exec_->statistics().empty())
    on_host(space_, exec_->statistics(),
            [&](std::span<float> values) { comm_.all_reduce(values, comm::mean); });
}

template <class Rule, class Comm, class Exec>
[[gnu::cold]] void Replica<Rule, Comm, Exec>::set_lr_factor(double factor) {
  if (comm_.has_servers())
    fail<ConfigError>(
        "trainer: a factor on the learning rate does not reach the servers, which make the updates by "
        "Config::schedule");
  if (!all_equal(comm_, {std::bit_cast<std::uint64_t>(factor)}))
    fail<ConfigError>("trainer: the ranks' factors on the learning rate differ; rank ", rank(), " has ",
                      factor);
  // After the comparison, in which a rank that has thrown would be missing.
  if (!(factor >= 0 && is_finite(factor)))
    fail<ConfigError>("trainer: the factor on the learning rate must be finite and at least 0, not ", factor);
  counters_.lr_factor = factor;
}

}  // namespace convoy::train
