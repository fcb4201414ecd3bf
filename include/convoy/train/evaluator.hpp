// Evaluator: loss, accuracy and metrics of a model over a data set, and its predictions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include <convoy/comm/comm.hpp>
#include <convoy/core/clock.hpp>
#include <convoy/core/error.hpp>
#include <convoy/data/dataset_ref.hpp>
#include <convoy/data/loader.hpp>
#include <convoy/data/shard.hpp>
#include <convoy/exec/counts.hpp>
#include <convoy/exec/exec.hpp>
#include <convoy/graph/plan.hpp>
#include <convoy/memory/space.hpp>
#include <convoy/train/binding.hpp>
#include <convoy/train/feed.hpp>
#include <convoy/train/fit.hpp>
#include <convoy/train/report.hpp>
#include <convoy/train/results.hpp>

namespace convoy::train {

/// Evaluates one replica. All ranks evaluate together; each predicts by itself.
template <class Replica>
class Evaluator {
 public:
  explicit Evaluator(Replica& replica) : replica_(replica), plan_(replica.plan()) {}
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Over all rows of the set, divided among the workers even if training data are unsharded.
  Evaluation evaluate(const data::DatasetRef& set);
  /// The same with a feed that is reused between evaluations.
  Evaluation evaluate(Feed& feed, const data::BatchPlan& batches);
  /// The feed for the evaluations of a fit; null if each evaluation reads the set on the host.
  std::unique_ptr<Feed> feed_for(const FitOptions& options);
  data::BatchPlan batches_of(const data::DatasetRef& set) const {
    return {set.size(), replica_.config().batch, replica_.shard(), true};
  }

  Prediction predict(const data::DatasetRef& set, int output);

 private:
  Replica& replica_;
  const Plan& plan_;
};

template <class Replica>
Evaluation Evaluator<Replica>::evaluate(const data::DatasetRef& set) {
  if (replica_.comm().role() == comm::Role::server) return {};
  LoaderFeed feed(plan_, set,
                  {.batch = replica_.config().batch,
                   .shard = replica_.shard(),
                   .shuffle = false,
                   .held = Replica::latency + 1,
                   .allow_short = true});
  const memory::AllDone done(replica_.space());
  return evaluate(feed, batches_of(set));
}

template <class Replica>
Evaluation Evaluator<Replica>::evaluate(Feed& feed, const data::BatchPlan& batches) {
  const Stopwatch watch;
  replica_.keep_results();
  replica_.average_statistics();
  // Sums of the losses and metrics, the losses' counts, then correct labels, labels and rows.
  const std::size_t losses = plan_.losses.size(), metrics = plan_.metrics.size();
  std::vector<double> sums(2 * losses + metrics + 3);
  const auto counts = std::span<double>(sums).subspan(losses + metrics, losses);
  double* const rest = sums.data() + 2 * losses + metrics;
  Results results;  // of the passes of this evaluation
  const auto take = [&](int most) {
    while (results.waiting() > most) {
      const exec::Result result = results.take(replica_.exec());
      for (std::size_t l = 0; l < losses; ++l) sums[l] += result.losses[l];
      for (std::size_t m = 0; m < metrics; ++m) sums[losses + m] += result.metrics[m];
      rest[0] += static_cast<double>(result.correct);
      rest[1] += static_cast<double>(result.labels);
    }
  };
  try {
    feed.start(0, 0);
    for (std::int64_t step = 0; step < batches.steps(); ++step) {
      const exec::BatchView batch = feed.next();
      if (batch.rows == 0) continue;
      replica_.enqueue(batch, {.mode = exec::Mode::evaluate, .seed = replica_.config().seed});
      results.expect();
      exec::add_counts_by_value(plan_, batch, counts);
      for (std::size_t l = 0; l < losses; ++l)
        if (const double known = exec::known_count(plan_, l, batch.rows); known >= 0) counts[l] += known;
      rest[2] += static_cast<double>(batch.rows);
      take(Replica::latency);
    }
    take(0);
  } catch (...) {
    results.drop(replica_.exec());  // else the next pass would be given a result of these
    throw;
  }
  replica_.comm().all_reduce(std::span<double>(sums), comm::sum);
  Evaluation evaluation;
  evaluation.rows = static_cast<std::int64_t>(rest[2]);
  for (std::size_t l = 0; l < losses; ++l)
    if (counts[l] > 0) evaluation.loss += sums[l] / counts[l];
  evaluation.accuracy = accuracy_of(rest[0], rest[1]);
  for (std::size_t m = 0; m < metrics; ++m)
    evaluation.metrics.push_back({plan_.metrics[m].name, sums[losses + m] / rest[2]});
  evaluation.seconds = watch.seconds();
  return evaluation;
}

template <class Replica>
std::unique_ptr<Feed> Evaluator<Replica>::feed_for(const FitOptions& options) {
  if constexpr (exec::TakesMadeRows<std::remove_reference_t<decltype(replica_.exec())>>) {
    using There = ResidentFeed<typename Replica::Space>;
    if (options.resident && options.validate && There::takes(options.validate))
      return std::make_unique<There>(plan_, options.validate, batches_of(options.validate), std::nullopt,
                                     replica_.space());
  }
  return nullptr;
}

template <class Replica>
Prediction Evaluator<Replica>::predict(const data::DatasetRef& set, int output) {
  const Binding binding = Binding::for_output(plan_, set.fields(), output);
  data::Loader<data::DatasetRef> loader(
      set, {.batch = replica_.most_rows(), .shuffle = false, .allow_short = true});
  const memory::AllDone done(replica_.space());
  replica_.keep_results();
  Prediction prediction;
  prediction.shape =
      plan_.nodes[static_cast<std::size_t>(plan_.outputs[static_cast<std::size_t>(output)].node)].shape;
  prediction.values.reserve(set.size() * static_cast<std::size_t>(prediction.shape.size()));
  loader.start(0);
  while (const data::Batch* batch = loader.next()) {
    replica_.enqueue(binding.view(*batch), {.mode = exec::Mode::evaluate, .seed = replica_.config().seed});
    const auto values = replica_.exec().output(output);
    replica_.exec().result();
    prediction.values.insert(prediction.values.end(), values.begin(), values.end());
  }
  return prediction;
}

}  // namespace convoy::train
